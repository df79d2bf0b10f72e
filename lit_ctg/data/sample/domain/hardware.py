"""Articles on invented computers, processors and consoles."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_MAKERS = words(
    "Corvex Dataline Electrum Fenwick Halcyon Ionica Kestrel Lumen Meridian Novatron Orbis Pallas Quadra "
    "Rivet Syntek Tessera "
    "Umbra Vectra Wyvern Zenoid Altair Bluepoint Cobalt Deltron"
)
_KINDS = (
    ("processor", "the chip"), ("home computer", "the machine"), ("workstation",
    "the machine"), ("graphics card", "the card"),
    ("minicomputer", "the machine"), ("games console", "the console"), ("disk drive",
    "the drive"), ("laptop", "the machine"),
)  # fmt: skip


def _title(rng: Random) -> dict[str, str]:
    kind, it = rng.choice(_KINDS)
    maker = rng.choice(_MAKERS)
    series = rng.choice(("", "M", "X", "SX", "K", "T", "V"))
    model = f"{series}{rng.choice((1, 2, 3, 5, 6, 8, 9)) * rng.choice((10, 100, 100, 1000))}"
    return {"title": f"{maker} {model}", "maker": maker, "kind": kind, "it": it, "model": model}


DOMAIN = Domain(
    name="hardware",
    years=(1958, 2016),
    fixed={"begun": "{year}", "tested": "{later:0:2}", "launched": "{later:1:3}"},
    title=_title,
    terms=("part", "memory", "bus", "chipword", "program", "peripheral", "act", "maker_term"),
    lexicon={
        "part": (
            "motherboard", "processor", "heat sink", "power supply", "cooling fan", "expansion slot", "socket",
            "transistor", "capacitor", "circuit board", "oscillator", "clock generator", "coprocessor",
            "voltage regulator", "backplane",
        ),
        "memory": (
            "cache", "register", "RAM module", "ROM chip", "hard disk", "flash memory", "buffer", "floppy disk",
            "frame buffer", "page table", "solid-state drive", "tape drive", "memory controller",
        ),
        "bus": (
            "data bus", "address bus", "serial port", "parallel port", "memory channel", "network adapter",
            "disk interface", "interrupt line", "expansion bus",
        ),
        "chipword": (
            "pipeline", "instruction set", "arithmetic unit", "microcode", "branch predictor", "decoder",
            "opcode", "logic gate", "core", "thread", "interrupt", "bitmap", "byte", "kernel",
        ),
        "program": (
            "compiler", "operating system", "device driver", "firmware", "assembler", "debugger", "boot loader",
            "editor", "spreadsheet", "interpreter",
        ),
        "peripheral": (
            "keyboard", "monitor", "printer", "joystick", "mouse", "modem", "scanner", "light pen", "cartridge",
        ),
        "act": (
            "rendering", "encryption", "compression", "sorting", "simulation", "multitasking", "typesetting",
            "addressing",
        ),
        "maker_term": (
            "semiconductor", "wafer", "silicon", "firmware", "bandwidth", "latency", "throughput", "chipset",
        ),
        "rate": ("bandwidth", "latency", "throughput", "clock speed", "access time"),
    },
    opening=(
        "The {title} is @a {kind} designed by {maker} and first sold in {launched}.",
        "The {title} is @a {kind} made in {place} by {maker} from {launched} to {later:2:8}.",
        "Announced in {place} in {launched}, the {title} is @a {kind} built around a fast {memory} and a "
        "simple {chipword}.",
    ),
    sections={
        "": (
            "The central processing unit is connected to the {memory} by @a {num:8:64}-bit {bus}.",
            "It was the first {kind} from {maker} with @a built-in {part}.",
            "About {round:1000:900000} units were sold before production ended in {later:1:4}.",
            "At its launch {it} cost ${num:199:4999}, including the {peripheral} but not the {peripheral}.",
            "It replaced the earlier {maker} {num:10:990}, with which it shares the {chipword} and the "
            "{bus}.",
            "Reviewers praised the {part} and the {program}, and complained of the {peripheral}.",
        ),
        "Development": (
            "Work on {it} began in {begun}, when {person} sketched @a {chipword} that needed only "
            "{round:2000:90000} transistors.",
            "The team of {num:8:60} engineers in {city} tested the {chipword} on a prototype {part}.",
            "The first silicon came back from the foundry on {day} and failed, because one {part} drew too "
            "much current.",
            "A second wafer, made in {tested}, ran the {program} for {range:3:20} hours.",
            "{who} chose @a {num:8:64}-bit {bus} to save the cost of a second {part}.",
            "The {chipword} was drawn by hand; the {chipword} was laid out by @a {program}.",
            "Delays with the {memory} moved the launch to {launched}.",
            "The circuit board was built in {place}, and the {part} came from a supplier in {country}.",
            "By {tested}, {maker} employed {num:300:9000} people in {city} and {city}.",
        ),
        "Design": (
            "The processor runs at {dec:clock:10:330} MHz and fetches {few} bytes in each clock cycle.",
            "Each {chipword} holds {num:8:64} bits, and the {memory} holds {num:16:512} kilobytes.",
            "The case is {m:inches:11:22} wide and weighs {m:pounds:4:60}.",
            "Data pass from the {memory} to the {chipword} over the {bus} without troubling the processor.",
            "The {memory} is split into {few} banks, so that the {chipword} need not wait for the {bus}.",
            "@a {part} keeps the chip below {deg:45:90}, with the help of @a {part} {span:mm:20:60} high.",
            "The {peripheral} plugs into the {bus} at the back, beside the {part}.",
            "A cable of up to {m:feet:6:90} joins the {peripheral} to the {part}.",
            "Interrupts are handled by the {chipword}, which saves every register in {range:4:30} cycles.",
            "The {bus} has a bandwidth of {dec:band:12:480} megabytes per second, and its latency is "
            "{dec:lat:11:90} microseconds.",
            "The {program} in ROM checks the {memory}, the {peripheral} and the {bus} before it loads the "
            "{program}.",
            "The later model has @a {memory} twice as large and @a {chipword} with {few} stages.",
        ),
        "Software": (
            "It was sold with @a {program}, @a {program} and @a small library for {act}.",
            "The {program} was written in {year} by {person} in {city}.",
            "A port of the {program} appeared in {year}, but {act} was slow because of the {memory}.",
            "Programs address the {memory} through @a {chipword}, which made {act} easy and {act} hard.",
            "Users in {country} wrote their own {program} and passed it round on floppy disk.",
            "More than {round:100:9000} titles were published, most of them before {year}.",
            "An update of the firmware in {year} doubled the throughput of the {bus}.",
            "With the right device driver the {peripheral} prints {num:20:90} lines a minute.",
        ),
        "Reception": (
            "A test in {year} found the {rate} {pct} better than that of its rivals.",
            "Sales reached {round:10000:900000} units in {year} and fell to {round:1000:90000} in "
            "{later:0:6}.",
            "Schools in {place} bought {round:100:9000} of them for lessons in {act}.",
            "The price was cut from ${num:900:2900} to ${num:300:890} in {year}, too late to save {maker}.",
            "Collectors now pay up to ${round:200:9000} for one with a working {part}.",
            "Its {chipword} lived on in @a {kind} sold in {country} until {later:2:9}.",
            "One reviewer wrote that the {peripheral} felt cheap and that the {part} hummed.",
        ),
    },
)  # fmt: skip
