"""What a control costs: a decode step under each control, and under several, divided by the bare model's.

    python benchmarks/bench_controls.py [--size gpt2] [--rows 8] [--tokens 16] [--device cuda] [--quick]
    python benchmarks/bench_controls.py --model smollm2 [--dtype bfloat16] [--rows 1,8,32] [--sampling]

A random GPT-2, or a model of ``lit-ctg model list``, writes from prompts of different lengths by Hugging Face's
``generate``, greedily. Exit code 1 where the controls of all papers together take more than ``LIMIT`` times the bare
decode (on size gpt2). ``--sampling`` only compares what the level field does with ``generate`` alone, by top-k and
nucleus: its own draws of each row, and a control that does next to nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from turns import Row, best, parser, read, report

from lit_ctg.control import Control, Steered
from lit_ctg.control.lora import LoRA
from lit_ctg.control.memory import Memory
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.data.sample_text import sample_documents
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.network.huggingface import load_model
from lit_ctg.network.layers import attention_layers, linear_sizes
from lit_ctg.network.pretrained import Loading, resolve
from lit_ctg.papers.control_code.adapter import code_layers
from lit_ctg.papers.control_code.control import NeuronCodes
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.idea_gate.control import IdeaGate, rows_logits
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead
from lit_ctg.papers.nslm.classes import class_table, make_recogniser
from lit_ctg.papers.nslm.control import MicroModels, carried
from lit_ctg.papers.nslm.micro_model import Difference, Gaussian, MicroModel
from lit_ctg.papers.nslm.occurrences import Occurrences
from lit_ctg.papers.semantic_fusion.bank import FeatureBank, Graded, Recent
from lit_ctg.papers.semantic_fusion.channel import GatedFusion
from lit_ctg.papers.semantic_fusion.control import FeatureChannel, LexiconSteering
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon

# width, layers, heads, tokens of the head
SIZES = {"quick": (16, 1, 2, 8000), "small": (384, 6, 6, 8000), "gpt2": (768, 12, 12, 50257)}
LIMIT = 1.6
# of the field's sampling over transformers alone
SAMPLING, OVERHEAD = {"do_sample": True, "top_k": 200, "top_p": 0.9}, 1.1
SETTINGS = {
    "idea_gate": {"alpha": 0.5},
    "graphmax": {"strength": 0.3},
    "micro_models": {"strength": 0.8},
    "lexicon": {"strength": 2.0, "to_polarity": 1.0},
    "feature_channel": {"strength": 1.0, "pos_high": 1.0},
    "neuron_codes": {"strength": 1.0, "news": 1.0},
    "memory": {"strength": 1.0},
    "lora": {"strength": 1.0},
}
ALL = "all papers"
OURS = ("memory", "lora")  # of no paper


def texts() -> list[str]:
    """Return sample reviews."""
    sources = ("garden", "music", "yelp", "amazon")
    found = (sample_documents("reviews", "train", size=15_000, source=source) for source in sources)
    return [document.text for documents in found for document in documents]


def byte_tokenizer(given: list[str]) -> Any:
    """Return a byte-level BPE of the texts."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=7000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    engine.train_from_iterator(given, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def controls(model: Any, tokenizer: Any, given: list[str]) -> list[Control]:
    """Return one control of each kind, random where it would be trained."""
    torch.manual_seed(0)
    size, width = model.lm_head.weight.shape
    ids = [tokenizer(text).input_ids for text in given[:400]]
    years = [str(year) for year in range(1800, 2030)]
    table = class_table(years, [make_recogniser("year", {"pattern": "[12][0-9]{3}"})])
    found = Occurrences.from_documents(torch.randint(0, 230, (500,)).numpy(), torch.tensor([0]).numpy(), table)
    micro = MicroModel(Difference(), Gaussian()).fit(found, table.classes[0])
    lexicon = Lexicon(path="reviews")
    features = {
        "pos": Graded(column="polarity", group="polarity", membership="low_med_high"),
        "mood": Recent(column="polarity"),
    }
    bank = FeatureBank(lexicon=lexicon, features=features, centres=[0.2, 0.6, 1.0], temperature=0.35)
    layers = {path: torch.randn(outputs, 2) for path, outputs in code_layers(model, None, True).items()}
    adapters = {}
    for path in attention_layers(model):
        inputs, outputs = linear_sizes(model.get_submodule(path)) or (0, 0)
        adapters[path] = torch.randn(8, inputs) / 100, torch.randn(outputs, 8) / 100
    graph = CooccurrenceGraph.from_token_ids(ids, size)
    return [
        IdeaGate(IdeaHead(width, size), form=GateForm(clamp="after_scaling", epsilon=1e-8), alpha=0.5, beta=-2.0),
        Graphmax(graph, variant="successor_divergence"),
        MicroModels(carried(table, {"year": micro}, {})),
        LexiconSteering(lexicon),
        FeatureChannel(GatedFusion(width, len(bank.names), True), bank),
        NeuronCodes(["news", "blog"], torch.randn(2, 2), layers),
        Memory(NgramModel.count(ids, size, order=3)),
        LoRA(adapters),
    ]


