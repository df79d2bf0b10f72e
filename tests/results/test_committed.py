"""The committed records are whole, and the committed tables say what they say."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lit_ctg.config import compose, plain
from lit_ctg.results.figure import HEADLINE, pictures
from lit_ctg.results.gather import all_results
from lit_ctg.results.publish import table_command
from lit_ctg.results.record import RECORDS, REGIMES, family, laid_out, load_records, unpacked, without_modules
from lit_ctg.results.spec import load_manifest
from lit_ctg.results.table import _differences, _without_seeds, without_unread
from lit_ctg.results.verdict import (
    CANNOT_DECIDE,
    CONTRADICTED,
    NOT_COMPARABLE,
    NOT_RUN,
    SUPPORTED,
    TOO_SMALL,
    UNDECIDED,
)
from lit_ctg.run.reproduce import load_groups

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "experiments").glob(f"*/{RECORDS}") if any(path.glob("*.tar.xz")))
PAPERS = [folder for folder in FOLDERS if (folder / "paper.yaml").is_file()]  # the field is none


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_records_are_done_clean_and_named_after_themselves(folder: Path) -> None:
    records = load_records([folder / RECORDS])
    assert records
    for record in records:
        assert record.status == "DONE" and record.paper == folder.name
        assert record.git["commit"] and record.git["dirty"] is False, record.source
        archive = f"{family(record.paper, record.name)}_{record.regime}_{record.size}.tar.xz"
        named = f"{archive}/{record.name}/{record.regime}-{record.size}-seed{record.seed}.json"
        assert record.source.relative_to(folder.resolve() / RECORDS).as_posix() == named


def record_texts() -> Iterator[tuple[str, str]]:
    """Yield every committed record's file as text, with its place."""
    for archive in sorted((ROOT / "experiments").rglob("*.tar.xz")):
        for name, content in unpacked(archive).items():
            if name.endswith(".json"):
                yield f"{archive.relative_to(ROOT)}/{name}", content.decode()


def strings(node: object) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(node, dict | list):
        for part in node.values() if isinstance(node, dict) else node:
            yield from strings(part)
    elif isinstance(node, str):
        yield node


def test_records_name_no_place_of_a_machine() -> None:
    """What lies elsewhere on another machine is given relative to where the command runs: ``local/...``."""
    texts = dict(record_texts())
    assert len(texts) > 500
    named = {
        text: place
        for place, content in texts.items()
        for text in strings(json.loads(content))
        if Path(text).is_absolute() or text.startswith("~")
    }
    assert named == {}


def without_loaders(config: object) -> object:
    """A configuration without settings of nested loaders, which change no result (those of ``data`` are ignored)."""
    if isinstance(config, dict):
        return {key: without_loaders(own) for key, own in config.items() if key not in ("num_workers", "cache_root")}
    return config


def comparable(config: dict) -> object:
    """A configuration without those, without seeds and options that are off, and with the names of classes alone."""
    if config["trainer"]["limit_train_batches"] == 0 and config["model"].get("start_from"):
        # one training serves both regimes of NSLM (docs/papers/nslm.md), so this is a run of the other's networks
        trained = {**config["trainer"], "limit_train_batches": 1.0}
        config = {**config, "trainer": trained, "model": {**config["model"], "start_from": None}}
    return without_loaders(_without_seeds(without_modules(config)))


