"""The methods of the field: for each class an arm, made of the training texts.

A method is a function from the bench to an arm for each class, and a row of ``METHODS``. Its equation is a control
(``lit_ctg/control`` or ``papers/<paper>/control.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control import Control
from lit_ctg.control.bundle import load
from lit_ctg.control.class_models import Experts, GenerativeClassifier
from lit_ctg.control.future import Future, FutureClassifier
from lit_ctg.control.gradient import Gradient
from lit_ctg.control.lora import LoRA
from lit_ctg.control.memory import MIXTURES, Memory, buckets
from lit_ctg.control.token_bias import TokenBias, log_odds
from lit_ctg.control.vectors import of_texts
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError, check_known, refuse
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.task import NEUTRAL
from lit_ctg.field.tune import batch_of, optimise
from lit_ctg.papers.control_code.adapter import CodeAdapterModule
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.idea_gate import IdeaGateModule
from lit_ctg.papers.idea_gate.control import of_run
from lit_ctg.papers.semantic_fusion.control import LexiconSteering
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon

# budgets: nats by which each control moves the next token's distribution
BUDGETS = (0.25, 1.0, 4.0)
# wordings of an instruction; the task's request replaces {}
WORDINGS = ("Write {}.", "Continue a text. The text is {}.", "I collect good examples of {}. Write one.")
EXAMPLES = (1.0, 2.0, 4.0)
BEST_OF = 4
# FUDGE's classifier, which takes ten small steps for each step of the others
FUTURE = {"dim": 64, "batch": 32, "learning_rate": 2e-3, "longest": 80, "candidates": 200}
Arms = dict[str, Arm]


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        needs: the data that it needs.
        arms: bench -> class -> arm.
        tries: strengths, of which one is chosen; None: those at ``BUDGETS``.
        reference: the method that it is compared with: the same format without the class.
    """

    needs: str
    arms: Callable[[Bench], Arms]
    tries: Sequence[float] | None = None
    reference: str = "bare"


# prompts --------------------------------------------------------------------------------------------------------------


def _instructed(bench: Bench, what: str) -> Arm:
    def prompt(wording: float, place: int, opening: str) -> list[int]:
        return bench.asked(WORDINGS[int(wording) - 1].format(bench.task.asks[what]), opening)

    return Arm(prompt=prompt)


def _of_each(make: Callable[[Bench, str], Arm]) -> Callable[[Bench], Arms]:
    """Return the arms of a method that makes each class's by itself."""
    return lambda bench: {label: make(bench, label) for label in bench.task.targets}


def _examples(bench: Bench, label: str) -> Arm:
    """Put training passages of the class before the opening; the strength is their number."""
    rows, end = bench.class_ids(label), [bench.tokenizer.eos_token_id]

    def prompt(strength: float, place: int, opening: str) -> list[int]:
        # each prompt has its own examples, in the same order at every strength
        chosen = np.random.default_rng([bench.seed, place]).permutation(len(rows))[: int(strength)]
        return [number for row in (rows[each] + end for each in chosen) for number in row] + bench.ids([opening])[0]

    return Arm(prompt=prompt)


def _best_of(bench: Bench, label: str) -> Arm:
    return Arm(copies=BEST_OF, score=lambda texts: bench.classifier.log_odds(texts, label))


# controls -------------------------------------------------------------------------------------------------------------


def steering(control: Control, label: str) -> Arm:
    """Return the arm of a control whose strength is swept, towards a class where it has several."""
    known = {setting.name for setting in control.settings}
    toward = {f"{control.name}.{name}": 1 for name in (f"to_{label}", label) if name in known}
    return Arm([control], lambda strength: {f"{control.name}.{control.strength}": strength, **toward})


def _one(make: Callable[[Bench], Control]) -> Callable[[Bench], Arms]:
    """Return the arms of a method whose control has a setting for each class."""

    def arms(bench: Bench) -> Arms:
        control = make(bench)
        return {label: steering(control, label) for label in bench.task.targets}

    return arms


def _class(make: Callable[[Bench, str], Control]) -> Callable[[Bench], Arms]:
    """Return the arms of a method with a control for each class."""
    return lambda bench: {label: steering(make(bench, label), label) for label in bench.task.targets}


def _log_odds(bench: Bench) -> Control:
    ids = {label: torch.from_numpy(bench.stream(label).ids) for label in bench.task.targets}
    counts_CV = torch.stack([torch.bincount(each, minlength=bench.head_size) for each in ids.values()])
    return TokenBias(dict(zip(ids, log_odds(counts_CV, 0.5), strict=True)))


def _lexicon(bench: Bench, label: str) -> Control:
    words = bench.word_lists[label]
    refuse({f"no word sets {label} apart in the training texts: give more text": not words})
    return LexiconSteering(Lexicon.of(words, {label: [1.0] * len(words)}, [""] * len(words)), gain=1.0)


def _memory(bench: Bench, label: str) -> Control:
    ngram = NgramModel.count(bench.class_ids(label), bench.head_size, order=3)
    return Memory(ngram, weights={mixture: torch.ones(buckets(3)) for mixture in MIXTURES})


