"""Topic trials: continue prompts of several domains, with the gate and without, and measure how far the text stays.

Source: idea gate, sec. 4.3, 5.2, 5.3, Table 1; long lists, several prompts, drift by distance and intervals are ours.
Shape letters: N samples of a prompt, S spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.density import Density
from lit_ctg.papers.idea_gate.distinct_n import DistinctN
from lit_ctg.papers.idea_gate.sample_mean import SampleMean, grouped_bootstrap
from lit_ctg.papers.idea_gate.stickiness import Stickiness
from lit_ctg.papers.idea_gate.topic.domain import LISTS, Domain, load_domain
from lit_ctg.papers.idea_gate.topic_drift import TopicDrift
from lit_ctg.papers.idea_gate.words import words

ALL = "all"
GAIN = "gate_gain"
# the arm that is the model as it was trained, and what it is compared with
GATED, GATE_OFF = "gated", "gate_off"
DISTINCT_ORDER = 2  # idea gate, sec. 5.2: Diversity is Distinct-2


class Text(Protocol):
    """A generated text: its ids, the prompt's ones first."""

    ids: Sequence[int]
    prompt_length: int


class Generator(Protocol):
    """What the trials generate with, e.g. ``model.idea_gate.generation.IdeaGateGenerator``."""

    def generate(
        self, n: int, prompt: Sequence[str], control: Any, *, seed: int, rows: Sequence[int], max_new_tokens: int
    ) -> Sequence[Text]:
        """Continue each of n prompts; text i is a function of (seed, rows[i])."""


@dataclass(frozen=True)
class Sample:
    """One continuation, read: its words and where they stand.

    Attributes:
        text: prompt and continuation.
        new_tokens: how many tokens were scored.
        scored: words that begin in the scored tokens, the prompt left out.
        with_prompt: the same with the prompt's words, as the authors' score counts them.
        spans: words that begin in each span of new tokens.
    """

    text: str
    new_tokens: int
    scored: list[str]
    with_prompt: list[str]
    spans: list[list[str]]