def sampled(model: Any, tokenizer: Any, given: list[str], count: int, options: Any) -> list[Row]:
    """Return what the field's sampling takes, as multiples of ``generate`` alone, for whole texts."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    read = tokenizer(prompts(given, count), padding=True, padding_side="left", return_tensors="pt").to(options.device)
    lengths = {"min_new_tokens": options.tokens, "max_new_tokens": options.tokens}
    idle = TokenBias(dict.fromkeys(("one", "other"), torch.zeros(model.get_output_embeddings().weight.shape[0])))

    def ours(names: list[Control], on: dict[str, float]) -> Any:
        steered = Steered(model, names, tokenizer=tokenizer)
        return lambda: steered.generate(read, on, seed=0, rows=range(count), pad_token_id=0, **SAMPLING, **lengths)

    ways = {
        "generate": lambda: model.generate(**read, pad_token_id=0, **SAMPLING, **lengths),
        "without a control": ours([], {}),
        "under a control": ours([idle], {"token_bias.strength": 1.0, "token_bias.to_one": 1.0}),
    }
    seconds = best(ways, options.rounds, options.device)
    what = f"sampling, {options.model or 'random GPT-2'}, {count} texts of {options.tokens} tokens"
    return [Row(f"{what}: {name} / generate", seconds[name] / seconds["generate"], most=OVERHEAD)
            for name in ways if name != "generate"]  # fmt: skip


def prompts(given: list[str], rows: int) -> list[str]:
    return [" ".join(text.split()[: 8 + 2 * (row % 8)]) for row, text in enumerate(given[:rows])]


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--size", choices=list(SIZES), default="gpt2")
    made.add_argument("--model", help="a model of lit-ctg model list in place of the random one")
    made.add_argument(
        "--rows", type=lambda text: [int(part) for part in text.split(",")], default=[8], help="8 or 1,8,32"
    )
    made.add_argument("--tokens", type=int, default=8)
    made.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of --model")
    made.add_argument("--sampling", action="store_true", help="only what the level field's sampling costs")
    options = read(made, words)
    given = texts()[:40] if options.quick else texts()
    if options.model:
        loading = Loading(options.device, options.dtype)
        size, model = options.model, load_model(options.model, where="--model", loading=loading).eval()
        tokenizer = AutoTokenizer.from_pretrained(resolve(options.model, "--model"))
        tokens, width = model.get_output_embeddings().weight.shape
    else:
        size = "quick" if options.quick else options.size
        width, layers, heads, tokens = SIZES[size]
        tokenizer = byte_tokenizer(given)
        config = GPT2Config(
            vocab_size=tokens, n_embd=width, n_layer=layers, n_head=heads, bos_token_id=0, eos_token_id=0
        )
        model = GPT2LMHeadModel(config).eval().to(options.device)
    model.generation_config.eos_token_id = None  # every text has all its tokens
    if options.sampling:
        return report([row for count in options.rows for row in sampled(model, tokenizer, given, count, options)],
                      options)  # fmt: skip
    every = controls(model, tokenizer, given)
    papers = [control for control in every if control.name not in OURS]
    sets = {"bare": [], **{control.name: [control] for control in every}, ALL: papers}
    if options.quick:
        sets = {"bare": [], ALL: papers}

    def text(names: list[Control], rows: int, length: int) -> Any:
        on = {f"{each.name}.{key}": value for each in names for key, value in SETTINGS[each.name].items()}
        steered = Steered(model, names, tokenizer=tokenizer)
        return lambda: steered.generate(prompts(given, rows), on, max_new_tokens=length, pad_token_id=0)

    lengths = (1, 1 + (1 if options.quick else options.tokens))
    limit = LIMIT if size == "gpt2" else None
    rows = []
    for count in options.rows:
        ways = {f"{name}, {each}": text(names, count, each) for name, names in sets.items() for each in lengths}
        seconds = best(ways, options.rounds, options.device)
        # reading the prompts left out: what further tokens take
        step = {name: seconds[f"{name}, {lengths[1]}"] - seconds[f"{name}, {lengths[0]}"] for name in sets}
        what = f"decode step, {size}, {count} texts" if count > 1 else f"decode step, {size}, 1 text"
        rows += [
            Row(f"{what}: {name} / bare", step[name] / step["bare"], most=limit if name == ALL else None)
            for name in sets
            if name != "bare"
        ]
    if options.device == "cpu":
        head, hidden_ND = IdeaHead(width, tokens).eval(), torch.randn(options.rows[-1], width)
        forms = {"stored": lambda: head(hidden_ND), "turned": functools.partial(rows_logits, head, hidden_ND)}
        with torch.no_grad():
            turned = best(forms, 10 * options.rounds)
        rows.append(Row("idea head: last layer turned / as stored", turned["turned"] / turned["stored"]))
    return report(rows, options)


if __name__ == "__main__":
    sys.exit(main())
