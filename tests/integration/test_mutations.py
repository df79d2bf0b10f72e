"""Mutated overrides and configuration files: a command runs, or ends in one clear line with exit code 2."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_ctg import config
from lit_ctg.config import compose, config_folder, experiments, plain
from lit_ctg.results.record import laid_out
from tests.committed import data_of, records_of

QUICK = (
    "size=smoke",
    "logger=none",
    "trainer.accelerator=cpu",
    "trainer.max_steps=1",
    "trainer.limit_val_batches=1",
    "trainer.limit_train_batches=1",
    "callback=[run_record,finite_loss]",
    "metric=[perplexity]",
)
VALUES = ("abc", "-1", "0", "1.5", "1e400", "nan", "-inf", "null", "[]", "[1,2]", "{a:1}", "true", "''", "999999999999",
          "/no/such/place", "${nothing}", "'", "[", "{", "a,b", "???", "é\N{PILE OF POO}", "..", "=")  # fmt: skip
GROUPS = ("model", "backbone", "data", "decoding", "metric", "callback", "trainer", "logger", "sweep", "experiment")
# a huge size that is accepted is a long run, not an error
BIG = ("999999999999", "1e400")


def keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a configuration."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")


def typo(word: str, rng: random.Random) -> str:
    place = rng.randrange(len(word))
    return rng.choice([word[:place] + word[place + 1 :], word[:place] + rng.choice("xq_.") + word[place:], word[::-1]])


def mutate(name: str, known: list[str], rng: random.Random) -> list[str]:
    """Return overrides with one thing wrong, or at least unusual."""
    key = rng.choice(known)
    kind = rng.randrange(6)
    if kind == 0:
        return [f"experiment={typo(name, rng)}"]
    if kind == 1:
        return [f"experiment={name}", f"{typo(key, rng)}=1"]
    if kind == 2:
        return [
            f"experiment={name}",
            f"{rng.choice(GROUPS)}={rng.choice(['nothing', 'Default', '[a,b]', '1', 'main '])}",
        ]
    if kind == 3:
        return [f"experiment={name}", rng.choice(["", "+", "~", "++", "-"]) + key]
    if kind == 4:
        return [f"experiment={name}", f"{rng.choice(['', '+', '~', '++'])}{key}={rng.choice(VALUES)}"]
    value = rng.choice([value for value in VALUES if value not in BIG])
    return [f"experiment={name}", f"{key}={value}"]


def check(code: int, err: str, words: list[str]) -> None:
    assert code in (0, 2), (words, code, err)
    if code == 2:
        lines = [line for line in err.splitlines() if line.startswith("lit-ctg: ")]
        assert len(lines) == 1 and len(lines[0]) > len("lit-ctg: ") + 5, (words, err)
    assert "Traceback" not in err, (words, err)


def names_what_is_wrong(line: str, words: list[str]) -> bool:
    """Tell whether a line has the key or value that was mutated, or a part of it."""
    *_, word = words
    key, _, value = word.partition("=")
    parts = [part for part in key.lstrip("+~-").replace("/", ".").split(".") if len(part) > 1]
    return not parts or any(part in line for part in [*parts, value] if part)


def run_mutations(count: int, seed: int, run_cli: Any, folder: Path, some: int | None = None) -> int:
    rng = random.Random(seed)
    # a pretrained experiment asks for its model before anything else
    names = [name for name in experiments() if "pretrained" not in name]
    names = names if some is None else rng.sample(names, some)
    composed = {name: plain(compose([f"experiment={name}", *QUICK])) for name in names}
    # one that has settings for a callback which QUICK leaves out asks for that first
    chosen = {
        name: cfg for name, cfg in composed.items() if all("_target_" in part for part in cfg["callback"].values())
    }
    known, names = {name: list(keys(cfg)) for name, cfg in chosen.items()}, list(chosen)
    ran = 0
    for _ in range(count):
        name = rng.choice(names)
        words = [*QUICK, *mutate(name, known[name], rng)]
        code, _, err = run_cli("train", *words, f"output_root={folder}")
        check(code, err, words)
        assert code == 0 or names_what_is_wrong(err, words[len(QUICK) :]), (words, err)
        ran += code == 0
    return ran


@pytest.mark.parametrize(
    ("count", "seed", "some"),
    [
        pytest.param(12, 0, 4, marks=pytest.mark.long),
        pytest.param(60, 0, None, marks=pytest.mark.long),
        pytest.param(300, 1, None, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_mutated_overrides(count: int, seed: int, some: int | None, run_cli: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert 0 < run_mutations(count, seed, run_cli, tmp_path, some) < count


def damage(path: Path, rng: random.Random) -> None:
    """Spoil one line of a file: drop it, indent it, change its key or value, or cut the file there."""
    lines = path.read_text(encoding="utf-8").splitlines()
    place = rng.choice([number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")])
    line = lines[place]
    lines[place] = rng.choice(
        [
            "",
            f"   {line}",
            typo(line, rng),
            line.split(":")[0] + ": " + rng.choice(VALUES),
            line.replace(":", "", 1),
            "\t",
        ]
    )
    path.write_text("\n".join(lines if rng.random() < 0.9 else lines[:place]) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "count",
    [
        4,
        pytest.param(20, marks=pytest.mark.long),
        pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_damaged_configuration_files(count: int, run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config_folder()
    name, rng = "semantic_fusion/main", random.Random(count)
    codes = []
    for number in range(count):
        folder = tmp_path / f"conf{number}"
        shutil.copytree(whole, folder)
        used = [folder / "config.yaml", folder / "experiment" / f"{name}.yaml", folder / "trainer" / "default.yaml"]
        used += [folder / group / f"{option}.yaml" for group, option in
                 (("model", "semantic_fusion"), ("backbone", "transformer"), ("data", "clause"))]  # fmt: skip
        victim = rng.choice(used)
        damage(victim, rng)
        monkeypatch.setattr(config, "config_folder", lambda folder=folder: folder)
        words = [f"experiment={name}", *QUICK]
        code, _, err = run_cli("train", *words, f"output_root={tmp_path / str(number)}")
        check(code, err, [victim.name, victim.read_text(encoding="utf-8")])
        codes.append(code)
        shutil.rmtree(folder)
    # some damage is harmless, most is told
    assert 2 in codes and 0 in codes


SMALL = (
    "experiment=semantic_fusion/baseline",
    "size=smoke",
    "logger=none",
    "metric=[perplexity]",
    "callback=[run_record,checkpoint]",
    "trainer.accelerator=cpu",
    "trainer.limit_train_batches=1",
    "trainer.limit_val_batches=1",
)


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Return a file's bytes cut off, with something put in, taken out, turned over, or all of another kind."""
    place, much = rng.randrange(len(data)), rng.choice([1, 2, 100, 5000])
    return rng.choice(
        [
            data[:place],
            data[:place] + rng.randbytes(much) + data[place:],
            data[:place] + data[place + much :],
            data[:place] + rng.randbytes(much) + data[place + much :],
            data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :],
            b"",
            rng.randbytes(much),
            bytes(much),
            data + data,
        ]
    )


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_damaged_checkpoints(count: int, run_cli: Any, tmp_path: Path) -> None:
    """To evaluate, to generate from and to resume from: each is told by its name, and is neither taken nor lost."""
    root = tmp_path / "runs"
    assert run_cli("train", *SMALL, f"output_root={root}")[0] == 0
    (last,) = root.rglob("last.ckpt")
    whole, rng = last.read_bytes(), random.Random(count)
    (last.parents[1] / "run.json").unlink()
    for number in range(count):
        last.write_bytes(spoil(whole, rng))
        before = last.read_bytes()
        command = ("evaluate", "generate", "train")[number % 3]
        words = [*SMALL, f"output_root={root}"] + ([f"ckpt_path={last}"] if command != "train" else [])
        code, _, err = run_cli(command, *words)
        check(code, err, [command, str(number)])
        # a bit between the parts of the file changes nothing
        assert code == 0 or "last.ckpt" in err, (number, err)
        assert "weights_only" not in err
        if code == 0 and command == "train":
            (last.parents[1] / "run.json").unlink()
        else:
            assert last.read_bytes() == before


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_damaged_records(count: int, run_cli: Any, tmp_path: Path) -> None:
    """A table over a damaged record names the file; a run beside it is neither lost nor skipped for it."""
    source = records_of("semantic_fusion", "main")[0]
    whole, rng = laid_out(data_of(source)).encode(), random.Random(count)
    codes = []
    for number in range(count):
        record = tmp_path / str(number) / "run.json"
        record.parent.mkdir()
        record.write_bytes(spoil(whole, rng))
        code, _, err = run_cli("table", "paper=semantic_fusion", f"records={record.parent}", "size=paper")
        check(code, err, [str(number)])
        assert code == 0 or str(record) in err, (number, err)
        codes.append(code)
    assert 2 in codes