class TopicTrial(Callback):
    """Run the trials in ``trainer.validate``, which ends every run.

    Args:
        domains: names of domains (``data/topic``) or paths of YAML files of one's own.
        samples: continuations a domain, shared evenly by its prompts.
        prompts: how many prompts of each domain are used; the first is the paper's.
        scored_tokens: new tokens that stickiness, density and diversity look at.
        spans: first and last new token of each span of topic drift, counted from 1.
        function_words: words that are no content words.
        arms: name -> control handed to the generator. ``gated`` is the model as it was trained; a model without a gate
            runs that arm alone. Where there is an arm ``gate_off``, the paired gain of the gate is recorded.
        decoding: an object whose ``generator(module, datamodule)`` gives the generator.
        seed: of the trials; they neither read nor move the global random state. Sample i of a prompt has the same
            draws in every arm and every model, so that comparisons are paired.
        samples_kept: texts kept of each prompt.

    Attributes:
        results: run-record entries ``topic/<arm>/<domain>/...``: ``distinct_2``; for each list (``short``, ``long``)
            ``<list>/stickiness``, ``/density``, both also ``_with_prompt``, ``/drift/<span>``, ``/drift/fall``.
            ``all`` is the mean over domains. ``topic/gate_gain/<domain>/<list>/stickiness`` is gate on minus off.
            Intervals: bootstrap over prompts and samples.
        samples: dicts with path (arm), setting (domain), prompt and text.

    Raises:
        UserError: no arm ``gated`` without control, samples that the prompts cannot share, a span that is none.
    """

    def __init__(
        self,
        *,
        domains: Sequence[str],
        samples: int,
        prompts: int,
        scored_tokens: int,
        spans: Sequence[Sequence[int]],
        function_words: Sequence[str],
        arms: Mapping[str, Mapping[str, Any]],
        decoding: Any,
        seed: int,
        samples_kept: int = 2,
    ) -> None:
        super().__init__()
        if GATED not in arms or arms[GATED]:
            raise UserError(f"callback.topic_trial.arms needs '{GATED}' without control: the model as it was trained")
        if samples < 1 or prompts < 1 or samples % prompts:
            raise UserError(f"callback.topic_trial: {samples} samples cannot be shared by {prompts} prompts evenly")
        self.spans = [(int(first), int(last)) for first, last in spans]
        if not self.spans or any(not 1 <= first <= last for first, last in self.spans):
            raise UserError(f"callback.topic_trial.spans={self.spans}: give first and last token, counted from 1")
        self.domains = [load_domain(name) for name in domains]
        for domain in self.domains:
            if len(domain.prompts) < prompts:
                raise UserError(
                    f"domain {domain.name} has {len(domain.prompts)} prompts, callback.topic_trial.prompts={prompts} "
                    f"asks for more: write more of them or give callback.topic_trial.prompts={len(domain.prompts)}"
                )
        self.n, self.prompts, self.scored_tokens = samples // prompts, prompts, scored_tokens
        self.max_new_tokens = max(scored_tokens, *(last for _, last in self.spans))
        self.function_words = tuple(function_words)
        self.arms = {GATED: {}, **arms}
        self.decoding, self.seed, self.samples_kept = decoding, seed, samples_kept
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model that ``trainer.validate`` was given (not the ones on the way of a training run)."""
        if trainer.state.fn == "validate":
            self.run(pl_module, trainer.datamodule)  # type: ignore[attr-defined]

    def run(self, module: LightningModule, datamodule: Any) -> None:
        """Generate and measure everything; fills ``results`` and ``samples`` anew."""
        generator = self.decoding.generator(module, datamodule)
        self.results, self.samples = {}, []
        measured: dict[str, dict[str, SampleMean]] = {}
        for arm, control in self.arms.items():
            if control and not module.gated:
                continue
            texts = {
                domain.name: self._texts(generator, datamodule.vocabulary, index, control)
                for index, domain in enumerate(self.domains)
            }
            measured[arm] = self._measure(arm, texts)
            self.samples += [
                {"path": arm, "setting": domain.name, "prompt": prompt, "text": sample.text}
                for domain in self.domains
                for prompt, some in zip(domain.prompts, texts[domain.name], strict=False)
                for sample in some[: self.samples_kept]
            ]
        if GATE_OFF in measured:
            self._gain(measured[GATED], measured[GATE_OFF])

    def _texts(
        self, generator: Generator, vocabulary: Any, index: int, control: Mapping[str, Any]
    ) -> list[list[Sample]]:
        """Continue the prompts of one domain as one batch; no two rows of any domain share their draws."""
        prompts = [prompt for prompt in self.domains[index].prompts[: self.prompts] for _ in range(self.n)]
        size = len(prompts)
        texts = generator.generate(
            size,
            prompt=prompts,
            control=dict(control),
            seed=self.seed,
            rows=range(index * size, (index + 1) * size),
            max_new_tokens=self.max_new_tokens,
        )
        samples = [self.read(text, vocabulary) for text in texts]
        return [samples[start : start + self.n] for start in range(0, size, self.n)]

    def read(self, text: Text, vocabulary: Any) -> Sample:
        """Return the words of a generated text by place."""
        ids = list(text.ids)
        new = len(ids) - text.prompt_length

        def place(tokens: int) -> int:
            """Return the character behind the first ``tokens`` new tokens."""
            return len(vocabulary.decode(ids[: text.prompt_length + min(tokens, new)]))

        full, begin, end = vocabulary.decode(ids), place(0), place(self.scored_tokens)
        spans = [words(full, place(first - 1), place(last)) for first, last in self.spans]
        scored = words(full, begin, end)
        return Sample(full, min(new, self.scored_tokens), scored, words(full, 0, end), spans)

    def _measure(self, arm: str, texts: Mapping[str, Sequence[Sequence[Sample]]]) -> dict[str, SampleMean]:
        """Record all numbers of an arm; returns the metrics that gains are made from, by name."""
        kept: dict[str, SampleMean] = {}
        for domain in [*self.domains, None]:
            name = domain.name if domain else ALL
            parts = [domain] if domain else self.domains
            distinct = DistinctN(order=DISTINCT_ORDER, sync_on_compute=False)
            for group, _, some in _groups(parts, texts):
                distinct.update([sample.scored for sample in some], group)
            self._keep(f"topic/{arm}/{name}/distinct_{DISTINCT_ORDER}", distinct)
            for chosen in LISTS:
                metrics = self._metrics(parts, texts, chosen)
                for key, metric in metrics.items():
                    self._keep(f"topic/{arm}/{name}/{chosen}/{key}", metric)
                kept[f"{name}/{chosen}/stickiness"] = metrics["stickiness"]
        return kept

    def _metrics(
        self, parts: Sequence[Domain], texts: Mapping[str, Sequence[Sequence[Sample]]], chosen: str
    ) -> dict[str, Any]:
        """Return the metrics of some domains by one list; every domain's texts are held against its own terms."""
        alone = {"sync_on_compute": False}  # every process runs all trials itself
        filled: dict[str, Any] = {}
        for group, domain, some in _groups(parts, texts):
            terms = domain.terms[chosen]
            topical = {"terms": terms, "function_words": self.function_words}
            tokens_N = [sample.new_tokens for sample in some]
            new: dict[str, Any] = {"drift": TopicDrift(spans=self.spans, **topical, **alone)}
            new["drift"].update([[sample.spans[s] for sample in some] for s in range(len(self.spans))], group)
            for suffix, attribute in (("", "scored"), ("_with_prompt", "with_prompt")):
                found = [getattr(sample, attribute) for sample in some]
                new[f"stickiness{suffix}"] = Stickiness(**topical, **alone)
                new[f"stickiness{suffix}"].update(found, group)
                new[f"density{suffix}"] = Density(terms=terms, **alone)
                new[f"density{suffix}"].update(found, tokens_N, group)
            for key, metric in new.items():
                if key in filled:
                    filled[key].merge_state(metric)
                else:
                    filled[key] = metric
        return filled

    def _gain(self, on: Mapping[str, SampleMean], off: Mapping[str, SampleMean]) -> None:
        """Record gate on minus gate off, sample by sample."""
        for name, metric in on.items():
            (ours_N, group_N), (base_N, _) = metric.samples(), off[name].samples()
            gain_N = ours_N - base_N
            interval = grouped_bootstrap(gain_N.tolist(), group_N.tolist())
            count, value = int(gain_N.isfinite().sum()), float(gain_N.nanmean())
            result = MetricResult(value, metric.unit, metric.direction, count, interval, metric.version)
            self.results[f"topic/{GAIN}/{name}"] = result.to_dict()

    def _keep(self, name: str, metric: Any) -> None:
        result = metric.result()
        named = {f"{name}/{key}": one for key, one in result.items()} if isinstance(result, dict) else {name: result}
        self.results |= {key: one.to_dict() for key, one in named.items()}


def _groups(
    parts: Sequence[Domain], texts: Mapping[str, Sequence[Sequence[Sample]]]
) -> list[tuple[int, Domain, Sequence[Sample]]]:
    """Return (group, domain, samples) of every prompt of some domains; groups are numbered through."""
    pairs = [(domain, some) for domain in parts for some in texts[domain.name]]
    return [(group, domain, some) for group, (domain, some) in enumerate(pairs)]
