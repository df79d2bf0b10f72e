"""The bench shared by all methods of a task: splits, models, judges, budgets, decoding.

What is made once for many runs (adapters, judges, states) is a part: a folder named after its dependencies, made by
whichever run needs it first and read by the others.

Shape letters: N rows, V vocabulary, X tokens, D hidden size.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control import Control, Steered
from lit_ctg.control.base import added_ids
from lit_ctg.control.bundle import load
from lit_ctg.core.chat import chat_ids, text_ids
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.data.sample_text import sample_documents
from lit_ctg.errors import UserError
from lit_ctg.field.judge import BagJudge, EncoderJudge, Judge, Proof, balanced, prove, snippets, text_cost
from lit_ctg.field.measure import Overlap
from lit_ctg.field.task import Example, Task, class_counts, first_words, log_odds_words, passages
from lit_ctg.field.tune import Stream, check_kept, damaged, next_token_loss, optimise, read_kept
from lit_ctg.files import replacing, try_lock, wait_lock, write_atomic
from lit_ctg.network.huggingface import HuggingFaceBackbone, adapters_of, add_adapters, load_model, weights_digest
from lit_ctg.network.pretrained import Loading, origin
from lit_ctg.statistics import wilson_interval

_logger = logging.getLogger(__name__)

PART, WEIGHTS, BUNDLE = "part.json", "weights.pt", "control"
REMEDY = "set output_root=..."
# settings of a model's own that stay: where a text ends, and whether it keeps keys and values
KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
# words per class, for methods that steer by words
WORDS = 50
# words of a text on which a judge is tried: as long as ours, and half as long; and how many texts at most
LENGTHS, PROVEN = (60, 30), 400
# a budget is met within this share, or nearly so after so many looks; and the largest strength that is tried
CLOSE, LOOKS, LARGEST = 0.1, 8, 4096.0


@dataclass
class Arm:
    """How a method steers towards one class.

    Attributes:
        controls: act on the continuation.
        settings: strength -> settings of the controls, ``{"<control>.<setting>": value}``.
        prompt: (strength, number of the prompt, opening) -> ids in front of the continuation; None: the opening.
        copies: continuations that are written for each one that is kept.
        score: of continuations; the best is kept.
    """

    controls: Sequence[Control] = ()
    settings: Callable[[float], Mapping[str, Any]] = field(default=lambda strength: {})
    prompt: Callable[[float, int, str], list[int]] | None = None
    copies: int = 1
    score: Callable[[Sequence[str]], Sequence[float]] | None = None


def next_strength(known: Mapping[float, float], nats: float) -> float:
    """Return the strength to look at next for a budget: on the line through the two nearest looks, in logarithms.

    Args:
        known: strength -> nats by which it moves the next token, of one look or more.
    """
    moved = {value: max(own, 1e-9) for value, own in known.items()}
    near, *rest = sorted(moved, key=lambda value: abs(math.log(moved[value] / nats)))
    power = 2.0  # a small step moves the distribution by its square
    if rest and moved[rest[0]] != moved[near]:
        power = math.log(moved[rest[0]] / moved[near]) / math.log(rest[0] / near)
    guess = near * min(8.0, max(0.125, (nats / moved[near]) ** (1 / min(4.0, max(0.5, power)))))
    low = max((value for value in moved if moved[value] < nats), default=0.0)
    high = min((value for value in moved if moved[value] >= nats), default=math.inf)
    return min(guess if low < guess < high else math.sqrt(max(low, high / 64) * high), LARGEST)


def alike(one: Arm, other: Arm) -> bool:
    """Return whether two arms can write in one batch: by the same controls, which a row's settings direct."""
    return (
        [id(control) for control in one.controls] == [id(control) for control in other.controls]
        and (one.copies, one.prompt is None) == (other.copies, other.prompt is None)
    )  # fmt: skip