def _graphmax(bench: Bench, label: str) -> Control:
    return Graphmax.counted(bench.class_ids(label), bench.head_size, variant="successor_divergence")


def _fudge(bench: Bench) -> Control:
    """Train p(class | prefix) on the training passages; a tenth of each class's is held out to stop in time."""
    targets, longest = bench.task.targets, int(FUTURE["longest"])
    torch.manual_seed(bench.seed)
    classifier = FutureClassifier(bench.head_size, len(targets), int(FUTURE["dim"]))

    def train(checkpoint: Path) -> dict[str, float]:
        parts = [_split(bench.class_ids(target), longest) for target in targets]

        def loss_of(generator: np.random.Generator) -> Tensor:
            label_B = generator.integers(0, len(parts), size=int(FUTURE["batch"]))
            rows = [parts[label][0][generator.integers(0, len(parts[label][0]))] for label in label_B]
            return prefix_loss(classifier, torch.stack(rows), torch.from_numpy(label_B))

        def held_out() -> float:
            losses = [float(prefix_loss(classifier, tried[:256], torch.full((len(tried[:256]),), label)))
                      for label, (_, tried) in enumerate(parts)]  # fmt: skip
            return sum(losses) / len(losses)

        return optimise(
            classifier.parameters(), loss_of, steps=10 * int(bench.train_options["steps"]), seed=bench.seed,
            learning_rate=FUTURE["learning_rate"], checkpoint=checkpoint, held_out=held_out,
        )  # fmt: skip

    bench.learn("fudge", {"classifier": FUTURE, "targets": list(targets)}, classifier.state_dict(), train)
    return Future(classifier, targets, candidates=int(FUTURE["candidates"]))


def _split(rows: Sequence[Sequence[int]], longest: int) -> tuple[Tensor, Tensor]:
    """Return the ids [X, T] of passages to train on, -1 after the end of a text, and of the last tenth, held out.

    A class of one passage trains on what it holds out.
    """
    ids = torch.full((len(rows), longest), -1)
    for place, row in enumerate(rows):
        ids[place, : min(len(row), longest)] = torch.tensor(row[:longest], dtype=torch.long)
    tried = max(1, len(rows) // 10)
    return ids[:-tried] if len(rows) > 1 else ids, ids[-tried:]


def prefix_loss(classifier: FutureClassifier, ids_BT: Tensor, label_B: Tensor) -> Tensor:
    """Return the mean cost, nats, of the label over all prefixes; positions with id -1 do not count."""
    log_p_BTC = classifier(ids_BT)
    real_BT = ids_BT >= 0
    cost_BT = nn.functional.nll_loss(
        log_p_BTC.transpose(1, 2), label_B.unsqueeze(1).expand_as(ids_BT), reduction="none"
    )
    return (cost_BT * real_BT).sum() / real_BT.sum()


def _vector(bench: Bench) -> Control:
    texts = {label: bench.some_ids(label) for label in bench.task.targets}
    return bench.kept("vector", {"random": True}, lambda: of_texts(bench.model, bench.tokenizer, texts))


def _gradient(bench: Bench) -> Control:
    """Fit a probe on the last states of training passages."""
    from sklearn.linear_model import LogisticRegression

    targets = bench.task.targets

    @torch.no_grad()
    def fitted() -> Control:
        rows = [(row, label) for label in targets for row in bench.some_ids(label)]
        states = [bench.model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0].float() for row, _ in rows]
        labels = [label for (_, label), state_TD in zip(rows, states, strict=True) for _ in state_TD]
        probe = LogisticRegression(max_iter=200, C=0.01).fit(torch.cat(states).numpy(), labels)
        weight_CD, bias_C = torch.from_numpy(probe.coef_), torch.from_numpy(probe.intercept_)
        if len(targets) == 2:  # the library keeps one row of two
            weight_CD, bias_C = (torch.cat([-each, each]) / 2 for each in (weight_CD, bias_C))
        return Gradient(weight_CD, bias_C, [str(label) for label in probe.classes_])

    return bench.kept("gradient", {"random": True}, fitted)


