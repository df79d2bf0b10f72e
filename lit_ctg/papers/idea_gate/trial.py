"""Trials of a trained model: its topics (sec. 4.3, 5.2, 5.3, Table 1) and an X-ray of its gate (sec. 5.4, Fig. 3).

Shape letters: N samples of a prompt, S spans, V vocabulary.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from annotated_types import MinLen
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from lit_ctg.callback.progress import steps
from lit_ctg.core.model import datamodule_of
from lit_ctg.core.result import MetricResult
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.errors import UserError, refuse
from lit_ctg.figure import Bar, BarGroup, Chart, Sheet, bar_chart
from lit_ctg.files import write_atomic
from lit_ctg.limits import Checked, Count, Fields, Fraction, Whole
from lit_ctg.papers.idea_gate.corpus import AUTHORS, LISTS, Domain, load_domain
from lit_ctg.papers.idea_gate.measures import ClassifiedShare, Held, TopicClassifier, about
from lit_ctg.papers.idea_gate.metrics import (
    Density,
    DistinctN,
    SampleMean,
    Stickiness,
    TopicDrift,
    authors_words,
    grouped_bootstrap,
    words,
)
from lit_ctg.results.render import csv_cell
from lit_ctg.statistics import wilson_interval

ALL = "all"
GAIN = "gate_gain"
# the arm of the model as trained, and the arm it is compared with
GATED, GATE_OFF = "gated", "gate_off"
DOCUMENTS = 10**6  # more than any corpus holds out, so that documents of different domains are different groups
# the function words of the authors' first code
AUTHORS_FUNCTION_WORDS = frozenset(
    ("the", "a", "an", "and", "or", "but", "in", "on", "at", "to", "for", "of", "with", "is", "was")
)
DISTINCT_ORDER = 2  # idea gate, sec. 5.2: Diversity is Distinct-2


class Text(Protocol):
    """A generated text: its ids, those of the prompt first."""

    ids: Sequence[int]
    prompt_length: int


class Generator(Protocol):
    """The trials' generator, e.g. ``decode.IdeaGateGenerator``."""

    def generate(
        self, n: int, prompt: Sequence[str], control: Any, *, seed: int, rows: Sequence[int], max_new_tokens: int
    ) -> Sequence[Text]:
        """Continue each of n prompts; text i is a function of (seed, rows[i])."""


@dataclass(frozen=True)
class Sample:
    """One continuation, split into words by position.

    Attributes:
        text: prompt and continuation.
        new_tokens: number of scored tokens.
        scored: words that begin in the scored tokens, without the prompt.
        with_prompt: the same including the prompt's words, as the authors count them.
        authors: text of the scored tokens and the prompt, split as the authors' code does.
        spans: words that begin in each span of new tokens.
        last_ids: tokens of the last span.
    """

    text: str
    new_tokens: int
    scored: list[str]
    with_prompt: list[str]
    authors: list[str]
    spans: list[list[str]]
    last_ids: list[int]


