from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from lit_ctg import cli
from lit_ctg.errors import UserError
from lit_ctg.files import write_samples
from lit_ctg.results import record as module
from lit_ctg.results.record import (
    DIGESTS,
    HASH_IGNORED,
    RunRecord,
    collect,
    config_hash,
    digest_of,
    environment,
    family,
    laid_out,
    load_record,
    load_records,
    processor_model,
    read_digests,
    stem_of,
    write_record,
)
from tests.results.conftest import build_record, entry


def simple_record(**changes: object) -> RunRecord:
    """A record with one metric and a setting that JSON does not have."""
    fields: dict = {
        "config": {"seed": 0, "clip": math.inf},
        "git": {"commit": None, "dirty": None},
        "metrics": {"val/perplexity": entry(4.5, n=8) | {"ci95": [4.0, 5.0]}},
        "history": {"val/perplexity": [[1, 6.0], [2, 4.5]]},
        "samples": [],
    }
    return dataclasses.replace(build_record("main", "corrected", 0, "smoke"), **(fields | changes))


def test_record_survives_the_file(tmp_path: Path) -> None:
    record = simple_record(corpus={"text": "12ab"}, device="cpu", processor="P", threads=2, wall_time_s=1.5)
    record.metrics["val/perplexity"]["folds"] = [4.0, 5.0]
    path = tmp_path / "deep" / "run.json"
    write_record(record, path)
    again = load_record(path)
    assert again.metrics == record.metrics
    assert again.history == record.history
    assert again.config == {"seed": 0, "clip": "inf"}
    assert (again.seed, again.status, again.error, again.source) == (0, "DONE", None, path)
    assert {**vars(again), "source": None, "config": record.config} == vars(record)
    assert list(path.parent.iterdir()) == [path], "a temporary file was left behind"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_survive_strict_json(tmp_path: Path, value: float) -> None:
    record = simple_record()
    record.metrics["val/perplexity"] |= {"value": value, "ci95": (value, 1.0)}
    record.history["val/perplexity"].append([3, value])
    record.tokens_per_s = record.wall_time_s = record.peak_memory_mb = value
    path = tmp_path / "run.json"
    write_record(record, path)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in the file")

    stored = json.loads(path.read_text(), parse_constant=refuse)
    assert stored["metrics"]["val/perplexity"]["value"] is None
    assert stored["metrics"]["val/perplexity"]["note"] == str(value)
    again = load_record(path)
    assert str(again.metrics["val/perplexity"]["value"]) == str(value)
    assert again.metrics["val/perplexity"]["ci95"] is None
    assert math.isnan(again.history["val/perplexity"][2][1])
    assert again.tokens_per_s is again.wall_time_s is again.peak_memory_mb is None


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda data: data.pop("seed"), "seed"),
        (lambda data: data.update(seed="0"), "seed"),
        (lambda data: data.update(seed=True), "seed"),
        (lambda data: data.update(regime="corected"), "regime"),
        (lambda data: data.update(schema_version=2), "schema_version"),
        (lambda data: data["metrics"]["val/perplexity"].update(value="4.5"), "metrics.val/perplexity.value"),
        (lambda data: data["metrics"]["val/perplexity"].update(value=None), "metrics.val/perplexity.value"),
        (lambda data: data["metrics"]["val/perplexity"].pop("unit"), "metrics.val/perplexity.unit"),
        (lambda data: data["metrics"]["val/perplexity"].update(ci95=[1.0]), "metrics.val/perplexity.ci95"),
        (lambda data: data["history"].update({"val/perplexity": [[1]]}), "history.val/perplexity"),
        (lambda data: data.update(samples=[{"prompt": ""}]), "samples[0].text"),
        (lambda data: data.update(size="huge"), "size"),
        (lambda data: data.update(status="done"), "status"),
        (lambda data: data.update(corpus={"text": 3}), "corpus.text"),
        (lambda data: data["metrics"]["val/perplexity"].update(folds=[1.0, "2"]), "metrics.val/perplexity.folds"),
        (lambda data: data["metrics"]["val/perplexity"].update(folds=1.0), "metrics.val/perplexity.folds"),
        (lambda data: data["metrics"]["val/perplexity"].update(ci95=[1.0, None]), "metrics.val/perplexity.ci95"),
        (lambda data: data["metrics"]["val/perplexity"].update(n=1.5), "metrics.val/perplexity.n"),
        (lambda data: data["metrics"]["val/perplexity"].update(n=None), "metrics.val/perplexity.n"),
        (lambda data: data["metrics"]["val/perplexity"].update(value=10**400), "metrics.val/perplexity.value"),
        (lambda data: data["config"].update(trainer=3), "config.trainer"),
        (lambda data: data["config"].update(data="x"), "config.data"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, field: str) -> None:
    path = tmp_path / "run.json"
    write_record(simple_record(), path)
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as raised:
        load_record(path)
    assert str(path) in str(raised.value)
    assert field in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": NaN}', "[" * 10_000])
def test_half_a_file_is_an_error_not_a_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"run\.json"):
        load_record(path)


