"""`lit-ctg train -m sweep=optuna`: Optuna chooses the settings of each run; the next start continues its study."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from lightning import Callback, LightningModule, Trainer
from matplotlib.ticker import MaxNLocator

from lit_ctg.config import compose, prepare_overrides
from lit_ctg.errors import UserError, did_you_mean, refuse
from lit_ctg.figure import COLOURS, LETTER, Chart, Sheet
from lit_ctg.files import try_lock, write_atomic
from lit_ctg.results.record import load_record
from lit_ctg.run.directory import RECORD, REMEDY
from lit_ctg.run.sweep import outcome_of, override_parser, progress_line
from lit_ctg.terminal import printable
from lit_ctg.trust import without_trust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

STUDY, TRIALS, FIGURE = "study.log", "trials.csv", "search.svg"


class PruneTrial(Callback):
    """Reports the objective after each validation, and ends a run that Optuna expects to stay behind.

    Args:
        trial: of Optuna's.
        objective: a logged metric.
    """

    def __init__(self, trial: Trial, objective: str) -> None:
        super().__init__()
        self.trial, self.objective, self.pruned = trial, objective, False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report; raise ``TrialPruned`` in a training that is not worth its time."""
        value = trainer.callback_metrics.get(self.objective)
        if trainer.state.fn != "fit" or trainer.sanity_checking or value is None:
            return
        self.trial.report(float(value), trainer.current_epoch)
        if self.trial.should_prune():
            from optuna import TrialPruned

            self.pruned = True
            raise TrialPruned(f"pruned after epoch {trainer.current_epoch}: {self.objective}={float(value):.5g}")


def search(
    words: Sequence[str], objective: str | None, trials: int, direction: str, prune: bool, dry_run: bool = False
) -> int:
    """Run trials until the study has ``trials`` of them; return 0, or 1 if none has a result.

    Args:
        words: overrides; what Hydra calls a sweep is searched: ``interval(a,b)``, ``tag(log,interval(a,b))``,
            ``range(a,b)``, ``a,b``.
        objective: a metric of the record.
        trials: in total, earlier starts included.
        direction: ``minimize`` or ``maximize``.
        prune: whether a run that stays behind the median of those before it ends early.
        dry_run: print the folder and what is searched, and stop.

    Raises:
        UserError: no Optuna, objective or setting to search; another process works on this study.
    """
    optuna = _optuna()
    given = prepare_overrides(without_trust(words))
    overrides = [one for one in override_parser().parse_overrides(given) if one.key_or_group != "sweep"]
    space = {one.get_key_element(): _distribution(one) for one in overrides if one.is_sweep_override()}
    fixed = [str(one.input_line) for one in overrides if not one.is_sweep_override()]
    refuse({
        "sweep=optuna needs objective=<a metric of the record>, such as objective=val/perplexity": objective is None,
        "sweep=optuna has nothing to search: write a setting as <key>=interval(0,1) or <key>=1,2,3": not space,
    })  # fmt: skip
    assert objective is not None
    first = compose([*fixed, *(f"{key}={_first(values)}" for key, values in space.items())])
    digest = hashlib.sha256(repr((sorted(fixed), sorted(space.items()), objective, direction)).encode()).hexdigest()
    folder = Path(first.output_root) / "searches" / f"{first.paper}-{first.name}-{digest[:8]}"
    if dry_run:
        print("\n".join([f"study: {folder / STUDY}", *(f"{key}: {values}" for key, values in space.items())]))
        return 0
    lock = try_lock(folder / ".lock", remedy=REMEDY)
    if lock is None:
        raise UserError(f"{folder}: another process works on this study")
    with lock:
        study = _study(optuna, folder / STUDY, direction, prune)
        _continue(optuna, study)
        before, began, entries = len(_ended(study)), time.monotonic(), list[dict[str, Any]]()
        while len(_ended(study)) < trials:
            trial = study.ask(space)
            entries.append(_run(study, trial, fixed, objective, direction, prune))
            line = progress_line(entries, trials - before, time.monotonic() - began)
            values = " ".join(f"{key}={value}" for key, value in trial.params.items())
            print(printable(f"{line}: {values}: {entries[-1]['error'] or entries[-1]['value']}"), flush=True)
            _write(study, folder, objective)
    return _report(study, folder, objective)