class TopicTrial(Checked, Callback):
    """Run the trials in ``trainer.validate``, which ends every run.

    Args:
        domains: names of domains (``data/topic``) or paths of the user's YAML files.
        samples: continuations per domain, divided evenly among its prompts.
        prompts: how many prompts of each domain are used; the first is the paper's.
        scored_tokens: new tokens used for stickiness, density and diversity.
        spans: first and last new token of each span of topic drift, counted from 1.
        function_words: words that are not content words.
        arms: name -> control for the generator. ``gated`` is the model as trained; a model without a gate runs only
            that arm. With an arm ``gate_off``, the paired gain of the gate is recorded.
        decoding: an object whose ``generator(module, datamodule)`` returns the generator.
        seed: of the trials; they neither read nor advance the global random state. Sample i of a prompt has the same
            draws in every arm and every model, so that comparisons are paired.
        samples_kept: number of texts kept per prompt.
        classifier: settings of ``measures.TopicClassifier`` except its domains, which are these; None uses none.
        references: also record the stickiness of held-out text on the domain (``text``) and on other subjects
            (``random``), and each arm's as a multiple of ``random``.
        prefix: of the names in the run record.

    Attributes:
        results: run-record entries ``topic/<arm>/<domain>/...``: ``distinct_2``; for each list (``short``, ``long``)
            ``<list>/stickiness``, ``/density``, both also ``_with_prompt``, ``/drift/<span>``, ``/drift/fall``.
            With a classifier ``.../classified``: share of texts whose last span it assigns to the domain, its own
            ``topic/classifier/accuracy`` and the share of real held-out text ``topic/classifier/<domain>``.
            ``all`` is the mean over domains. ``topic/gate_gain/<domain>/<list>/stickiness`` is gate on minus off.
            Intervals: bootstrap over prompts and samples.
        samples: dicts with path (arm), setting (domain), prompt and text.

    Raises:
        UserError: no arm ``gated`` without control, samples that do not divide among the prompts, an invalid span.
    """

    def __init__(
        self,
        *,
        domains: Sequence[str],
        samples: Count,
        prompts: Count,
        scored_tokens: Count,
        spans: Annotated[Sequence[Sequence[Count]], MinLen(1)],
        function_words: Sequence[str],
        arms: Mapping[str, Mapping[str, Any]],
        decoding: Any,
        seed: Whole,
        samples_kept: Whole = 2,
        classifier: Mapping[str, Any] | None = None,
        references: bool = False,
        prefix: str = "topic",
    ) -> None:
        super().__init__()
        self.spans = [(int(first), int(last)) for first, last in spans]
        refuse({
            f"arms needs '{GATED}' without control: the model as it was trained": arms.get(GATED) != {},
            f"samples={samples} cannot be shared by {prompts} prompts evenly": samples % prompts,
            f"spans={self.spans}: give first and last token": any(first > last for first, last in self.spans),
        }, "callback.topic_trial.")  # fmt: skip
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
        self.classifier, self.references, self.prefix = classifier, references, prefix
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test the model that ``trainer.validate`` was given (not during training)."""
        if trainer.state.fn == "validate":
            self.run(pl_module, datamodule_of(trainer))

    def run(self, module: LightningModule, datamodule: Any) -> None:
        """Generate and measure everything; replaces ``results`` and ``samples``."""
        generator = self.decoding.generator(module, datamodule)
        self.results, self.samples = {}, []
        judge = None
        if self.classifier is not None:
            names = [domain.name for domain in self.domains]
            judge = TopicClassifier(domains=names, **self.classifier)
            judge.fit(datamodule.prepare(), len(datamodule.vocabulary))
            self._keep_rate("classifier/accuracy", *judge.accuracy)
            for name, counts in judge.real.items():
                self._keep_rate(f"classifier/{name}", *counts)
        if self.references:
            self._references(datamodule)
        measured: dict[str, dict[str, SampleMean]] = {}
        for arm, control in self.arms.items():
            if control and not module.gated:
                continue
            texts = {
                domain.name: self._texts(generator, datamodule.vocabulary, index, control)
                for index, domain in steps(enumerate(self.domains), f"topics, {arm}")
            }
            measured[arm] = self._measure(arm, texts)
            if judge is not None:
                self._classify(judge, arm, texts)
            path = arm if self.prefix == "topic" else f"{self.prefix}/{arm}"
            self.samples += [
                {"path": path, "setting": domain.name, "prompt": prompt, "text": sample.text}
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
        """Return the words of a generated text by position."""
        ids = list(text.ids)
        new = len(ids) - text.prompt_length

        def place(tokens: int) -> int:
            """Return the character position after the first ``tokens`` new tokens."""
            return len(vocabulary.decode(ids[: text.prompt_length + min(tokens, new)]))

        full, begin, end = vocabulary.decode(ids), place(0), place(self.scored_tokens)
        spans = [words(full, place(first - 1), place(last)) for first, last in self.spans]
        scored = words(full, begin, end)
        first, last = self.spans[-1]
        last_ids = ids[text.prompt_length + first - 1 : text.prompt_length + last]
        both, theirs = words(full, 0, end), authors_words(full[:end])
        return Sample(full, min(new, self.scored_tokens), scored, both, theirs, spans, last_ids)

    def _measure(self, arm: str, texts: Mapping[str, Sequence[Sequence[Sample]]]) -> dict[str, SampleMean]:
        """Record all numbers of an arm; return the metrics behind gains, by name."""
        kept: dict[str, SampleMean] = {}
        for domain in [*self.domains, None]:
            name = domain.name if domain else ALL
            parts = [domain] if domain else self.domains
            distinct = DistinctN(order=DISTINCT_ORDER, sync_on_compute=False)
            for group, _, some in _groups(parts, texts):
                distinct.update([sample.scored for sample in some], group)
            self._keep(f"{self.prefix}/{arm}/{name}/distinct_{DISTINCT_ORDER}", distinct)
            for chosen in LISTS:
                metrics = self._metrics(parts, texts, chosen)
                for key, metric in metrics.items():
                    self._keep(f"{self.prefix}/{arm}/{name}/{chosen}/{key}", metric)
                kept[f"{name}/{chosen}/stickiness"] = metrics["stickiness"]
                self._times_random(f"{arm}/{name}/{chosen}", float(metrics["stickiness"].compute()))
            self._keep(f"{self.prefix}/{arm}/{name}/{AUTHORS}/stickiness_with_prompt", self._authors(parts, texts))
        return kept

    @staticmethod
    def _authors(parts: Sequence[Domain], texts: Mapping[str, Sequence[Sequence[Sample]]]) -> Stickiness:
        """Return stickiness as the authors' first code measures it: words, lists, function words and empty texts."""
        every: dict[str, Stickiness] = {}
        for group, domain, some in _groups(parts, texts):
            own = Stickiness(
                terms=domain.terms[AUTHORS], function_words=AUTHORS_FUNCTION_WORDS, empty=0.0, sync_on_compute=False
            )
            own.update([sample.authors for sample in some], group)
            _merge(every, "", own)
        return every[""]

    def _metrics(
        self, parts: Sequence[Domain], texts: Mapping[str, Sequence[Sequence[Sample]]], chosen: str
    ) -> dict[str, Any]:
        """Return the metrics of some domains by one list; every domain's texts are compared with its own terms."""
        alone: dict[str, Any] = {"sync_on_compute": False}  # every process runs all trials itself
        filled: dict[str, Any] = {}
        for group, domain, some in _groups(parts, texts):
            terms = domain.terms[chosen]
            topical: dict[str, Any] = {"terms": terms, "function_words": self.function_words}
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
                _merge(filled, key, metric)
        return filled

    def _classify(self, judge: TopicClassifier, arm: str, texts: Mapping[str, Sequence[Sequence[Sample]]]) -> None:
        """Record how many texts the classifier assigns to the domain of their prompt, by their last span."""
        every = ClassifiedShare(sync_on_compute=False)
        group = 0
        for label, domain in enumerate(self.domains):
            metric = ClassifiedShare(sync_on_compute=False)
            for some in texts[domain.name]:
                hits = (judge.classes([sample.last_ids for sample in some]) == label).astype(float).tolist()
                metric.update(hits, group)
                every.update(hits, group)
                group += 1
            self._keep(f"{self.prefix}/{arm}/{domain.name}/classified", metric)
        self._keep(f"{self.prefix}/{arm}/{ALL}/classified", every)

    def text_references(self, datamodule: Any) -> dict[str, dict[str, Any]]:
        """Return measures without a model: what real text has, as recorded by ``references``."""
        self.results = {}
        self._references(datamodule)
        return self.results

    def _references(self, datamodule: Any) -> None:
        """Record the measures of real text, on the domain and on other subjects, in pieces of ``scored_tokens``."""
        held, decode = Held(datamodule.prepare()), datamodule.vocabulary.decode
        names = [domain.name for domain in self.domains]
        elsewhere = held.windows(lambda s: not any(about(s, name) for name in names), self.scored_tokens, limit=4)
        alone: dict[str, Any] = {"sync_on_compute": False}
        for kind in ("text", "random"):
            every: dict[str, SampleMean] = {}
            for number, domain in enumerate(self.domains):
                own = held.windows(lambda s, name=domain.name: about(s, name), self.scored_tokens)
                distinct = DistinctN(order=DISTINCT_ORDER, **alone)
                metrics: dict[str, SampleMean] = {f"distinct_{DISTINCT_ORDER}": distinct}
                topical = [
                    (
                        Stickiness(terms=domain.terms[chosen], function_words=self.function_words, **alone),
                        Density(terms=domain.terms[chosen], **alone),
                    )
                    for chosen in LISTS
                ]
                for chosen, (stickiness, density) in zip(LISTS, topical, strict=True):
                    metrics |= {f"{chosen}/stickiness": stickiness, f"{chosen}/density": density}
                for document, ids in own if kind == "text" else elsewhere:
                    found, group = [words(decode(ids))], DOCUMENTS * number + document
                    distinct.update(found, group)
                    for stickiness, density in topical:
                        stickiness.update(found, group)
                        density.update(found, [len(ids)], group)
                for name, metric in metrics.items():
                    self._keep(f"{self.prefix}/{kind}/{domain.name}/{name}", metric)
                    _merge(every, name, metric)
            for name, metric in every.items():
                self._keep(f"{self.prefix}/{kind}/{ALL}/{name}", metric)

    def _times_random(self, name: str, stickiness: float) -> None:
        """Record a stickiness as a multiple of that of random text, where that is known and not 0."""
        _, domain, chosen = name.split("/")
        random = self.results.get(f"{self.prefix}/random/{domain}/{chosen}/stickiness")
        if random and random["value"]:
            result = MetricResult(stickiness / random["value"], "times random text", "higher", random["n"], None, 1)
            self.results[f"{self.prefix}/{name}/times_random"] = result.to_dict()

    def _keep_rate(self, name: str, hits: int, trials: int) -> None:
        rate = hits / trials if trials else float("nan")
        result = MetricResult(rate, "rate", "higher", trials, wilson_interval(hits, trials), 1)
        self.results[f"{self.prefix}/{name}"] = result.to_dict()

    def _gain(self, on: Mapping[str, SampleMean], off: Mapping[str, SampleMean]) -> None:
        """Record gate on minus gate off, sample by sample."""
        for name, metric in on.items():
            (ours_N, group_N), (base_N, _) = metric.samples(), off[name].samples()
            gain_N = ours_N - base_N
            interval = grouped_bootstrap(gain_N.tolist(), group_N.tolist())
            count, value = int(gain_N.isfinite().sum()), float(gain_N.nanmean())
            result = MetricResult(value, metric.unit, metric.direction, count, interval, metric.version)
            self.results[f"{self.prefix}/{GAIN}/{name}"] = result.to_dict()

    def _keep(self, name: str, metric: Any) -> None:
        result = metric.result()
        named = {f"{name}/{key}": one for key, one in result.items()} if isinstance(result, dict) else {name: result}
        self.results |= {key: one.to_dict() for key, one in named.items()}