def by_row(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings of rows as a list for each key; None, the default, where a row has none."""
    return {
        key: [each.get(key) for each in settings] for key in dict.fromkeys(key for each in settings for key in each)
    }


class Parts:
    """Folders of what several runs share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, name: str, key: Mapping[str, Any], make: Callable[[Path, Path], Mapping[str, Any]]) -> Path:
        """Return the folder of a part, made now if missing.

        Args:
            key: plain values that it depends on.
            make: (folder to fill, path for a checkpoint) -> plain facts, stored in ``part.json``; ``seconds_before``,
                of earlier calls that the checkpoint continues, are added to its time.

        While another process makes it, this one waits.
        """
        text = json.dumps(key, sort_keys=True, default=str)
        folder = self.root / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if (folder / PART).is_file():
            return folder
        lock_file = folder.with_name(f".{folder.name}.lock")
        lock = try_lock(lock_file, remedy=REMEDY)
        if lock is None:
            _logger.warning("waiting: another process is making %s", folder)
            lock = wait_lock(lock_file, remedy=REMEDY)
        try:
            if not (folder / PART).is_file():
                with replacing(folder) as temporary:
                    temporary.mkdir()
                    checkpoint = folder.with_name(f".{folder.name}.ckpt")
                    began = time.monotonic()
                    facts = dict(make(temporary, checkpoint))
                    spent = time.monotonic() - began + facts.pop("seconds_before", 0.0)
                    facts.setdefault("seconds", round(spent, 3))
                    write_atomic(temporary / PART, json.dumps({"key": json.loads(text), **facts}, indent=1) + "\n")
        finally:
            lock.release()
        return folder