def test_a_record_that_breaks_the_schema_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record = simple_record()
    record.metrics["val/perplexity"]["direction"] = "down"
    with pytest.raises(UserError, match=r"val/perplexity\.direction"):
        write_record(record, path)
    assert not path.exists()


def test_folders_are_searched_for_records_only(tmp_path: Path) -> None:
    write_record(simple_record(), tmp_path / "outputs" / "a" / "run.json")
    write_record(simple_record(seed=7), tmp_path / "records" / "main" / "corrected-smoke-seed7.json")
    write_record(simple_record(seed=9), tmp_path / "outputs" / "evaluate" / "a" / "run.json")
    (tmp_path / "outputs" / "a" / "run.failed-0.json").write_text("{")
    (tmp_path / "outputs" / "a" / "wandb-seed1.json").write_text("{")
    (tmp_path / "outputs" / "a" / "corrected-huge-seed1.json").write_text("{")
    (tmp_path / "outputs" / "a" / "other-smoke-seed1.json").write_text("{")
    records = load_records([tmp_path / "outputs", tmp_path / "records", tmp_path / "missing"])
    assert sorted(record.seed for record in records) == [0, 7]
    assert len(load_records([tmp_path / "outputs", tmp_path / "outputs" / "a"])) == 1, "one file, one record"


@pytest.mark.parametrize("changes", [{"seed": 7}, {"size": "small"}, {"regime": "as_published"}])
def test_a_committed_record_is_what_its_name_says(tmp_path: Path, changes: dict) -> None:
    write_record(simple_record(**{"seed": 8} | changes), tmp_path / "corrected-smoke-seed8.json")
    with pytest.raises(UserError, match="rename the file"):
        load_records([tmp_path])


def test_missing_record_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.json: cannot be read"):
        load_records([tmp_path / "run.json"])


def test_samples_come_from_beside_the_record(tmp_path: Path) -> None:
    samples = [{"text": "Eve cooks the meal, very good!", "setting": "positive"}, {"text": "<script>\u2028</script>"}]
    write_record(simple_record(), tmp_path / "run.json")
    write_samples(samples, tmp_path / "samples.jsonl")
    assert load_record(tmp_path / "run.json").samples == samples
    (tmp_path / "samples.jsonl").write_text('{"text": "a"}\n{"tex')
    with pytest.raises(UserError, match="line 2"):
        load_record(tmp_path / "run.json")
    (tmp_path / "samples.jsonl").write_text("[" * 10_000)
    with pytest.raises(UserError, match=r"samples\.jsonl, line 1"):
        load_record(tmp_path / "run.json")
    (tmp_path / "samples.jsonl").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"samples\.jsonl: cannot be read"):
        load_record(tmp_path / "run.json")


def test_records_that_are_known_are_not_read_again(make_record, tmp_path: Path, monkeypatch) -> None:
    write_record(make_record("main", "corrected", 1), tmp_path / "a" / "run.json")
    known: dict = {}
    (first,) = load_records([tmp_path], known)
    monkeypatch.setattr("lit_ctg.results.record.load_record", lambda path: pytest.fail(f"read {path} again"))
    assert load_records([tmp_path, tmp_path / "a" / "run.json"], known) == [first] and len(known) == 1


