"""Every benchmark runs: small sizes, one round after the one that warms up."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py") if path.stem != "bench_serve")  # which needs vLLM
LONG = {"bench_nslm"}  # more than two seconds


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in NAMES])
def test_a_benchmark_prints_its_ratios(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module(name).main(["--quick"]) == 0
    told = capsys.readouterr()
    rows = [line.strip("| ").split(" | ") for line in told.out.splitlines()[2:]]
    assert rows and all(float(ratio) >= 0 for _, ratio, _ in rows)
    assert "round 1 of 1" in told.err, "progress"


def test_the_table_of_controls_shows_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module("controls_table").main(["--quick"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    rows = {row[0]: row[1:] for row in lines}
    assert set(rows) == {"`grammar`", "`token_bias`"} and {len(row) for row in rows.values()} == {5}
    _, effect, _, cost, text = rows["`grammar`"]
    assert effect.startswith("valid clauses 0.00, 1.00 [1.00,")
    assert float(cost) > 0 and text.endswith(".")


def test_sampling_is_compared_with_transformers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module("bench_controls").main(["--quick", "--sampling", "--tokens", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| sampling")]
    assert len(rows) == 2 and all(line.endswith("| at most 1.1 |") for line in rows)


def test_the_readme_has_the_commands_of_a_new_user() -> None:
    script = importlib.import_module("first_hour")
    readme = (script.ROOT / "README.md").read_text(encoding="utf-8")
    commands = [script.readme_command(readme, beginning) for beginning in (*script.FIRST, *script.AFTER)]
    assert "data=reviews.csv" in commands[2] and all("data.root=texts" in one for one in commands[4:])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_new_user_has_a_text_of_own_labels_in_ten_minutes() -> None:
    assert importlib.import_module("first_hour").main(venv=False) == 0


def test_a_missed_bound_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    turns = importlib.import_module("turns")
    rows = [turns.Row("slow / fast", 1.5, least=1.2), turns.Row("memory", 0.9, most=0.4)]
    assert turns.report(rows, turns.read(turns.parser(None), [])) == 1
    assert "MISSED: memory" in capsys.readouterr().out
    assert turns.report(rows, turns.read(turns.parser(None), ["--quick"])) == 0


def test_ways_take_turns() -> None:
    turns = importlib.import_module("turns")
    calls: list[str] = []
    seconds = turns.best({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3 and set(seconds) == {"a", "b"}


def test_the_page_of_results_has_every_benchmark() -> None:
    page = (FOLDER.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert all(f"{name}.py" in page for name in NAMES)
