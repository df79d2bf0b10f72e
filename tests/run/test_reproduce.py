"""`lit-ctg reproduce`: what is missing, what it costs, and that what is run fills the tables."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import textwrap
from pathlib import Path

import pytest

from lit_ctg import config
from lit_ctg.config import experiments
from lit_ctg.errors import UserError
from lit_ctg.results.record import load_records
from lit_ctg.results.spec import MANIFEST, load_manifest, load_specs, papers
from lit_ctg.results.table import COUNTS
from lit_ctg.run import reproduce
from lit_ctg.run.reproduce import corpus_of, estimate, load_groups, missing, plan_lines

ROOT = Path(__file__).resolve().parents[2] / "experiments"
# composing the configurations of hundreds of runs takes seconds, and nothing here changes them
committed_groups = functools.cache(functools.partial(load_groups, ROOT))
# rows that stay empty: their models or texts cannot be had
WITH_HOLES = ("control_code", "graphmax", "nslm")
WITH_RUNS = [name for name in papers(ROOT) if load_manifest(ROOT, name).runs]


@pytest.fixture(scope="module")
def records() -> list:
    return load_records([ROOT / paper / "records" for paper in WITH_RUNS])


@pytest.mark.long
@pytest.mark.parametrize("paper", WITH_RUNS)
def test_every_committed_record_is_listed(paper: str, records: list) -> None:
    # models of counts are no runs: `lit-ctg data counts` makes them
    mine = [r for r in records if r.paper == paper and not r.name.startswith(COUNTS)]
    committed = {(r.paper, r.name, r.regime, r.size, r.seed) for r in mine}
    named = set()
    for size in {key[3] for key in committed}:
        named |= {(*g.key, seed) for g in committed_groups(paper, size) for seed in g.seeds}
    assert committed <= named


@pytest.mark.long
@pytest.mark.parametrize("paper", WITH_RUNS)
def test_every_run_of_a_table_is_listed(paper: str, records: list) -> None:
    """At the sizes whose records are committed, and no run that no table reads."""
    sizes = {r.size for r in records if r.paper == paper} or {"small"}
    listed = {(group.name, group.regime) for size in sizes for group in committed_groups(paper, size)}
    rows = [row for spec in load_specs(ROOT, paper) for row in spec.rows]
    read = {(name, regime) for row in rows for name, _ in row.terms for regime in row.regimes}
    # models of counts are no runs: `lit-ctg data counts` makes them
    unlisted = {(name, regime) for name, regime in read - listed if not name.startswith(COUNTS)}
    assert listed <= read and (paper in WITH_HOLES or not unlisted)
    known = {name.split("/")[1] for name in experiments() if name.startswith(f"{paper}/")}
    assert {group.words[0].rpartition("/")[2] for size in sizes for group in committed_groups(paper, size)} <= known


@pytest.mark.long
def test_missing_and_estimate(records: list) -> None:
    groups = [g for g in committed_groups("semantic_fusion", "paper") if g.name in ("main", "baseline")]
    assert missing(groups, records) == []
    main = next(group for group in groups if group.name == "main" and group.regime == "corrected")
    left = [r for r in records if not (r.name == "main" and r.regime == "corrected" and r.seed == 113)]
    (hole,) = missing(groups, left)
    assert (hole.key, hole.seeds) == (main.key, (113,))
    times = [r.wall_time_s for r in left if r.name == "main" and r.size == "paper" and r.wall_time_s is not None]
    assert estimate(hole, left) == pytest.approx(sum(times) / len(times))
    lines = plan_lines([hole], left)
    assert lines[0].startswith("semantic_fusion/main corrected paper, seeds 113: about 0.0")
    assert lines[1].startswith("1 runs missing")
    assert estimate(hole, []) is None and "1 runs without one" in plan_lines([hole], [])[1]


@pytest.mark.long
def test_a_run_counts_for_its_own_corpus_only(records: list) -> None:
    main = next(g for g in committed_groups("semantic_fusion", "paper") if (g.name, g.regime) == ("main", "corrected"))
    real = dataclasses.replace(main, corpus=("local", "wikitext2"))
    done = [r for r in records if r.name == "main" and r.regime == "corrected"]

    def of(**data: str) -> list:
        return [dataclasses.replace(r, config={**r.config, "data": data}) for r in done]

    assert missing([real], of(source="sample")) == [real]
    assert missing([real], of(source="local", root="/mine/novels")) == [real], "one's own text is another corpus"
    assert missing([real], of(source="local", root="/elsewhere/wikitext2")) == []
    # without `data:` a group is on what its configuration names, here no text at all
    assert main.corpus == ("", "") and missing([main], of(source="local", root="/mine/novels")) == [main]
    assert missing([main], of()) == []


def write(folder: Path, text: str) -> Path:
    paper = folder / "experiments" / "semantic_fusion"
    shutil.copytree(ROOT / "semantic_fusion", paper, ignore=shutil.ignore_patterns("records"))
    runs = textwrap.indent(text, "  ")
    (paper / MANIFEST).write_text(f"title: semantic fusion\nruns:\n{runs}\n", encoding="utf-8")
    return folder / "experiments"


def test_values_are_swept_and_data_is_local(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        "smoke:\n- {experiment: main, regime: corrected, seed: [1, 2], set: {backbone.layers: [1, 2]}, data: books}",
    )
    groups = load_groups(root, "semantic_fusion", "smoke", "mine")
    assert [group.words for group in groups] == [
        ("experiment=semantic_fusion/main", "size=smoke", "data.source=local", "data.root=mine/books",
         f"backbone.layers={layers}", "regime=corrected") for layers in (1, 2)
    ]  # fmt: skip
    assert groups[0].command()[-2:] == ["seed=1,2", "skip_completed=true"]


@pytest.mark.long
@pytest.mark.parametrize("paper", WITH_RUNS)
def test_every_folder_of_real_data_is_in_the_folder_given(paper: str) -> None:
    """No path of a corpus is written out: `local=` moves all of them, and all of them are checked."""
    for size in load_manifest(ROOT, paper).runs:
        for group in committed_groups(paper, size, "elsewhere/data"):
            values = [word.partition("=")[2] for word in group.words]
            assert not [value for value in values if value.startswith("local/")], group.words
            assert not [value for value in values if "{" in value], group.words
            asked = {Path(value) for value in values if value.startswith("elsewhere/data/")}
            assert asked == set(group.folders)


@pytest.mark.long
def test_graphmax_reads_three_corpora_and_names_those_that_are_not_there(tmp_path: Path) -> None:
    for name in ("wikipedia", "yelp"):
        (tmp_path / name).mkdir()
    review = next(g for g in committed_groups("graphmax", "small", str(tmp_path)) if g.name == "review")
    assert {folder.name for folder in review.folders} == {"wikipedia", "control_code", "yelp"}
    (line, _) = plan_lines([review], [])
    assert line.endswith(f"; needs {tmp_path / 'control_code'}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    """The words of what Hydra composes."""
    made: list = []
    real = reproduce.composed
    monkeypatch.setattr(reproduce, "composed", lambda words: made.append(words) or real(words))
    for kept in (reproduce._composed, reproduce._cell):
        kept.cache_clear()
    return made


def test_a_variant_has_the_name_that_hydra_would_compose_and_is_not_composed(calls: list) -> None:
    names = [f"control_code/{name}" for name in ("attention", "converged_published_start")]
    found = [reproduce._named(name, "size=small", ["backbone.layers=3"], None) for name in names]
    assert len(calls) == 1, "control_code/transformer, which both vary"
    cfgs = [config.compose([f"experiment={name}", "size=small", "backbone.layers=3"]) for name in names]
    assert found == [(cfg.name, corpus_of(cfg)) for cfg in cfgs] and "_l3_" in found[1][0]


def test_what_files_state_is_not_composed(calls: list) -> None:
    assert len(load_groups(ROOT, "graphmax", "small")) > 10 and calls == []


@pytest.mark.long
@pytest.mark.parametrize("paper", WITH_RUNS)
def test_names_and_corpora_are_those_that_hydra_composes(paper: str, calls: list) -> None:
    """Of one group for each set of settings; a plan of a paper composes a few experiments only."""
    groups = load_groups(ROOT, paper, "small")
    assert len(calls) <= 8
    settings = {}
    for group in groups:
        base, varied = reproduce._varied(group.words[0].partition("=")[2])
        settings[base, frozenset(key for key, _ in varied), len(group.words)] = group
    for group in settings.values():
        cfg = config.compose(group.words)
        assert (str(cfg.name), corpus_of(cfg)) == (group.name, group.corpus), group.words


def test_a_fault_of_a_manifest_is_reported_before_the_first_run(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path, "smoke: [{experiment: main}, {experiment: baseline, set: {model.gatedd: true}}]")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="gatedd"):
        reproduce.main("semantic_fusion", "smoke", records=[str(tmp_path)])
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smoke: [{experiment: main, set: {data.root: '{lokal}/x'}}]", "only '{local}/<folder>' is allowed"),
        ("smoke: [{experiment: main, set: {data.root: 'x/{local}'}}]", "only '{local}/<folder>' is allowed"),
        ("smoke: [{experiment: main, sed: 3}]", "did you mean 'seed'"),
        ("smoke: [{regime: corrected}]", "experiment"),
        ("small: []", "no runs of size=smoke"),
        ("smoke: [{experiment: mian}]", "did you mean"),
        ("smoke: [{experiment: main, set: [a]}]", "set"),
    ],
)
def test_damaged_lists_are_one_line(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=expected):
        load_groups(write(tmp_path, text), "semantic_fusion", "smoke")


@pytest.mark.long
def test_command_runs_what_is_missing_and_shows_it(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "smoke: [{experiment: baseline, regime: corrected, seed: [5]}]")
    monkeypatch.chdir(tmp_path)
    words = ("reproduce", "paper=semantic_fusion", "size=smoke")
    code, out, _ = run_cli(*words, "dry_run=true")
    assert code == 0 and "semantic_fusion/baseline corrected smoke, seeds 5: no past run" in out
    assert not (tmp_path / "outputs").exists()
    code, out, _ = run_cli(*words)
    assert code == 0 and "[1/1] semantic_fusion/baseline corrected smoke: seeds 5" in out and "Table 1" in out
    (record,) = (tmp_path / "outputs" / "semantic_fusion" / "baseline").glob("*/run.json")
    assert json.loads(record.read_text(encoding="utf-8"))["seed"] == 5
    assert (tmp_path / "outputs" / "report.html").is_file()
    code, out, _ = run_cli(*words)
    assert code == 0 and "0 runs missing" in out and "[1/" not in out
    assert record.stat().st_mtime_ns and len(list(record.parent.parent.iterdir())) == 1


def test_all_papers_without_runs_of_a_size_are_told(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "smoke: [{experiment: baseline, regime: corrected, seed: [5]}]")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("reproduce", "paper=all", "size=small", "dry_run=true")
    assert code == 0 and "semantic_fusion: no runs of size=small" in out and "0 runs missing" in out
    code, _, err = run_cli("reproduce", "paper=semantic_fusion", "size=small", "dry_run=true")
    assert code == 2 and "lists no runs of size=small" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["reproduce", "semantic_fuson"], "did you mean 'semantic_fusion'"),
        (["reproduce", "all", "local=pyproject.toml", "dry_run=true"], "local=pyproject.toml is not a folder"),
    ],
)
def test_bad_input(words: list[str], expected: str, run_cli) -> None:
    code, _, err = run_cli(*words)
    assert code == 2 and expected in err and len(err.strip().splitlines()) == 1


def test_a_broken_paper_does_not_stop_the_others(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, "smoke: [{experiment: baseline, regime: corrected, seed: [5]}]")
    (root / "half").mkdir()
    (root / "half" / "numbers.csv").write_text("paper")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("reproduce", "paper=all", "size=smoke", "dry_run=true")
    assert code == 0 and "half: left out: " in out and "semantic_fusion/baseline corrected smoke" in out
    code, _, err = run_cli("reproduce", "paper=half", "size=smoke", "dry_run=true")
    assert code == 2 and "half/paper.yaml" in err