def _merge(filled: dict[str, Any], name: str, metric: Any) -> None:
    """Add a metric to the one of its name."""
    if name in filled:
        filled[name].merge_state(metric)
    else:
        filled[name] = metric


def _groups(
    parts: Sequence[Domain], texts: Mapping[str, Sequence[Sequence[Sample]]]
) -> list[tuple[int, Domain, Sequence[Sample]]]:
    """Return (group, domain, samples) of every prompt of some domains; groups are numbered consecutively."""
    pairs = [(domain, some) for domain in parts for some in texts[domain.name]]
    return [(group, domain, some) for group, (domain, some) in enumerate(pairs)]


COLUMNS = ("prompt", "kind", "id", "token", "factor", "probability_before", "probability_after", "idea_probability")
BOOSTED, SUPPRESSED, NAMED = "boosted", "suppressed", "named"


@dataclass(frozen=True)
class Picture:
    """The effect of the gate after one prompt.

    Attributes:
        before_V, after_V: probability of each token without and with the gate, float64.
        idea_V: the idea head's probability that the token is coming.
        clamped: share of the vocabulary whose gate is at its lower bound; 0 where the bound is out of reach.
    """

    before_V: Tensor
    after_V: Tensor
    idea_V: Tensor
    clamped: float

    @property
    def factor_V(self) -> Tensor:
        """After divided by before: exp(gate) over its mean under the token head.

        The gate itself is never above 0 (the logarithm of a probability), so a token is raised only where the gate
        takes less from it than from the rest.
        """
        return self.after_V / self.before_V