@pytest.mark.long
@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_records_are_those_of_todays_configurations(folder: Path) -> None:
    """Else a run that somebody repeats would not be one of them, and a table would describe what nobody can run."""
    found: dict[tuple[str, str, str], list] = {}
    for record in load_records([folder / RECORDS]):
        found.setdefault((record.name, record.regime, record.size), []).append(record)
    manifest = load_manifest(folder.parent, folder.name)
    groups = [group for size in manifest.runs for group in load_groups(folder.parent, folder.name, size)]
    compared, changed = 0, []
    for group in groups:
        own = [r for r in found.get((group.name, group.regime, group.size), []) if r.seed in group.seeds]
        part = manifest.unread.get(group.name)
        if own:
            today = comparable(without_unread(plain(compose([*group.words, f"seed={own[0].seed}"])), part))
        for record in own:
            compared += 1
            if differs := _differences(comparable(without_unread(record.config, part)), today):
                changed.append(f"{record.name} {record.regime} {record.size} seed {record.seed}: {', '.join(differs)}")
    assert compared > 10 and changed == []


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_tables_are_those_of_the_records(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = str(folder / RECORDS)
    table_command(folder.name, size="all", format="md", records=[records], out="tables.md")
    written = (folder / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == written, "make tables brings them up to date"


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_the_figure_is_that_of_the_records(folder: Path) -> None:
    results = all_results(folder.name, ROOT / "experiments", [folder / RECORDS], "auto")
    written = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert written == {f"{HEADLINE}.svg": pictures(results)[HEADLINE].render()}, "make tables brings it up to date"
    # the table of docs/verdicts.md
    labels: dict[tuple[str, str, str], list[str]] = {}
    for one, regime in itertools.product(results, REGIMES):
        for row in one.counted(claims=True):
            if (cell := row.cells.get(regime)) is not None and cell.verdict is not None:
                labels.setdefault((row.spec.section, row.spec.label, regime), []).append(cell.verdict.label)
    # not run: at no size
    counts = Counter(
        label for found in labels.values() for label in [one for one in found if one != NOT_RUN] or [NOT_RUN]
    )
    groups = ((SUPPORTED, CONTRADICTED), (UNDECIDED,), (CANNOT_DECIDE,), (NOT_RUN,), (TOO_SMALL, *NOT_COMPARABLE))
    name = folder.name.replace("_", " ")
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {name}\w* \|([ \d|]+)\|", page, re.MULTILINE | re.IGNORECASE)
    assert row is not None
    assert [int(number) for number in row[1].split("|")] == [sum(counts[label] for label in group) for group in groups]
    assert sum(counts.values()) == sum(counts[label] for group in groups for label in group), (
        "all verdicts have a column"
    )


# decimals of two places and more; fewer would be found anywhere
DECIMALS = re.compile(r"(?<![\w.,])-?\d[\d,]*\.\d{2,}")


def unfound(words: str, tables: str) -> list[str]:
    """Return the decimals of a text that no number of the tables rounds to, signs aside."""
    known = [abs(float(number.replace(",", ""))) for number in re.findall(r"\d[\d,]*\.?\d*", tables)]
    missing = []
    for number in DECIMALS.findall(words):
        half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
        size = abs(float(number.replace(",", "")))
        if not any(abs(value - size) <= half for value in known):
            missing.append(number)
    return missing


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_a_summary_has_no_number_that_the_tables_have_not(folder: Path) -> None:
    manifest = load_manifest(folder.parent, folder.name)
    assert manifest.headline is not None and manifest.about is not None
    assert (
        unfound(
            " ".join([*manifest.headline.summary, manifest.about.found]),
            (folder / "tables.md").read_text(encoding="utf-8"),
        )
        == []
    )


def test_a_number_that_is_nowhere_is_found() -> None:
    assert unfound("ours is -0.163, theirs 2.25, in 1,234.50", "| 0.1634 | 2.249 | 1,234.5 |") == []
    assert unfound("ours is -0.163", "| 0.1644 | 0.16 |") == ["-0.163"]


def test_the_issue_of_the_published_set_up_is_met() -> None:
    """What the reference set-up gave (mean of at least five seeds), from the committed records."""
    records = load_records([ROOT / "experiments" / "semantic_fusion" / RECORDS])

    def mean(name: str, metric: str, regime: str = "as_published") -> float:
        values = [r.metrics[metric]["value"] for r in records if (r.name, r.regime) == (name, regime)]
        assert len(values) >= 5
        return sum(values) / len(values)

    assert 1.75 <= mean("baseline", "val/perplexity_input_mask") <= 2.35
    assert 2.0 <= mean("main", "val/perplexity_input_mask") <= 2.6
    assert mean("main", "val/focus_ce/slightly") < 0.01
    assert mean("main", "val/semantic_mse") < 0.02
    assert mean("main", "probe/causal") == 0 and mean("main", "probe/causal", "corrected") == 1
    assert mean("main", "control/hard/positive/adjective") == mean("main", "control/hard/positive/punctuation") == 1
    for name in ("main", "baseline"):
        floor = mean(name, "floor/perplexity_seen_only", "corrected")
        assert floor < mean(name, "val/perplexity_seen_only", "corrected") < 1.25 * floor
        assert mean(name, "val/perplexity", "corrected") > mean(name, "floor/perplexity", "corrected")


def test_records_have_one_metric_a_line() -> None:
    """Laid out by ``record.laid_out``: a diff shows the metric that changed, not a number between two others."""
    for place, text in record_texts():
        assert laid_out(json.loads(text)) == text, f"{place}: write it with write_record"