def _run(
    study: Study, trial: Trial, fixed: Sequence[str], objective: str, direction: str, prune: bool
) -> dict[str, Any]:
    """Run a trial and tell the study; return its line of a journal, with the value."""
    words = [*fixed, "skip_completed=true", *(f"{key}={value}" for key, value in trial.params.items())]
    pruning = [PruneTrial(trial, objective)] if prune else []
    entry = outcome_of(lambda: compose(words), words, *pruning) | {"value": None}
    trial.set_user_attr("folder", entry["folder"])
    if any(one.pruned for one in pruning):
        entry["status"] = "PRUNED"
    elif entry["status"] in ("DONE", "SKIPPED"):
        try:
            entry["value"] = value_of(Path(entry["folder"]) / RECORD, objective, direction)
        except UserError as error:
            entry |= {"status": "FAILED", "error": str(error)}
    if entry["value"] is not None:
        study.tell(trial, entry["value"])
        return entry
    trial.set_user_attr("error", entry["error"] or entry["status"].lower())
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.PRUNED if entry["status"] == "PRUNED" else TrialState.FAIL)
    return entry


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweep=optuna needs Optuna: pip install 'lit-ctg[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(override: Override) -> BaseDistribution:
    """Return what Optuna draws from for a swept setting."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = override.value()
    log = "log" in getattr(values, "tags", ())
    try:
        if isinstance(values, IntervalSweep):
            whole = isinstance(values.start, int) and isinstance(values.end, int)
            return (IntDistribution if whole else FloatDistribution)(values.start, values.end, log=log)
        if isinstance(values, RangeSweep):
            every = list(override.sweep_iterator())
            whole = all(isinstance(value, int) for value in every)
            return (IntDistribution if whole else FloatDistribution)(every[0], every[-1], step=values.step)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(f"{override.input_line}: {error}") from error


def _first(values: Any) -> Any:
    return values.choices[0] if hasattr(values, "choices") else values.low


def _study(optuna: Any, file: Path, direction: str, prune: bool) -> Study:
    """Open the study of a file; the sampler draws other values than in an earlier start."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        storage = JournalStorage(JournalFileBackend(str(file)))
        pruner = optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner()
        study = optuna.create_study(
            study_name="search", storage=storage, direction=direction, load_if_exists=True, pruner=pruner
        )
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    except Exception as error:  # the journal's reader has errors of many kinds
        raise UserError(f"{file}: not a study that Optuna can read ({error}); move it away") from error
    return study


def _continue(optuna: Any, study: Study) -> None:
    """Queue the trials that a killed process left, so that their runs continue from their checkpoints."""
    state = optuna.trial.TrialState
    for trial in study.get_trials(states=(state.RUNNING,)):
        study.tell(trial.number, state=state.FAIL)
        study.enqueue_trial(trial.params)


def _ended(study: Study) -> list[Any]:
    """Return the trials with a result, pruned ones included, and those that failed by themselves."""
    return [
        one
        for one in study.trials
        if one.state.name in ("COMPLETE", "PRUNED") or (one.state.name == "FAIL" and "error" in one.user_attrs)
    ]


def value_of(record: Path, objective: str, direction: str) -> float:
    """Return the objective of a finished run.

    Raises:
        UserError: the record lacks it, or the search would go the wrong way.
    """
    metrics = load_record(record).metrics
    entry = metrics.get(objective, {"direction": "none", "value": 0.0})
    worse, other = ("higher", "maximize") if direction == "minimize" else ("lower", "minimize")
    refuse({
        f"not in {record}{did_you_mean(objective, metrics)}": objective not in metrics,
        f"{worse} is better, so pass direction={other}": entry["direction"] == worse,
        f"{entry['value']} in {record}": not math.isfinite(entry["value"]),
    }, f"objective={objective}: ")  # fmt: skip
    return float(entry["value"])


def _write(study: Study, folder: Path, objective: str) -> None:
    """Write the trials as a table and the figure."""
    ended = _ended(study)
    keys = sorted({key for trial in ended for key in trial.params})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "state", objective, *keys, "folder"])
    for one in ended:
        values = [one.params.get(key) for key in keys]
        table.writerow([one.number, one.state.name.lower(), one.value, *values, one.user_attrs.get("folder")])
    write_atomic(folder / TRIALS, text.getvalue())
    write_atomic(folder / FIGURE, figure(study, objective).render("svg"))


def figure(study: Study, objective: str) -> Sheet:
    """Return the history of the objective and, from the third result on, the importance of each setting."""
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    better = min if study.direction.name == "MINIMIZE" else max
    values = [trial.value for trial in done if trial.value is not None]
    best = [better(values[: count + 1]) for count in range(len(values))]

    def history(ax: Axes) -> None:
        numbers = [trial.number for trial in done]
        ax.plot(numbers, values, "o", color=COLOURS["series0"], label="trial")
        ax.step(numbers, best, where="post", color=COLOURS["series1"], label="best so far")
        ax.set(title="History", xlabel="trial", ylabel=objective)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()

    charts = [Chart(history, about=f"{objective} of each trial and the best so far")]
    if weights := _importance(study) if len(done) > 2 else {}:
        names = [key[-40:] for key in weights]

        def importance(ax: Axes) -> None:
            ax.barh(names, list(weights.values()), color=COLOURS["series0"])
            ax.invert_yaxis()
            ax.set(title="Importance", xlabel="share of the variance", xlim=(0, 1))

        charts.append(
            Chart(
                importance,
                about="Importance of each setting",
                margins=(0.3 + LETTER * max(map(len, names)), 0.15, 0.4, 0.5),
            )
        )
    return Sheet(charts, about=f"Search for {objective}")


def _importance(study: Study) -> dict[str, float]:
    from optuna.importance import get_param_importances

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few trials
            return get_param_importances(study)
    except (RuntimeError, ValueError):  # a setting or the objective did not vary
        return {}


def _report(study: Study, folder: Path, objective: str) -> int:
    print(f"study: {folder / STUDY}; trials: {folder / TRIALS}; figure: {folder / FIGURE}")
    counts = [
        f"{sum(one.state.name == name for one in _ended(study))} {name.lower()}"
        for name in ("COMPLETE", "PRUNED", "FAIL")
    ]
    print(f"{len(_ended(study))} trials: {', '.join(counts)}")
    if not any(trial.state.name == "COMPLETE" for trial in study.trials):
        return 1
    best = study.best_trial
    values = " ".join(f"{key}={value}" for key, value in best.params.items())
    print(printable(f"best: {objective}={best.value:.5g} with {values}: {best.user_attrs.get('folder')}"))
    return 0