@dataclass(frozen=True)
class Look:
    """Where the X-ray looks, and words whose factors are recorded."""

    prompt: Annotated[str, MinLen(1)]
    words: Sequence[str] = ()


class XRay(Checked, Callback):
    """Inspect the gate in ``trainer.validate``, which ends every run; a model without a gate gives nothing.

    Args:
        prompts: name -> ``{prompt, words}``: where to look, and words whose factors are recorded. For a word of several
            tokens the first counts.
        top: number of tokens shown at either end.
        minimum: tokens to which the token head gives less than this are not ranked: their factors do not affect text.

    Attributes:
        results: run-record entries ``xray/<name>/<word>`` (factor) and ``xray/<name>/clamped``.
        samples: dicts with path ``xray``, setting (name), prompt and text (the table in one line).

    Written to the run directory: ``xray.csv`` and ``xray.svg``; a W&B logger gets the same rows and plots.
    """

    def __init__(
        self,
        *,
        prompts: Mapping[str, Annotated[Mapping[str, Any], Fields(Look)]],
        top: Count = 10,
        minimum: Fraction = 1e-4,
    ) -> None:
        super().__init__()
        self.prompts, self.top, self.minimum = dict(prompts), top, minimum
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Inspect, write the files, then log."""
        if trainer.state.fn != "validate":
            return
        self.run(pl_module, datamodule_of(trainer).vocabulary)
        if self.rows and trainer.is_global_zero:
            self.write_files(Path(trainer.default_root_dir))
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    self.log_to_wandb(logger)

    def run(self, module: Any, vocabulary: Any) -> None:
        """Recompute ``rows``, ``results`` and ``samples``."""
        self.results, self.samples, self.rows = {}, [], []
        for name, entry in self.prompts.items():
            picture = look(module, vocabulary.encode(entry["prompt"]))
            if picture is None:
                return
            words = {word: first_token(vocabulary, word) for word in entry.get("words", ())}
            rows = self._rows(name, picture, vocabulary, words)
            self.rows += rows
            for word, number in words.items():
                self._keep(f"xray/{name}/{word}", float(picture.factor_V[number]), "factor")
            self._keep(f"xray/{name}/clamped", picture.clamped, "share of vocabulary")
            text = "; ".join(
                f"{kind} " + ", ".join(f"{row['token']} x{row['factor']:.2f}" for row in rows if row["kind"] == kind)
                for kind in (BOOSTED, SUPPRESSED)
            )
            self.samples.append({"path": "xray", "setting": name, "prompt": entry["prompt"], "text": text})

    def _rows(self, name: str, picture: Picture, vocabulary: Any, words: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the rows of one prompt: the ends of the ranking, then the requested words."""
        likely = (picture.before_V >= self.minimum).nonzero().squeeze(1)
        ranked = likely[picture.factor_V[likely].argsort(descending=True)].tolist()
        top = min(self.top, len(ranked) // 2)
        chosen = [(BOOSTED, number) for number in ranked[:top]]
        chosen += [(SUPPRESSED, number) for number in reversed(ranked[len(ranked) - top :])]
        chosen += [(NAMED, number) for number in words.values()]
        return [
            {
                "prompt": name,
                "kind": kind,
                "id": number,
                "token": shown(vocabulary, number),
                "factor": float(picture.factor_V[number]),
                "probability_before": float(picture.before_V[number]),
                "probability_after": float(picture.after_V[number]),
                "idea_probability": float(picture.idea_V[number]),
            }
            for kind, number in chosen
        ]

    def _keep(self, name: str, value: float, unit: str) -> None:
        self.results[name] = MetricResult(value, unit, "none", 1, None, 1).to_dict()

    def write_files(self, folder: Path) -> None:
        """Write ``xray.csv`` and ``xray.svg``."""
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, COLUMNS)
        writer.writeheader()
        # a token may look like a formula
        writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in self.rows)
        write_atomic(folder / "xray.csv", table.getvalue())
        charts = [figure(rows, self.prompts[name]["prompt"]) for name, rows in self._by_prompt().items()]
        Sheet(charts, about="X-ray of the gate").save(folder / "xray.svg")

    def log_to_wandb(self, logger: WandbLogger) -> None:
        """Log the rows as a table and each prompt's plot."""
        import wandb

        logger.log_table("xray/table", columns=list(COLUMNS), data=[[row[key] for key in COLUMNS] for row in self.rows])
        for name, rows in self._by_prompt().items():
            logger.experiment.log({f"xray/{name}": wandb.Html(figure(rows, self.prompts[name]["prompt"]).svg)})

    def _by_prompt(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [row for row in self.rows if row["prompt"] == name] for name in self.prompts}


