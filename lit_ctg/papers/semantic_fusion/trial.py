"""Trials of a trained model: control trials, perplexity from prefixes alone, and the corpus's floor.

Control-off base rates and the untrained model are ours. A model that attends to later tokens, or has features of them,
scores well on whole sentences but cannot use this in generation; for a causal model perplexity from prefixes equals the
ordinary one. Shape letters: B sentences, T positions, V vocabulary.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal, Protocol

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.callback.progress import steps
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, refuse, within
from lit_ctg.limits import Checked, Choice, Count, Fields, Fraction, Whole, check_value
from lit_ctg.metric.control_success import ControlSuccess, against_base
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.semantic_fusion.metrics import CLASSES, OodHitRate, PolarityConfusion
from lit_ctg.statistics import t_interval

# control trials (sec. 3.2, Tables 2 to 4) -----------------------------------------------------------------------------

OFF = "off"
UNTRAINED = "untrained/"
# intensity from which an intensifier is strong: very (0.8) and extremely (1.0) of the paper's four
STRONG = 0.8


class Trial(Protocol):
    """The attributes of a generated sentence."""

    text: str
    polarity: str
    adjective_id: int
    punctuation: str | None


class Generator(Protocol):
    """The trials' generator, e.g. ``decode.ClauseGenerator``."""

    has_channel: bool

    def generate(
        self, n: int, prompt: str = "", *, control: Any, routes: Sequence[str], seed: int, rows: Sequence[int]
    ) -> Sequence[Trial]:
        """Generate ``n`` sentences; row i is a function of (seed, rows[i])."""

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a prompt; ``UserError`` for one that cannot be continued."""


@dataclass(frozen=True)
class Request:
    """A control, and the polarity and closing mark that count as success (null: not requested)."""

    control: Mapping[str, float]
    adjective: Literal["positive", "negative"] | None = None
    punctuation: str | None = None


def is_strong(trial: Trial, vocabulary: Any) -> bool:
    """Say whether a sentence has intensifiers, all of them strong."""
    found = [vocabulary.intensity[word] for word in re.findall(r"\w+", trial.text) if word in vocabulary.intensity]
    return bool(found) and min(found) >= STRONG


# control -> whether a sentence is what more of it should give
RESPONSES: dict[str, Callable[[Trial, Any], bool]] = {
    "str_high": is_strong,
    "pos_high": lambda trial, _: trial.polarity == "positive",
    "neg_high": lambda trial, _: trial.polarity == "negative",
}


class ControlTrial(Checked, Callback):
    """Run the trials on the untrained model and in ``trainer.validate``, which ends every run.

    Args:
        n: trials per (path, setting).
        settings: name -> fields of ``Request``.
        confusion: names of the settings in the confusion table.
        paths: name -> active control routes. ``off`` (none) is the base rate of every setting: the same target, without
            the control. Paths with ``channel`` are left out for a model without one.
        decoding: an object whose ``generator(module, datamodule)`` returns the generator.
        seed: of the trials; they neither read nor advance the global random state.
        prompt: beginning of the sentences of a few further samples for each (path, setting), Table 5; "" for none.
        samples_kept: texts kept per (path, setting).
        samples_prompted: how many samples continue the prompt.
        doses: control of ``RESPONSES`` -> values above 0, each requested alone (sec. 1: "increasing str_high smoothly
            raises the probability of higher-intensity completions"). All doses of a control share their noise.

    Attributes:
        results: run-record entries. ``control/<path>/<setting>/adjective``, ``/punctuation``, ``/strong`` (the
            intensifiers, where str_high is requested), ``/ood_hit`` (a held-out adjective of the requested polarity),
            and for each path except ``off`` ``.../<kind>_gain`` (rate minus base rate, Newcombe's interval);
            ``control/<path>/confusion/<intended>/<realized>`` counts. ``control/<path>/dose/<control>/<value>`` is the
            response to a dose (0: none), ``.../rise`` that of the highest less that of none, ``.../fall`` the largest
            decrease from a dose to the next, ``.../largest_step`` the largest increase as a share of the rise. The
            untrained model's have the prefix ``untrained/``.
        samples: dicts with path, setting and text, and prompt if there is one.

    Raises:
        UserError: no path ``off`` without routes, a confusion setting that does not exist or requests no adjective, or
            a dose of a control without a response.
    """

    def __init__(
        self,
        *,
        n: Count,
        settings: Mapping[str, Annotated[Mapping[str, Any], Fields(Request)]],
        confusion: Sequence[str],
        paths: Mapping[str, Mapping[str, bool]],
        decoding: Any,
        seed: Whole,
        prompt: str = "",
        samples_kept: Whole = 20,
        samples_prompted: Whole = 5,
        doses: Mapping[str, Sequence[Fraction]] | None = None,
    ):
        super().__init__()
        off = OFF in paths and not any(paths[OFF].values())
        without = [name for name in confusion if not settings.get(name, {}).get("adjective")]
        refuse({
            f"paths needs '{OFF}' with every path off: it gives the base rates": not off,
            f"confusion: setting '{''.join(without[:1])}' asks for no adjective": without,
        }, "callback.control_trial.")  # fmt: skip
        check_value("callback.control_trial.doses", list(doses or ()), list[Annotated[str, Choice(tuple(RESPONSES))]])
        self.doses = {name: sorted({0.0, *map(float, values)}) for name, values in (doses or {}).items()}
        self.n, self.settings, self.confusion = n, dict(settings), tuple(confusion)
        # the base rates come first: the gains of all other paths are relative to them
        self.paths = {OFF: paths[OFF], **paths}
        self.decoding, self.seed, self.samples_kept = decoding, seed, samples_kept
        self.prompt, self.samples_prompted = prompt, samples_prompted
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test the untrained model; a resumed run has these results from its checkpoint.

        Raises:
            UserError: a prompt that the grammar cannot begin with, or a mark that closes no sentence.
        """
        datamodule = datamodule_of(trainer)
        generator = self.decoding.generator(pl_module, datamodule)
        marks = [datamodule.vocabulary.tokens[index] for index in datamodule.vocabulary.ids("punctuation")]
        for name, setting in self.settings.items():
            where = f"callback.control_trial.settings.{name}.punctuation"
            check_value(where, setting.get("punctuation"), Annotated[str, Choice(marks)] | None)
        if self.prompt:
            with within("callback.control_trial.prompt"):
                generator.prompt_ids(self.prompt)
        if trainer.global_step == 0:
            self.run(trainer, pl_module, prefix=UNTRAINED)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.run(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the untrained model's results as plain values."""
        untrained = {name: dict(result) for name, result in self.results.items() if name.startswith(UNTRAINED)}
        return {"results": untrained, "samples": [s for s in self.samples if s["path"].startswith(UNTRAINED)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the untrained model's results from before the interruption."""
        self.results = {**self.results, **state_dict["results"]}
        self.samples = [*state_dict["samples"], *(s for s in self.samples if not s["path"].startswith(UNTRAINED))]

    def run(self, trainer: Trainer, module: LightningModule, prefix: str = "") -> None:
        """Generate all trials and fill ``results`` and ``samples``, replacing earlier ones with this prefix.

        Args:
            trainer: its data module has vocabulary and held-out ids.
            prefix: before every name, ``"untrained/"`` or nothing.
        """
        datamodule = datamodule_of(trainer)
        generator = self.decoding.generator(module, datamodule)
        self.samples = [s for s in self.samples if s["path"].startswith(UNTRAINED) != (prefix == UNTRAINED)]
        base: dict[str, dict[str, Any]] = {}
        for index, (path, switches) in steps(enumerate(self.paths.items()), "controls, texts"):
            if switches.get("channel") and not generator.has_channel:
                continue
            trials = self._generate(generator, index, path)
            rates = {name: self._rates(self.settings[name], trials[name], datamodule) for name in self.settings}
            base = base or rates
            for name in self.settings:
                self.results |= gains(f"{prefix}control/{path}/{name}", rates[name], base[name] if path != OFF else {})
                kept = trials[name][: self.samples_kept]
                self.samples += [{"path": prefix + path, "setting": name, "text": t.text} for t in kept]
                if self.prompt and not prefix:
                    self.samples += self._prompted(generator, path, name)
            for cell, result in self._confusion(trials).items():
                self.results[f"{prefix}control/{path}/confusion/{cell}"] = result.to_dict()
            if path != OFF:
                for name, result in self._responses(generator, index, path, datamodule.vocabulary):
                    self.results[f"{prefix}control/{path}/dose/{name}"] = result.to_dict()

    def _texts(self, generator: Generator, path: str, control: Any, rows: range, prompt: str = "") -> Sequence[Trial]:
        """Generate a sentence for each row under the routes of a path."""
        routes = [route for route, on in self.paths[path].items() if on]
        return generator.generate(len(rows), prompt, control=control, routes=routes, seed=self.seed, rows=rows)

    def _control(self, path: str, name: str) -> Mapping[str, float]:
        """Return the control of a setting on a path."""
        return self.settings[name]["control"] if any(self.paths[path].values()) else {}

    def _generate(self, generator: Generator, index: int, path: str) -> dict[str, Sequence[Trial]]:
        """Generate all settings of one path as one batch; no two trials share their noise."""
        controls = [self._control(path, name) for name in self.settings for _ in range(self.n)]
        first = index * len(controls)
        trials = self._texts(generator, path, controls, range(first, first + len(controls)))
        return {name: trials[i * self.n : (i + 1) * self.n] for i, name in enumerate(self.settings)}

    def _responses(
        self, generator: Generator, index: int, path: str, vocabulary: Any
    ) -> Iterator[tuple[str, MetricResult]]:
        """Yield the responses of a path to every dose, and how they rise."""
        for place, (name, values) in enumerate(self.doses.items()):
            # behind the rows of the settings
            first = self.n * (len(self.paths) * len(self.settings) + index * len(self.doses) + place)
            shares = []
            for value in values:
                controls = [{name: value} if value else {}] * self.n
                trials = self._texts(generator, path, controls, range(first, first + self.n))
                rate = success(RESPONSES[name](trial, vocabulary) for trial in trials)
                shares.append(rate.number().value)
                yield f"{name}/{value:g}", rate.number()
            changes = [after - before for before, after in itertools.pairwise(shares)]
            rise = shares[-1] - shares[0]
            known = [("rise", "rate difference", rise), ("fall", "rate difference", max(0.0, -min(changes)))]
            if rise > 0:  # else there is nothing to be a share of
                known.append(("largest_step", "share", max(changes) / rise))
            for kind, unit, number in known:
                yield f"{name}/{kind}", MetricResult(number, unit, "none", self.n, None, 1)

    def _prompted(self, generator: Generator, path: str, name: str) -> list[dict[str, Any]]:
        """Generate a few continuations of the prompt, under one control on one path."""
        rows = range(self.samples_prompted)
        trials = self._texts(generator, path, self._control(path, name), rows, self.prompt)
        return [{"path": path, "setting": name, "prompt": self.prompt, "text": t.text} for t in trials]

    def _rates(self, setting: Mapping[str, Any], trials: Sequence[Trial], datamodule: Any) -> dict[str, Any]:
        """Return the metrics of one (path, setting) for the setting's target."""
        rates: dict[str, Any] = {}
        if asked := setting.get("adjective"):
            rates["adjective"] = success(t.polarity == asked for t in trials)
            of_class = set(datamodule.vocabulary.ids(f"adjective_{asked}"))
            rates["ood_hit"] = OodHitRate(held_out_ids=of_class & set(datamodule.held_out_ids), sync_on_compute=False)
            rates["ood_hit"].update([t.adjective_id for t in trials])
        if setting["control"].get("str_high"):
            rates["strong"] = success(is_strong(t, datamodule.vocabulary) for t in trials)
        if mark := setting.get("punctuation"):
            rates["punctuation"] = success(t.punctuation == mark for t in trials)
        return rates

    def _confusion(self, trials: Mapping[str, Sequence[Trial]]) -> dict[str, MetricResult]:
        """Count ``<intended>/<realized>`` of the polarities that the confusion settings request."""
        table = PolarityConfusion(sync_on_compute=False)
        asked = {self.settings[name]["adjective"] for name in self.confusion}
        for name in self.confusion:
            intended = CLASSES.index(self.settings[name]["adjective"])
            table.update([intended] * len(trials[name]), [CLASSES.index(t.polarity) for t in trials[name]])
        return {cell: count for cell, count in table.named().items() if cell.split("/")[0] in asked}


def gains(name: str, rates: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rates as run-record entries, and the gain of each over its base rate."""
    entries: dict[str, dict[str, Any]] = {}
    for kind, rate in rates.items():
        entries[f"{name}/{kind}"] = rate.result().to_dict()
        if kind in base and kind != "ood_hit":  # more held-out words is not a gain
            entries[f"{name}/{kind}_gain"] = against_base(rate, base[kind]).difference.to_dict()
    return entries


def success(hits: Iterable[bool]) -> ControlSuccess:
    """Return the share of hits; every process runs all trials itself."""
    rate = ControlSuccess(sync_on_compute=False)
    rate.update(list(hits))
    return rate


# perplexity as a generator runs the weights ---------------------------------------------------------------------------

NAME = "val/perplexity_prefix_only"


def prefix_scores(module: Any, ids_BT: Tensor, controls: Sequence[Mapping[str, float]] | None = None) -> Tensor:
    """Return scores [B, T, V] of the token after each prefix, through the module's own generation steps.

    Args:
        module: has ``start(batch_size, controls)`` and ``step(ids_B1, state) -> (scores_BV, state)``; it does not see
            column t + 1 when it scores column t. Sentences of a batch take each step together.
        ids_BT: ``<bos>`` first; the caller's mask must drop the scores of finished sentences.
        controls: one per sentence.
    """
    state, columns = module.start(len(ids_BT), controls), []
    for ids_B1 in ids_BT.split(1, dim=1):
        scores_BV, state = module.step(ids_B1, state)
        columns.append(scores_BV)
    return torch.stack(columns, dim=1)


class PrefixEvaluation(Callback):
    """Measure ``val/perplexity_prefix_only`` on the last validation of a training run and in ``trainer.validate``.

    ``results`` holds it in run-record form (targets that are not padding, float64); it is logged too.

    Raises:
        UserError: the module has no ``start`` and ``step``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}
        self.perplexity = Perplexity(mask="target")
        self._on = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check whether this is the last validation, and start from empty sums."""
        self._on = is_last_validation(trainer)
        if self._on and not (hasattr(pl_module, "start") and hasattr(pl_module, "step")):
            raise UserError(
                f"callback prefix_evaluation: {type(pl_module).__name__} has no start and step to generate with; "
                "remove the callback"
            )
        self.perplexity.to(pl_module.device).reset()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Score the batch column by column (the loop has the module in evaluation mode)."""
        if self._on:
            scores_BTV = prefix_scores(pl_module, batch["input_ids_BT"])
            self.perplexity.update(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._on:
            result = self.perplexity.number()
            self.results[NAME] = result.to_dict()
            pl_module.log(NAME, torch.tensor(result.value, dtype=torch.float32))


def is_last_validation(trainer: Trainer) -> bool:
    """Return whether training ends with the epoch being validated, or only validation was requested."""
    if trainer.sanity_checking:
        return False
    if trainer.state.fn != "fit":
        return True
    epochs, steps = trainer.max_epochs, trainer.max_steps
    return (
        trainer.should_stop
        or (epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)
        or 0 <= steps <= trainer.global_step
    )


# the floor in the record ----------------------------------------------------------------------------------------------


class EntropyFloorCallback(Callback):
    """Record the data module's exact floors beside the measured perplexities.

    ``floor/<name>`` is a lower bound for any causal predictor; ``floor_polarity_unknown/<name>`` for any that does not
    know the polarity of a held-out word it has read. A data module without floors (real text) gives no entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute the floors once; they do not change during a run."""
        datamodule = datamodule_of(trainer)
        if self.results:
            return
        for prefix, method in (
            ("floor", "entropy_floor"),
            ("floor_polarity_unknown", "floor_given_polarity_unknown"),
        ):
            if hasattr(datamodule, method):
                for name, value in getattr(datamodule, method)("val").metrics().items():
                    # exact: no sample behind it, hence n = 0 and no interval
                    result = MetricResult(float(value), "perplexity", "none", 0, None, 1)
                    self.results[f"{prefix}/{name.removeprefix('floor/')}"] = result.to_dict()


# learned memberships --------------------------------------------------------------------------------------------------


class MembershipRecord(Callback):
    """Record centres and temperature of each scalar's memberships (Eq. 1).

    ``membership/<positive|negative|strength>/<low|med|high|temperature>`` are exact values on the scalar's scale, from
    the weights that ``trainer.validate`` was given.

    Raises:
        UserError: a model without the feature channel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        memberships = getattr(pl_module, "memberships", None)
        if memberships is None:
            raise UserError(
                "callback membership_record: the model has no memberships (a baseline); remove the callback"
            )
        rows = torch.cat([memberships.centres_33, memberships.temperature_31], dim=1).tolist()
        for scalar, values in zip(("positive", "negative", "strength"), rows, strict=True):
            for name, value in zip(("low", "med", "high", "temperature"), values, strict=True):
                result = MetricResult(value, "scalar", "none", 0, None, 1)
                self.results[f"membership/{scalar}/{name}"] = result.to_dict()


# trials on text -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mood:
    """A control, and the sign of the polarity that counts as success."""

    control: Mapping[str, float]
    sign: Literal[1, -1]


class LexiconTrial(Checked, Callback):
    """Generate text under settings of the feature channel in ``trainer.validate``, and judge it by the lexicon.

    Args:
        n: texts per setting, and as many without a control.
        settings: name -> fields of ``Mood``.
        decoding: an object whose ``generator(module, datamodule)`` returns the generator.
        seed: of the trials; no two settings share their noise.
        prompt: beginning of every text.

    Attributes:
        results: ``control/<off|channel>/<setting>/polarity`` is the share of texts whose lexicon words sum to the
            requested sign, ``/held_out`` that of texts with a held-out word of that sign; for the channel ``..._gain``
            relative to the share without a control (Newcombe's interval). ``/mean_polarity`` is the mean of those sums,
            times the sign.
        samples: dicts with path, setting and text.
    """

    def __init__(
        self,
        *,
        n: Count,
        settings: Mapping[str, Annotated[Mapping[str, Any], Fields(Mood)]],
        decoding: Any,
        seed: Whole,
        prompt: str = "",
        samples_kept: Whole = 10,
    ) -> None:
        super().__init__()
        self.n, self.settings, self.decoding, self.seed = n, dict(settings), decoding, seed
        self.prompt, self.samples_kept = prompt, samples_kept
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse before training what would end the run after it."""
        generator = self.decoding.generator(pl_module, datamodule_of(trainer))
        with within("callback.lexicon_trial.prompt"):
            generator.check_room(len(generator.prompt_ids(self.prompt)), generator.max_new_tokens)
        for name, setting in self.settings.items() if generator.controls else ():
            with within(f"callback.lexicon_trial.settings.{name}"):
                generator.checked(setting["control"])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.run(pl_module, datamodule_of(trainer))

    def run(self, module: Any, datamodule: Any) -> None:
        generator = self.decoding.generator(module, datamodule)
        self.results, self.samples = {}, []
        off = self._texts(generator, [{}] * self.n, 0)
        for index, (name, setting) in steps(enumerate(self.settings.items()), "controls, texts"):
            base = self._keep("off", name, {}, off, module.bank.lexicon)
            if module.has_channel:
                texts = self._texts(generator, [setting["control"]] * self.n, index + 1)
                self._keep("channel", name, base, texts, module.bank.lexicon)

    def _texts(self, generator: Any, controls: Sequence[Mapping[str, float]], block: int) -> Sequence[Any]:
        rows = range(block * self.n, (block + 1) * self.n)
        return generator.generate(self.n, self.prompt, controls, seed=self.seed, rows=rows)

    def _rates(self, texts: Sequence[Any], sign: int, lexicon: Any) -> dict[str, ControlSuccess]:
        polarity = dict(zip(lexicon.words, lexicon.column("polarity"), strict=True))
        unseen = {word for word in lexicon.held_out if sign * polarity[word] > 0}
        return {
            "polarity": success(sign * text.polarity > 0 for text in texts),
            "held_out": success(bool(unseen & set(text.hits)) for text in texts),
        }

    def _keep(self, path: str, name: str, base: Mapping[str, Any], texts: Any, lexicon: Any) -> Mapping[str, Any]:
        """Record what texts of a setting have, and return their rates."""
        sign = self.settings[name]["sign"]
        rates, summed = self._rates(texts, sign, lexicon), [sign * text.polarity for text in texts]
        mean = MetricResult(fmean(summed), "polarity", "higher", len(summed), t_interval(summed), 1)
        self.results |= gains(f"control/{path}/{name}", rates, base)
        self.results[f"control/{path}/{name}/mean_polarity"] = mean.to_dict()
        # the texts without a control are the reference of all settings
        if path != "off" or not any(sample["path"] == "off" for sample in self.samples):
            kept = texts[: self.samples_kept]
            self.samples += [{"path": path, "setting": name, "text": text.text} for text in kept]
        return rates