def _codes(bench: Bench, injection: str) -> Control:
    """Train the control-code paper's adapter on the frozen model, on windows of every class in equal parts."""
    targets = bench.task.targets
    prompt = injection == "prompt"
    module = CodeAdapterModule(
        vocabulary=HuggingFaceTokenizer.of(bench.tokenizer), backbone=bench.backbone(), corpus=bench.task.name,
        codes=len(targets), injection=injection, code_dim=1 if prompt else 8, layers=[] if prompt else None,
        output=prompt, seed=bench.seed, learning_rate=0.0, weight_decay=0.0, warmup_fraction=0.0,
    )  # fmt: skip
    module.bind(targets)
    if prompt:
        module.places = min(8, int(bench.train_options["length"]) // 2)
        # initialised with tokens of the class
        first = [torch.tensor(bench.stream(label).ids[1 : module.places + 1]) for label in targets]
        module.prompts = nn.Parameter(module.backbone.embed(torch.stack(first)).detach().clone())
    streams, each = [bench.stream(label) for label in targets], int(bench.train_options["batch"])
    class_B = torch.arange(len(targets)).repeat_interleave(each)

    def loss_of(generator: np.random.Generator) -> Tensor:
        ids_BT = torch.cat([stream.windows(generator, each) for stream in streams])
        return module.losses({**batch_of(ids_BT[:, : ids_BT.shape[1] - module.places]), "control_code_B": class_B})[
            "loss"
        ]

    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    bench.train(injection, {"targets": list(targets), "places": module.places}, trained, loss_of, 5e-3)
    return module.control()


def _idea_gates(bench: Bench) -> Arms:
    """Count what the texts of each class bring (the lift gate without training): alpha and beta are swept together."""
    vocabulary, backbone = HuggingFaceTokenizer.of(bench.tokenizer), bench.backbone()
    everything, arms = bench.stream().ids, {}
    for label in bench.task.targets:
        torch.manual_seed(bench.seed)
        module = IdeaGateModule(
            vocabulary=vocabulary, backbone=backbone, gated=True, clamp="after_scaling", alpha=0.5, beta=-2.0,
            epsilon=1e-8, window=20, window_start=1, positive_weight=5.0, idea_weight=0.01, idea_bias="token_rate",
            stopwords="frequent", stopword_count=50, lift=True, neutral_stopwords=True, alpha_ramp_fraction=0.0,
            learning_rate=0.0, final_fraction=0.0, weight_decay=0.0, warmup_fraction=0.0,
        )  # fmt: skip
        module.count_text(bench.stream(label).ids, everything)
        control = of_run(module.eval(), None, None)
        own = {f"{control.name}.{setting.name}": setting.default for setting in control.settings}
        arms[label] = Arm([control], partial(_times, own))
    return arms


def _times(settings: Mapping[str, Any], strength: float) -> dict[str, Any]:
    return {name: strength * value for name, value in settings.items()}


def _carried(bench: Bench, label: str) -> Control:
    if bench.bundle is None:
        raise UserError("method=bundle: give bundle=<folder of lit-ctg export>; TARGET in it is replaced by the class")
    return load(bench.bundle.replace("TARGET", label))


NOTHING, COUNTS, TEXTS = "nothing", "texts of the classes (counted)", "texts of the classes (trained)"
METHODS: dict[str, Method] = {
    "bare": Method(NOTHING, _of_each(lambda bench, label: Arm()), (1.0,)),
    "neutral": Method(
        NOTHING, _of_each(lambda bench, label: _instructed(bench, NEUTRAL)), (1.0,), "neutral"
    ),
    "instruction": Method("a sentence", _of_each(_instructed), (1.0, 2.0, 3.0), "neutral"),
    "examples": Method("1 to 4 texts", _of_each(_examples), EXAMPLES),
    "best_of": Method(TEXTS, _of_each(_best_of), (1.0,)),
    "log_odds": Method(COUNTS, _one(_log_odds)),
    "lexicon": Method(COUNTS, _class(_lexicon)),
    "memory": Method(COUNTS, _class(_memory)),
    "graphmax": Method(COUNTS, _class(_graphmax)),
    "idea_gate": Method(COUNTS, _idea_gates),
    "fudge": Method(TEXTS, _one(_fudge)),
    "vector": Method("100 texts of each class", _one(_vector)),
    "gradient": Method(TEXTS, _one(_gradient)),
    "lora": Method(TEXTS, _class(lambda bench, label: LoRA(bench.adapters[label]))),
    "dexperts": Method(TEXTS, _one(lambda bench: Experts(bench.experts()))),
    "gedi": Method(TEXTS, _one(lambda bench: GenerativeClassifier(bench.experts()))),
    "soft_prompt": Method(TEXTS, _one(lambda bench: _codes(bench, "prompt"))),
    "neuron_codes": Method(TEXTS, _one(lambda bench: _codes(bench, "neuron"))),
    "bundle": Method("a bundle", _class(_carried)),
}  # fmt: skip


def method_named(name: str) -> Method:
    """Return a method; ``instruction+<control>`` is a control under the first wording of the instruction.

    Raises:
        UserError: no such method, or one that has no control after ``instruction+``.
    """
    first, plus, second = name.partition("+")
    check_known("method", first, METHODS)
    if not plus:
        return METHODS[first]
    check_known("method", second, METHODS)
    if first != "instruction" or METHODS[second].tries is not None:
        known = ", ".join(key for key, each in METHODS.items() if each.tries is None)
        raise UserError(f"method={name}: give instruction+<control>, a control of {known}")

    def arms(bench: Bench) -> Arms:
        def asked(what: str, strength: float, place: int, opening: str) -> list[int]:
            return bench.asked(WORDINGS[0].format(bench.task.asks[what]), opening)

        made = METHODS[second].arms(bench)
        return {label: replace(arm, prompt=partial(asked, label)) for label, arm in made.items()}

    return Method(METHODS[second].needs, arms, None, "neutral")


def complete() -> list[str]:
    """Return the methods that need no further settings: the meaning of ``all``."""
    return [name for name in METHODS if name != "bundle"]