@torch.no_grad()
def look(module: Any, ids: Sequence[int]) -> Picture | None:
    """Return the gate's effect on the token after the prompt ``ids``; None for a model without a gate.

    The caller must put the module into evaluation mode.
    """
    ids_1T = torch.tensor([list(ids)], device=module.device)
    mask_1T = torch.ones_like(ids_1T, dtype=torch.bool)
    batch = {"input_ids_BT": ids_1T, "target_ids_BT": ids_1T, "mask_input_BT": mask_1T, "mask_target_BT": mask_1T}
    output = module(batch)
    idea_BTV = output.idea_BTV
    if idea_BTV is None:
        return None
    before_V = output.token_BTV[0, -1].cpu().double().softmax(-1)
    after_V = output.scores_BTV[0, -1].cpu().double().softmax(-1)
    idea_V = idea_BTV[0, -1]
    clamped = float(module.form.clamped(idea_V, module.alpha, module.beta, module.base_rate).double().mean())
    return Picture(before_V, after_V, idea_V.cpu().double().sigmoid(), clamped)


def first_token(vocabulary: Any, word: str) -> int:
    """Return the first token of a word within a sentence (after a space)."""
    return ids_behind(vocabulary, "a", [f" {word}"])[0][0]


def shown(vocabulary: Any, number: int) -> str:
    """Return the display form of a token; a pretrained head may have rows without a token."""
    names = vocabulary.tokens
    return readable(vocabulary.decode([number]), names[number]) if number < len(names) else f"<id {number}>"