def test_one_metric_a_line_and_the_old_layout_reads_the_same(tmp_path: Path) -> None:
    record = simple_record(processor="Some CPU", precision="32-true", samples=[{"text": "a\nb"}])
    record.metrics["x"] = dict(record.metrics["val/perplexity"])
    write_record(record, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    for name in record.metrics:
        (line,) = [line for line in text.splitlines() if line.lstrip().startswith(f'"{name}": {{')]
        assert '"value": 4.5' in line and '"version": 1' in line
    data = json.loads(text)
    (tmp_path / "old").mkdir()
    del data["processor"], data["precision"]  # fields that older records lack
    (tmp_path / "old" / "run.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    old, new = load_record(tmp_path / "old" / "run.json"), load_record(tmp_path / "run.json")
    assert old.metrics == new.metrics and old.history == new.history and old.samples == new.samples
    assert (old.processor, new.processor) == (None, "Some CPU")
    assert (old.precision, new.precision) == (None, "32-true")


@pytest.mark.parametrize("value", [{}, {"config": {}}, {"metrics": {"a": 1, "b": [1, 2]}, "samples": [{"a": 1}, {}]}])
def test_the_layout_is_json_of_the_same_value(value: dict) -> None:
    assert json.loads(laid_out(value)) == value


def test_the_processor_is_named(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 3 GHz\nmodel name\t: Other\n")
    assert processor_model(cpuinfo) == "Some CPU @ 3 GHz"
    assert processor_model(tmp_path / "none") != ""


# --- where a result comes from --------------------------------------------------------------------------------------


def nested(dotted: str, value: object) -> dict:
    """Return ``{"a": {"b": value}}`` for ``a.b``."""
    first, _, rest = dotted.partition(".")
    return {first: nested(rest, value) if rest else value}


def test_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert config_hash({"a": 1, "b": {"c": 2, "d": 3}}) == config_hash({"b": {"d": 3, "c": 2}, "a": 1})


def test_hash_sees_every_other_change() -> None:
    base = {"seed": 0, "model": {"lr": 3e-4, "heads": 4}, "data": {"words": ["a", "b"]}}
    changed = [
        {**base, "seed": 1},
        {**base, "model": {"lr": 3e-4, "heads": 5}},
        {**base, "model": {"lr": 3e-4}},
        {**base, "data": {"words": ["b", "a"]}},
        {**base, "model": {"lr": float("inf"), "heads": 4}},
    ]
    assert len({config_hash(config) for config in [base, *changed]}) == len(changed) + 1


def test_hash_of_a_run_without_seeds_of_its_own_is_that_from_before_they_existed() -> None:
    """So its directory is found, skipped and resumed."""
    before = {"seed": 1, "data": {"seed": 1}}
    now = {"seed": 1, "training_seed": None, "data": {"seed": 1, "order_seed": None}}
    assert config_hash(now) == config_hash(before)
    assert config_hash({**now, "training_seed": 0}) != config_hash(before)
    assert config_hash({**now, "data": {"seed": 1, "order_seed": 0}}) != config_hash(before)
    assert config_hash({"data": None, "training_seed": None}) == config_hash({"data": None})


def test_hash_ignores_what_changes_no_result() -> None:
    for dotted in HASH_IGNORED:
        assert config_hash({"seed": 0, **nested(dotted, 1)}) == config_hash({"seed": 0, **nested(dotted, 2)}), dotted
    assert config_hash({"trainer": {"max_epochs": 1}}) != config_hash({"trainer": {"max_epochs": 2}})
    assert config_hash({"model": {"n": 1}}) != config_hash({"model": {"n": 2}}), "only the root's n is ignored"


def test_hash_sees_a_class_and_not_where_its_module_lies() -> None:
    one, moved, other = ({"model": {"parts": [{"_target_": name, "n": 1}]}} for name in ("a.b.C", "x.C", "a.b.D"))
    assert config_hash(one) == config_hash(moved) != config_hash(other)
    assert config_hash({"a": 1, "b": 2}, without=["b"]) == config_hash({"a": 1})


def test_environment_reads_versions_without_importing() -> None:
    code = (
        "import sys; from lit_ctg.results.record import environment; e = environment(); "
        "assert 'torch' not in sys.modules; print(e['versions']['torch'], e['versions']['python'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    torch_version, python_version = done.stdout.split()
    assert torch_version[0].isdigit()
    assert python_version == sys.version.split()[0]


def test_commit_is_that_of_the_checkout_that_tracks_the_package(tmp_path, monkeypatch) -> None:
    from lit_ctg.results import record as provenance

    package = tmp_path / "lit_ctg"
    (package / "results").mkdir(parents=True)
    (package / "__init__.py").write_text("")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    monkeypatch.setattr(provenance, "__file__", str(package / "results" / "record.py"))
    assert environment()["git"] == {"commit": None, "dirty": None}, "an untracked package is not that checkout's code"
    git("add", "lit_ctg/__init__.py")
    git("commit", "-q", "-m", "one")
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (package / "__init__.py").write_text("x = 1\n")
    assert environment()["git"]["dirty"] is True


def test_finished_records_are_copied_whole_and_not_overwritten(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": False}
    record.config["output_root"] = "/somebody/outputs"
    write_record(record, tmp_path / "outputs" / "a" / "run.json")
    failed = make_record("main", "corrected", 8)
    failed.status, failed.error = "FAILED", "because"
    write_record(failed, tmp_path / "outputs" / "b" / "run.json")
    assert cli.main(["collect", f"records={tmp_path / 'outputs'}", f"out={tmp_path / 'experiments'}"]) == 0
    (copied,) = load_records([tmp_path / "experiments"])
    assert copied.source.name == "corrected-paper-seed7.json"
    assert (copied.metrics, copied.history, copied.config_hash) == (record.metrics, record.history, record.config_hash)
    assert copied.samples == record.samples
    # a path of somebody's machine does not travel
    assert copied.config == {**record.config, "output_root": "outputs"}
    assert collect(load_records([tmp_path / "outputs"]), tmp_path / "experiments") == []
    assert len(collect(load_records([tmp_path / "outputs"]), tmp_path / "experiments", replace=True)) == 1


@pytest.mark.parametrize(("dirty", "words"), [(True, "uncommitted changes"), (None, "commit is not known")])
def test_a_run_of_uncommitted_code_is_refused_before_another_is_copied(
    dirty: bool | None, words: str, make_record, tmp_path: Path
) -> None:
    good, record = make_record("main", "corrected", 6), make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": dirty}
    with pytest.raises(UserError, match=words):
        collect([good, record], tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_record_that_goes_away_while_its_folder_is_read_is_left_out(
    make_record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        write_record(make_record("main", "corrected", seed), tmp_path / str(seed) / "run.json")
    # as a run that starts puts it aside between the search and the reading
    monkeypatch.setattr(module, "check_regular", lambda path: path.unlink() if path.parent.name == "1" else None)
    assert [record.seed for record in load_records([tmp_path])] == [2]
    with pytest.raises(UserError, match="cannot be read"):
        load_records([tmp_path / "1" / "run.json"])


def test_a_diverged_run_is_a_result_too_and_only_replace_writes_over_one(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.status, record.error = "DIVERGED", "loss is nan"
    (place,) = collect([record], tmp_path)
    archive = place.parent.parent
    before = archive.read_bytes()
    assert load_records([archive])[0].error == "loss is nan"
    again = make_record("main", "corrected", 7)
    assert collect([again], tmp_path) == [] and archive.read_bytes() == before
    assert collect([again], tmp_path, replace=True) == [place] and load_records([archive])[0].status == "DONE"


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_runs_the_last_started_is_copied_without_samples_of_another(
    order: int, make_record, tmp_path: Path
) -> None:
    def started(day: int, **changes: object) -> RunRecord:
        record = make_record("main", "corrected", 7)
        return dataclasses.replace(record, started_at=f"2026-01-0{day}T00:00:00+00:00", **changes)

    (place,) = collect([started(1)], tmp_path)
    assert load_records([tmp_path])[0].samples
    found = [started(1), started(2, samples=[]), started(3, status="FAILED", error="because")]
    assert collect(found[::order], tmp_path, replace=True) == [place]
    (copied,) = load_records([tmp_path])
    assert copied.started_at == found[1].started_at and copied.samples == []


def test_an_interrupted_collect_leaves_the_old_archive(
    make_record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record and its texts are replaced together or not at all."""
    old = dataclasses.replace(make_record("main", "corrected", 7), samples=[{"text": "old"}])
    (place,) = collect([old], tmp_path)
    before = place.parent.parent.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            collect([make_record("main", "corrected", 7)], tmp_path, replace=True)
    assert place.parent.parent.read_bytes() == before
    folder = place.parent.parent.parent
    assert {path.name for path in folder.iterdir()} == {place.parent.parent.name, DIGESTS}
    collect([make_record("main", "corrected", 7)], tmp_path, replace=True)
    assert read_digests(folder) == {(stem_of(one), one.started_at): digest_of(one) for one in load_records([folder])}


@pytest.mark.parametrize(("field", "value"), [("name", "../../x"), ("paper", ".."), ("name", "a/b"), ("name", "/etc")])
def test_a_record_cannot_say_that_it_belongs_elsewhere(field: str, value: str, make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 7)
    record.git = {"commit": "c" * 40, "dirty": False}
    setattr(record, field, value)
    with pytest.raises(UserError, match="not a plain name"):
        collect([record], tmp_path / "deep" / "experiments")
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("paper", "name", "packed_with"),
    [
        ("nslm", "main", "main"),
        ("nslm", "numbers_grounded", "numbers_grounded"),
        ("semantic_fusion", "baseline_uniformizer_050_long", "baseline_uniformizer"),
        ("semantic_fusion", "factorial_g0a0u0c0", "factorial"),
        ("idea_gate", "sweep_alpha0.25_k20_beta-2.0", "sweep"),
        ("idea_gate", "window2", "window2"),
        ("field", "numbers_and_places-idea_gate", "numbers_and_places"),
    ],
)
def test_families_are_the_first_words_of_a_name(paper: str, name: str, packed_with: str) -> None:
    assert family(paper, name) == packed_with


def test_an_archive_holds_what_was_collected_and_the_same_runs_give_the_same_bytes(make_record, tmp_path: Path) -> None:
    records = [make_record(name, "corrected", seed) for name in ("main", "long_baseline") for seed in (7, 8)]
    for root, order in (("once", records), ("again", records[::-1])):
        for record in order if root == "again" else [order]:
            collect(record if isinstance(record, list) else [record], tmp_path / root)
    once, again = (sorted((tmp_path / root).rglob("*.tar.xz")) for root in ("once", "again"))
    assert [path.name for path in once] == ["long_baseline_corrected_paper.tar.xz", "main_corrected_paper.tar.xz"]
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
    found = load_records([tmp_path / "once"])
    assert [(each.name, each.seed, each.samples == records[0].samples) for each in found] == [
        ("long_baseline", 7, True), ("long_baseline", 8, True), ("main", 7, True), ("main", 8, True)
    ]  # fmt: skip
    assert found[2].source == once[1].resolve() / "main" / "corrected-paper-seed7.json"
    assert load_records([once[1]]) == found[2:], "an archive can be named"
    assert read_digests(once[0].parent) == {(stem_of(one), one.started_at): digest_of(one) for one in found}


def test_an_archive_that_is_known_is_not_read_again(make_record, tmp_path: Path) -> None:
    (place,) = collect([make_record("main", "corrected", 7)], tmp_path)
    known: dict[Path, RunRecord] = {}
    found = load_records([tmp_path], known)
    place.parent.parent.write_bytes(b"")
    assert load_records([tmp_path], known) == found and set(known) == {found[0].source}


def test_a_plan_reads_runs_of_one_size_without_what_they_measured(make_record, tmp_path: Path) -> None:
    full = [make_record("main", "corrected", 7), make_record("main", "corrected", 7, size="small")]
    archive = collect(full, tmp_path)[0].parent.parent
    archive.write_bytes(b"")  # of the other size: not read
    (brief,) = load_records([tmp_path], size="small", brief=True)
    (whole,) = load_records([tmp_path], size="small")
    assert whole.metrics and brief == dataclasses.replace(whole, metrics={}, history={}, samples=[])


def test_a_damaged_list_of_digests_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / DIGESTS).write_text("main/corrected-paper-seed7 0123\n", encoding="utf-8")
    with pytest.raises(UserError, match=DIGESTS):
        read_digests(tmp_path)


def test_loose_records_count_beside_archives(make_record, tmp_path: Path) -> None:
    collect([make_record("main", "corrected", 7)], tmp_path)
    folder = tmp_path / "semantic_fusion" / "records"
    write_record(make_record("main", "corrected", 8), folder / "main" / "corrected-paper-seed8.json")
    (folder / "notes.tar.xz").write_bytes(b"not an archive of records by its name")
    assert [record.seed for record in load_records([tmp_path])] == [8, 7]


@pytest.mark.parametrize("keep", [0, 30, 200])
def test_a_damaged_archive_ends_in_one_line(keep: int, make_record, tmp_path: Path) -> None:
    (place,) = collect([make_record("main", "corrected", 7)], tmp_path)
    archive = place.parent.parent
    archive.write_bytes(archive.read_bytes()[:keep])
    for found in (lambda: load_records([tmp_path]), lambda: collect([make_record("main", "corrected", 8)], tmp_path)):
        with pytest.raises(UserError, match=r"main_corrected_paper\.tar\.xz: cannot be read"):
            found()
