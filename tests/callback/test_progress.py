from __future__ import annotations

import gc
import io
import re
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import rich.progress
import torch
from lightning import Callback
from rich.console import Console

from lit_ctg.callback.progress import Progress, steps
from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.terminal import Bars


def test_every_epoch_leaves_a_line_without_a_terminal(tiny, trainer_of, capsys) -> None:
    module, data = tiny()
    progress = Progress(title="tiny run")
    metric = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer = trainer_of(metric, progress, max_epochs=2, enable_progress_bar=True, num_sanity_val_steps=1)
    trainer.fit(module, data)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny run")]
    assert len(lines) == 2
    assert lines[0].startswith("tiny run epoch 1/2") and "val/perplexity" in lines[0]
    assert lines[1].startswith("tiny run epoch 2/2")
    # the last number is the one that the trainer has
    (value,) = (word for before, word in pairwise(lines[1].split()) if before == "val/perplexity")
    assert value == f"{float(trainer.callback_metrics['val/perplexity']):.4f}"
    trainer.validate(module, data)
    assert "tiny run" not in capsys.readouterr().out, "the validation that ends a run is none of its epochs"


def test_without_a_terminal_every_part_of_a_run_is_counted_in_lines(tiny, trainer_of, monkeypatch, capsys) -> None:
    monkeypatch.setattr("lit_ctg.terminal.EVERY", 0.0)
    module, data = tiny()
    metric = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer = trainer_of(metric, Progress(title="tiny run"), max_epochs=2, enable_progress_bar=True)
    trainer.fit(module, data)
    out = capsys.readouterr().out
    for part in ("training", "validation"):
        assert re.search(rf"^tiny run {part}, batch: 1( of \d+, about \d+ min left)?$", out, re.M), out
    lines = Bars(console=Console(file=(told := io.StringIO())))
    monkeypatch.setattr(Progress, "current", SimpleNamespace(is_enabled=False, _lines=lines))
    assert list(steps("ab", "texts")) == ["a", "b"]
    assert told.getvalue().splitlines() == ["texts: 1 of 2, about 1 min left", "texts: 2 of 2, about 1 min left"]


def test_the_line_of_an_epoch_is_one_line_of_plain_text_from_one_process(monkeypatch, capsys) -> None:
    """Also where it is longer than the terminal is wide, and where that has colours."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "30"}.items():
        monkeypatch.setenv(name, value)
    numbers = {"val/perplexity": torch.tensor(12.34567), "val/loss": torch.tensor(9.0), "train/loss": torch.tensor(0.5)}
    trainer = SimpleNamespace(
        state=SimpleNamespace(fn="fit"), sanity_checking=False, is_global_zero=True, callback_metrics=numbers,
        current_epoch=2, max_epochs=7,
    )  # fmt: skip
    monkeypatch.setattr(Progress, "_update_metrics", lambda *arguments: None)
    words = "epoch 3/7  train/loss 0.5000  val/perplexity 12.3457\n"
    for title, line in (("a title of its own", f"a title of its own {words}"), ("", words)):
        Progress(title).on_validation_end(trainer, None)
        assert capsys.readouterr().out == line
    trainer.is_global_zero = False
    Progress().on_validation_end(trainer, None)
    assert capsys.readouterr().out == "", "one process tells it"


def test_there_is_a_bar_on_a_terminal_only(monkeypatch) -> None:
    for terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        assert Progress().is_enabled is terminal


def test_the_parts_of_a_trial_are_counted_on_the_bar_and_nowhere_else(monkeypatch, capsys) -> None:
    assert list(steps([1, 2], "texts")) == [1, 2] and capsys.readouterr().out == ""
    terminal = io.StringIO()
    bars = rich.progress.Progress(console=Console(file=terminal, force_terminal=True, width=80))
    monkeypatch.setattr(Progress, "current", SimpleNamespace(is_enabled=True, progress=bars))
    with bars:
        seen = []
        for item in steps(iter("abc"), "texts of a trial"):
            seen.append((item, bars.tasks[0].completed, bars.tasks[0].total))
    assert seen == [("a", 0, 3), ("b", 1, 3), ("c", 2, 3)]
    assert "texts of a trial" in terminal.getvalue() and not bars.tasks
    with bars, pytest.raises(RuntimeError):
        for _ in steps([1, 2], "texts"):
            raise RuntimeError
    gc.collect()
    assert not bars.tasks, "what broke off leaves no bar"
    monkeypatch.setattr(Progress, "current", SimpleNamespace(is_enabled=False, progress=bars, _lines=None))
    assert [(item, *bars.tasks) for item in steps([1, 2], "texts")] == [(1,), (2,)]
    monkeypatch.setattr(Progress, "current", SimpleNamespace(is_enabled=True, progress=None))
    assert list(steps([1, 2], "texts")) == [1, 2], "before the bar is drawn for the first time"


def test_a_trainer_s_bar_is_current_while_it_runs(tiny, trainer_of) -> None:
    module, data = tiny()
    seen = []
    probe = Callback()
    probe.on_validation_end = lambda trainer, pl_module: seen.append(Progress.current)  # type: ignore[method-assign]
    progress = Progress()
    trainer_of(progress, probe, max_epochs=1, enable_progress_bar=True).fit(module, data)
    assert seen and all(bar is progress for bar in seen) and Progress.current is None