def readable(token: str, raw: str) -> str:
    """Return the display form of a token: a leading space as a box, no control characters, partial ones in hex.

    Args:
        token: its text; empty for special tokens.
        raw: its name in the vocabulary, where byte-level BPE writes each byte as one visible character.
    """
    if "\ufffd" in token:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        if all(character in byte_of for character in raw):
            return "bytes " + " ".join(f"{byte_of[character]:02x}" for character in raw)
    shown = repr(token)[1:-1] if not token.isprintable() else token or raw
    return "\u2423" + shown[1:] if shown.startswith(" ") else shown


def figure(rows: Sequence[Mapping[str, Any]], prompt: str) -> Chart:
    """Return a chart of the factors after one prompt: one bar per token, on a log axis around 1, the largest on top.

    Args:
        rows: of ``XRay.rows``; a token that is both requested and among the strongest is drawn once, as the latter.
        prompt: the title.
    """
    kinds = (BOOSTED, NAMED, SUPPRESSED)
    tokens = {row["id"]: row for row in sorted(rows, key=lambda row: row["kind"] == NAMED, reverse=True)}
    bars = sorted(tokens.values(), key=lambda row: (kinds.index(row["kind"]), -row["factor"]))
    texts = Counter(row["token"] for row in bars)
    groups = []
    for row in bars:
        # different tokens may look the same
        label = row["token"] if texts[row["token"]] == 1 else f"{row['token']} (token {row['id']})"
        bar = Bar(f"series{kinds.index(row['kind'])}", row["factor"])
        groups.append(BarGroup(label, [bar], section=row["kind"]))
    factors = [row["factor"] for row in bars if row["factor"] > 0]
    low, high = min([0.5, *factors]), max([2.0, *factors])
    words = "probability with the gate over that without"
    return bar_chart(f"After: {prompt}", groups, measure=words, low=low, high=high, log=True, base=1.0)