def facts(folder: Path) -> dict[str, Any]:
    """Return the stored facts of a part: its key, ``seconds`` and its maker's facts."""
    try:
        result: dict[str, Any] = json.loads((folder / PART).read_text(encoding="utf-8"))
        return {**result, "seconds": float(result["seconds"])}
    except (OSError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(folder / PART, error, folder) from None


class Bench:
    """Everything that the methods of one task share.

    Args:
        model: a pretrained model: a folder, a hub name or one of ``lit-ctg model list``.
        fluency: another one, which says how likely texts are; None: none does.
        judges: ``encoder``, ``steps``, ``batch``, ``learning_rate``.
        train: ``steps``, ``batch``, ``length``, ``learning_rate``, ``rank`` of what methods learn; ``texts`` of each
            class whose states are read.
        decode: ``choice`` and ``prompts`` (numbers of prompts), ``samples`` for each prompt of the report, ``words`` of
            a text, ``new_tokens``, ``top_k``, ``top_p``, ``batch``, ``contexts`` for budgets and side effects.
        seed: of the methods' training and of sampling.
        bundle: of the method ``bundle``: a folder; ``TARGET`` in it is replaced by the class.
    """

    def __init__(
        self,
        *,
        task: Task,
        parts: Parts,
        model: str,
        loading: Loading,
        fluency: str | None,
        judges: Mapping[str, Any],
        train: Mapping[str, Any],
        decode: Mapping[str, Any],
        seed: int,
        bundle: str | None = None,
    ) -> None:
        self.task, self.parts, self.seed, self.model_name, self.loading = task, parts, seed, model, loading
        self.fluency, self.judge_options, self.bundle = fluency, dict(judges), bundle
        self.train_options, self.decode = dict(train), dict(decode)
        self.training_seconds = 0.0  # of a method's training, even where it was trained before

    # models ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        where = self.model_name
        tokenizer = load_tokenizer(where, None, "model")
        if tokenizer.eos_token_id is None:
            raise UserError(f"model={where}: its tokenizer names no end token (eos_token), which ends the texts here")
        model = load_model(where, where="model", loading=self.loading).eval().requires_grad_(False)
        # sampling is as ``decode`` says, whatever the model's own configuration asks for
        kept = {name: getattr(model.generation_config, name) for name in KEPT}
        model.generation_config = type(model.generation_config)(**kept)
        return model, tokenizer

    @property
    def model(self) -> Any:
        """The base model, frozen."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> Any:
        return self._loaded[1]

    @cached_property
    def start(self) -> list[int]:
        """The ids that the tokenizer puts before a text."""
        return added_ids(self.tokenizer)[0]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the base model's ids of each text, after its start."""
        return [[*self.start, *row] for row in text_ids(self.tokenizer, texts)]

    def class_ids(self, label: str) -> list[list[int]]:
        """Return the base model's ids of each training passage of a class."""
        return self.ids(self.task.texts("train", label))

    def some_ids(self, label: str) -> list[list[int]]:
        """Return the base model's ids of the training passages of a class whose states are read."""
        return self.ids(self.task.some("train", label, int(self.train_options["texts"])))

    def asked(self, instruction: str, opening: str) -> list[int]:
        """Return the ids of a chat with an instruction, whose answer begins with the opening."""
        return [*chat_ids(self.tokenizer, instruction, None, "method"), *text_ids(self.tokenizer, [opening])[0]]

    @cached_property
    def identity(self) -> dict[str, str]:
        """What texts and measures depend on besides the settings, for the record: corpus and weights."""
        where = origin(self.model_name)
        return {
            "text": self.task.data.checksum(),
            "passages": self.task.checksum,
            "model": self.model_name,
            **({"origin": where} if where else {}),
            "weights": self.weights,
        }

    @cached_property
    def weights(self) -> str:
        """SHA-256 of the base model's weights."""
        return weights_digest(self.model)

    def backbone(self) -> HuggingFaceBackbone:
        """Return a frozen copy of the base model for a paper's module."""
        return HuggingFaceBackbone(path=self.model_name, where="model")

    @property
    def head_size(self) -> int:
        """The number of tokens that the base model scores."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    # training of methods ----------------------------------------------------------------------------------------------

    def learn(
        self,
        name: str,
        key: Mapping[str, Any],
        trained: Mapping[str, Tensor],
        train: Callable[[Path], Mapping[str, Any]],
    ) -> None:
        """Train tensors in place and keep them, or read those that were kept before; the time is counted.

        Args:
            train: path for a checkpoint -> plain facts (see ``Parts.get``).
        """

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            result = dict(train(checkpoint))
            torch.save({each: value.detach() for each, value in trained.items()}, folder / WEIGHTS)
            return result

        folder = self._part(name, key, make)
        kept = check_kept(read_kept(folder / WEIGHTS, folder), trained, folder / WEIGHTS, folder)
        with torch.no_grad():
            for each, value in trained.items():
                value.copy_(kept[each])

    def kept(self, name: str, key: Mapping[str, Any], make: Callable[[], Control]) -> Control:
        """Return a control that is made once and kept as a bundle; the time is counted."""

        def fill(folder: Path, checkpoint: Path) -> dict[str, Any]:
            make().save_pretrained(folder / BUNDLE)
            return {}

        return load(self._part(name, key, fill) / BUNDLE)

    def _part(self, name: str, key: Mapping[str, Any], make: Callable[[Path, Path], Mapping[str, Any]]) -> Path:
        shared = {"weights": self.weights, "texts": self.task.checksum, "train": self.train_options, "seed": self.seed}
        folder = self.parts.get(name, {**shared, **key}, make)
        self.training_seconds += facts(folder)["seconds"]
        return folder

    def train(
        self,
        name: str,
        key: Mapping[str, Any],
        parameters: Mapping[str, nn.Parameter],
        loss_of: Callable[[np.random.Generator], Tensor],
        learning_rate: float,
    ) -> None:
        """Train parameters in place as ``train`` says, or read those that were kept before."""

        def train(checkpoint: Path) -> dict[str, float]:
            return optimise(
                parameters.values(),
                loss_of,
                steps=int(self.train_options["steps"]),
                learning_rate=learning_rate,
                weight_decay=0.0,
                seed=self.seed,
                checkpoint=checkpoint,
            )

        self.learn(name, {**key, "learning_rate": learning_rate}, parameters, train)

    @cached_property
    def adapters(self) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """Class -> LoRA adapters trained on its texts (path of a layer -> A and B), shared by all methods."""
        found = {}
        for label in self.task.targets:
            model = copy.deepcopy(self.model)
            torch.manual_seed(self.seed)  # adapters start from random numbers
            add_adapters(model, {"rank": int(self.train_options["rank"]), "alpha": 2 * int(self.train_options["rank"])})
            trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
            for value in trained.values():  # small updates are lost in half precision
                value.data = value.data.float()
            stream, batch = self.stream(label), int(self.train_options["batch"])

            def loss_of(
                generator: np.random.Generator, model: Any = model, stream: Stream = stream, batch: int = batch
            ) -> Tensor:
                return next_token_loss(model, stream.windows(generator, batch))

            self.train("lora", {"label": label}, trained, loss_of, float(self.train_options["learning_rate"]))
            found[label] = {path: (down.float(), up.float()) for path, (down, up) in adapters_of(model).items()}
        return found

    def experts(self) -> dict[str, Any]:
        """Return class -> a copy of the base model with the class's adapters added to its weights."""
        found = {}
        for label, adapters in self.adapters.items():
            found[label] = copy.deepcopy(self.model)
            for path, (down_RI, up_OR) in adapters.items():
                weight = found[label].get_submodule(path).weight
                update = up_OR @ down_RI
                # GPT-2 stores its matrices transposed
                weight.data += (update if update.shape == weight.shape else update.T).to(weight)
        return found

    def stream(self, label: str | None = None) -> Stream:
        """Return the training texts (of one class) as a stream of the base model's ids."""
        texts = [example.text for example in self.task.examples("train", label)]
        return Stream(self.tokenizer, texts, int(self.train_options["length"]), start=self.start)

    @cached_property
    def word_lists(self) -> dict[str, list[str]]:
        """Class -> the words that most set it apart in the training texts."""
        counts = class_counts(self.task.examples("train"))
        return {label: log_odds_words(counts, label, WORDS) for label in self.task.targets}

    @cached_property
    def classifier(self) -> BagJudge:
        """A classifier of the training texts, which shares none with the judges."""
        return BagJudge(balanced(self.task.examples("train"), 0), 0)

    # judging ---------------------------------------------------------------------------------------------------------

    @property
    def lengths(self) -> tuple[int, int]:
        longest = int(self.decode["words"])
        return max(4, longest // 2), longest

    @cached_property
    def judges(self) -> list[Judge]:
        """Both judges."""
        options = self.judge_options
        # whole passages: pieces of them make short reviews count twice (0.71 right on stars in place of 0.79)
        known = balanced(self.task.examples("judge"), 0)

        torch.manual_seed(0)
        encoder = EncoderJudge(str(options["encoder"]), self.task.targets)

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            sizes = {key: options[key] for key in ("steps", "batch", "learning_rate")}
            encoder.fit(known, **sizes, seed=0, checkpoint=checkpoint)
            encoder.save(folder)
            return {"texts": len(known)}

        folder = self.parts.get("judge", {"texts": self.task.checksum, "options": options, "whole": True}, make)
        return [BagJudge(known, 0), encoder.load(folder)]

    @cached_property
    def proofs(self) -> dict[str, dict[int, Proof]]:
        """Judge -> words of a text -> results on human passages.

        Raises:
            UserError: a judge is not accurate enough for the task.
        """

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            found: dict[str, dict[int, Any]] = {}
            for judge in self.judges:
                for words in LENGTHS:
                    pieces = snippets(balanced(self.task.examples("report"), 0)[:PROVEN], words, words, 1, 0)
                    proof = prove(judge, pieces)
                    found.setdefault(judge.name, {})[words] = [proof.recall, proof.right, proof.of]
            return {"proofs": found}

        key = {"texts": self.task.checksum, "options": self.judge_options, "whole": True}
        kept = facts(self.parts.get("proof", key, make))["proofs"]
        proofs = {
            name: {
                int(words): Proof(recall, right, of, wilson_interval(right, of))
                for words, (recall, right, of) in own.items()
            }
            for name, own in kept.items()
        }
        poor = [f"{name} {own[LENGTHS[0]].balanced:.2f}" for name, own in proofs.items()
                if own[LENGTHS[0]].balanced < self.task.least_accuracy]  # fmt: skip
        if poor:
            raise UserError(
                f"task {self.task.name}: judges are right too rarely on human texts ({', '.join(poor)}): give more "
                f"text, classes that differ more, or task.least_accuracy below {self.task.least_accuracy:g}"
            )
        return proofs

    @cached_property
    def overlap(self) -> Overlap:
        """Measures what was copied from the training texts."""
        return Overlap([example.text for example in self.task.examples("train")])

    @cached_property
    def _reader(self) -> tuple[Any, Any] | None:
        if self.fluency is None:
            return None
        model = load_model(self.fluency, where="fluency", loading=self.loading).eval().requires_grad_(False)
        return model, load_tokenizer(self.fluency, None, "fluency")

    def cost(self, prompts: Sequence[str], texts: Sequence[str]) -> list[float | None]:
        """Return nats of continuations under the other model; None where there is none."""
        if self._reader is None:
            return [None] * len(texts)
        return [round(nats, 3) for nats, _ in text_cost(*self._reader, prompts, texts)]

    # decoding --------------------------------------------------------------------------------------------------------

    def prompts(self, split: str) -> list[tuple[str, Example]]:
        """Return the prompts of ``choice`` or ``report`` with the human passages that they begin."""
        return self.task.prompts(split, int(self.decode["choice" if split == "choice" else "prompts"]))

    def prompt(self, arm: Arm, strength: float, place: int, opening: str) -> list[int]:
        """Return the ids in front of a continuation."""
        return self.ids([opening])[0] if arm.prompt is None else arm.prompt(strength, place, opening)

    def write(self, arm: Arm, strength: float, split: str, most: int | None = None) -> tuple[list[str], float, int]:
        """Continue every prompt of a split under an arm (see ``write_all``).

        Returns:
            texts in the order of the prompts, with a prompt's samples adjacent; CPU seconds; tokens written.
        """
        (texts,), spent, tokens = self.write_all([(arm, strength)], split, most)
        return texts, spent, tokens

    def write_all(
        self, ways: Sequence[tuple[Arm, float]], split: str, most: int | None = None
    ) -> tuple[list[list[str]], float, int]:
        """Continue every prompt of a split under each of several arms with the same controls, in common batches.

        Row ``place * samples + copy`` draws the same random numbers for every method and strength.

        Args:
            ways: arms, and the strength of each.
            most: tokens of a text; None: ``decode.new_tokens``.

        Returns:
            texts of each arm, as ``write`` returns them; CPU seconds; tokens written by all.
        """
        one, prompts = ways[0][0], self.prompts(split)
        samples = (1 if split == "choice" else int(self.decode["samples"])) * one.copies
        steered = Steered(self.model, list(one.controls), tokenizer=self.tokenizer)
        new_tokens = int(self.decode["new_tokens"]) if most is None else most
        options = {name: self.decode[name] for name in ("top_k", "top_p")}
        # nothing ends early: short texts cost less, and what learns from passages learns that they are cut
        options |= {"do_sample": True, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        rows = [(arm, strength, row) for arm, strength in ways for row in range(len(prompts) * samples)]
        texts, tokens, began = list[str](), 0, time.process_time()
        for first in range(0, len(rows), int(self.decode["batch"])):
            chosen = rows[first : first + int(self.decode["batch"])]
            ids = [self.prompt(arm, strength, row // samples, prompts[row // samples][0])
                   for arm, strength, row in chosen]  # fmt: skip
            settings = by_row([arm.settings(strength) for arm, strength, _ in chosen])
            made = steered.generate(ids, settings, seed=self.seed, rows=[row for _, _, row in chosen],
                                    reply_only=one.prompt is not None, **options)  # fmt: skip
            new = made[:, max(map(len, ids)) :].tolist()
            tokens += sum(map(len, new))
            texts += [steered.continuation(*both) for both in zip(ids, new, strict=True)]
        spent = time.process_time() - began
        found, each = [], len(prompts) * samples
        for (arm, _), start in zip(ways, range(0, len(texts), each), strict=True):
            own = [first_words(text, int(self.decode["words"])) for text in texts[start : start + each]]
            if arm.score is not None:
                groups = [own[place : place + arm.copies] for place in range(0, len(own), arm.copies)]
                own = [group[int(np.argmax(arm.score(group)))] for group in groups]
            found.append(own)
        return found, spent, tokens // one.copies

    @torch.no_grad()
    def next_token(self, arm: Arm, strength: float, contexts: Sequence[str]) -> Tensor:
        """Return the log-probabilities [N, V] of the token after each context under an arm."""
        steered = Steered(self.model, list(arm.controls), tokenizer=self.tokenizer)
        rows = []
        for first in range(0, len(contexts), int(self.decode["batch"])):
            part = contexts[first : first + int(self.decode["batch"])]
            ids = [self.prompt(arm, strength, first + place, text) for place, text in enumerate(part)]
            made = steered.generate(ids, arm.settings(strength), reply_only=arm.prompt is not None, max_new_tokens=1,
                                    do_sample=False, output_scores=True, return_dict_in_generate=True)  # fmt: skip
            rows.append(made.scores[0].float().log_softmax(-1))
        return torch.cat(rows)

    def strengths(self, arm: Arm, budgets: Sequence[float]) -> list[float]:
        """Return the strengths at which an arm's controls move the next token's distribution by budgets of nats.

        The divergence is the mean KL(steered, not steered) after human texts of the split ``choice``, cut anywhere. For
        a budget that no strength reaches, the largest one tried is returned.

        Args:
            budgets: ascending.
        """
        examples = snippets(self.task.examples("choice"), self.task.prompt_words, self.lengths[1] // 2, 1, 1)
        order = np.random.default_rng(0).permutation(len(examples))[: int(self.decode["contexts"])]
        contexts = [examples[place].text for place in order]
        bare_NV = self.next_token(Arm(prompt=arm.prompt), 1.0, contexts)
        known: dict[float, float] = {}  # strength -> nats
        value, found = 1.0, list[float]()
        for nats in budgets:
            for _ in range(LOOKS):
                value = next_strength(known, nats) if known else 1.0
                if value not in known:
                    steered_NV = self.next_token(arm, value, contexts)
                    apart_NV = steered_NV.exp() * (steered_NV - bare_NV).nan_to_num(0.0, neginf=0.0)
                    known[value] = float(apart_NV.sum(1).mean())
                beyond = known[value] < nats and value >= LARGEST
                best = value if beyond else min(known, key=lambda each: abs(math.log(max(known[each], 1e-9) / nats)))
                if beyond or abs(known[best] / nats - 1) < CLOSE:
                    break
            found.append(float(f"{best:.4g}"))
        return found

    def side_effects(self, arm: Arm, strength: float, reference: Arm) -> dict[str, float]:
        """Return what an arm does to text that has nothing to do with the task, beside its reference without it.

        Returns:
            ``nats``: more nats for the tokens of unrelated human text (books of the package's sample) than the
            reference gives; ``changed``: share of its greedy continuations of 8 tokens that differ.
        """
        text = " ".join(each.text for each in sample_documents("books", "val", size=900))
        count, words = int(self.decode["contexts"]), passages(text, 24)
        pairs = [(first_words(own, 16), first_words(own, 17)) for own in words][:count]
        contexts = [context for context, _ in pairs]
        following = [text_ids(self.tokenizer, [longer[len(context) :]])[0][0] for context, longer in pairs]
        places = torch.arange(len(contexts))
        own, other = (
            -self.next_token(each, value, contexts)[places, following].clamp(min=-20.0)
            for each, value in ((arm, strength), (reference, 1.0))
        )
        greedy = []
        for each, value in ((arm, strength), (reference, 1.0)):
            steered = Steered(self.model, list(each.controls), tokenizer=self.tokenizer)
            ids = [self.prompt(each, value, place, text) for place, text in enumerate(contexts)]
            made = steered.generate(ids, each.settings(value), reply_only=each.prompt is not None, do_sample=False,
                                    max_new_tokens=8)  # fmt: skip
            greedy.append(made[:, max(map(len, ids)) :].tolist())
        changed = [one != two for one, two in zip(*greedy, strict=True)]
        return {"nats": float((own - other).mean()), "changed": sum(changed) / len(changed)}
