"""The bench shared by all methods of a task: splits, base model, independent model, judges, decoding, measures.

What is made once for many runs (models, the judges' proofs) is a part: a folder named after its dependencies, made by
whichever run needs it first and read by the others.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control import Control, Steered
from lit_ctg.control.base import added_ids
from lit_ctg.core.chat import chat_ids, text_ids
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError
from lit_ctg.field.judge import (
    BagJudge,
    Judge,
    NeuralJudge,
    Proof,
    RuleJudge,
    WordJudge,
    judging_texts,
    prove,
    proving_texts,
)
from lit_ctg.field.measure import Overlap, text_cost
from lit_ctg.field.task import Example, Task, class_counts, log_odds_words
from lit_ctg.field.tune import Stream, check_kept, damaged, make_gpt2, make_tokenizer, optimise, read_kept, train_model
from lit_ctg.files import replacing, try_lock, wait_lock, write_atomic
from lit_ctg.network.huggingface import HuggingFaceBackbone, load_model, weights_digest
from lit_ctg.network.pretrained import PLAIN, Loading, origin

_logger = logging.getLogger(__name__)

PART, WEIGHTS = "part.json", "weights.pt"
REMEDY = "set output_root=..."
# settings of a model's own that stay: where a text ends, and whether it keeps keys and values
KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
# those that ``Bench.write`` sets
OURS = ("do_sample", "top_p", "top_k", "max_length", "max_new_tokens", "min_new_tokens")
# words per class, for methods that steer by words and for the measure of attribute words
WORDS = 50


@contextlib.contextmanager
def _unchanged(strength: float) -> Iterator[None]:
    yield


@dataclass
class Arm:
    """How a method steers towards one class.

    Attributes:
        model: a Hugging Face causal language model.
        settings: strength -> settings of the controls, ``{"<control>.<setting>": value}``.
        prefix: (strength, index of the prompt) -> text before the prompt that is not part of the result.
        at: strength -> context in which the model has that strength (for moved weights).
    """

    model: Any
    controls: Sequence[Control] = ()
    settings: Callable[[float], Mapping[str, Any]] = field(default=lambda strength: {})
    prefix: Callable[[float, int], str] = field(default=lambda strength, place: "")
    at: Callable[[float], AbstractContextManager[None]] = _unchanged


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


def _load_part(folder: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a part."""
    try:
        model = load_model(str(folder), where="model").eval().requires_grad_(False)
        return model, load_tokenizer(str(folder), None, "model")
    except UserError as error:
        raise damaged(folder, error, folder) from None


def _weights_checksum(folder: Path) -> str:
    """Return the SHA-256 of the weights of a model that is a part."""
    path = folder / "model.safetensors"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise damaged(path, error.strerror, folder) from None


class Bench:
    """Everything that the methods of one task share.

    Args:
        base: ``layers``, ``dim``, ``heads``, ``vocabulary``, ``steps``, ``batch``, ``length``, ``learning_rate`` of the
            base model that is trained here.
        fluency: ``steps`` of the independent language model, which is otherwise like the base.
        judges: ``steps`` (of the neural one), ``each`` (snippets per passage), ``least_accuracy``, ``seed``.
        tune: ``steps``, ``batch``, ``learning_rate`` of the methods' fine-tuning.
        decode: ``prompts``, ``samples`` (per prompt and class), ``new_tokens``, ``min_new_tokens`` (a text does not end
            before), ``top_p``, ``top_k`` (0: all tokens), ``batch``.
        seed: of the methods' training and of sampling.
        model: a pretrained model (folder, hub name or one of ``lit-ctg model list``) instead of the base model trained
            here.
        chat: of an instruct model, ``system``: a prompt is then a message, which it answers; the system message may ask
            to continue the text. None: it continues the prompt.
    """

    def __init__(
        self,
        *,
        task: Task,
        parts: Parts,
        base: Mapping[str, Any],
        fluency: Mapping[str, Any],
        judges: Mapping[str, Any],
        tune: Mapping[str, Any],
        decode: Mapping[str, Any],
        seed: int,
        model: str | None = None,
        loading: Loading = PLAIN,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        self.chat = chat
        self.task, self.parts, self.seed, self.model_name, self.loading = task, parts, seed, model, loading
        self.base_options, self.fluency_options = dict(base), dict(fluency)
        self.judge_options, self.tune_options, self.decode_options = dict(judges), dict(tune), dict(decode)
        self.training_seconds = 0.0  # of a method's training, even where it was trained before

    # models ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self.task.identity()

    @cached_property
    def base_folder(self) -> Path | None:
        """The folder of the base model trained here, in Hugging Face's format; None where ``model`` names another."""
        return (
            None if self.model_name is not None else self._language_model("base", "train", self.base_options["steps"])
        )

    def _language_model(self, name: str, split: str, steps: int) -> Path:
        options = {**self.base_options, "steps": steps}
        key = {"texts": self.task.checksum(split), "options": options}  # tasks on the same texts share their models

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            texts = self.task.texts(split)
            tokenizer = make_tokenizer(texts, options["vocabulary"])
            model = make_gpt2(
                len(tokenizer),
                layers=options["layers"],
                dim=options["dim"],
                heads=options["heads"],
                positions=options["positions"],
                end=tokenizer.eos_token_id,
                seed=0,
            )
            stream = Stream(tokenizer, texts, options["length"])
            result = train_model(
                model,
                stream,
                steps=steps,
                batch=options["batch"],
                learning_rate=options["learning_rate"],
                seed=0,
                checkpoint=checkpoint,
            )
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            return {**result, "tokens": len(stream.ids), "parameters": model.num_parameters()}

        return self.parts.get(name, key, make)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        if self.base_folder is not None:
            return _load_part(self.base_folder)
        where = str(self.model_name)
        tokenizer = load_tokenizer(where, None, "model")
        if tokenizer.eos_token_id is None:
            raise UserError(f"model={where}: its tokenizer names no end token (eos_token), which ends the texts here")
        model = load_model(where, where="model", loading=self.loading).eval().requires_grad_(False)
        own = {name: value for name, value in model.generation_config.to_diff_dict().items() if value}
        result = [f"{name}={value}" for name, value in own.items()
                if name not in (*KEPT, *OURS, "transformers_version", "_from_model_config")]  # fmt: skip
        if result:
            _logger.warning(
                "model=%s: its own %s does not count, decode alone does", self.model_name, ", ".join(result)
            )
        kept = {name: getattr(model.generation_config, name) for name in KEPT}
        model.generation_config = type(model.generation_config)(**kept)
        return model, tokenizer

    @property
    def model(self) -> Any:
        """The base model, frozen; whoever changes it must restore it (or use ``copy``)."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> Any:
        return self._loaded[1]

    @cached_property
    def start(self) -> list[int]:
        """The ids that the tokenizer puts before a text; models of the Llama family expect one, ours none."""
        return added_ids(self.tokenizer)[0]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the base model's ids of each text, after its start."""
        return [[*self.start, *row] for row in text_ids(self.tokenizer, texts)]

    def class_ids(self, label: str) -> list[list[int]]:
        """Return the base model's ids of each training text of a class."""
        return self.ids([example.text for example in self.task.examples("train", label)])

    @cached_property
    def weights(self) -> str:
        """SHA-256 of the base model's weights: trained with the same settings elsewhere, they are others."""
        if self.base_folder is not None:
            return _weights_checksum(self.base_folder)
        return weights_digest(self.model)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What texts and measures depend on besides the settings, for the record: corpus, and weights of the models."""
        judges = {each.name: weights_digest(each.network) for each in self.judges[0] if isinstance(each, NeuralJudge)}
        graded, words = self.task.lexicon, ""
        if graded is not None:
            result = [graded.words, {name: graded.column(name) for name in graded.columns}, sorted(graded.held_out)]
            words = hashlib.sha256(json.dumps(result, default=list).encode()).hexdigest()
        return {
            **({"lexicon": words} if words else {}),
            "text": self.task.data.checksum(),
            "model": self.model_name or str(self.base_folder and self.base_folder.name),
            **({"origin": where} if self.model_name and (where := origin(self.model_name)) else {}),
            "weights": self.weights,
            "fluency": _weights_checksum(self._fluency_folder),
            **{f"judge/{name}": digest for name, digest in judges.items()},
        }

    def backbone(self, *, frozen: bool = True) -> HuggingFaceBackbone:
        """Return a copy of the base model for a paper's module."""
        return HuggingFaceBackbone(path=str(self.model_name or self.base_folder), frozen=frozen, where="model")

    @property
    def head_size(self) -> int:
        """The number of tokens that the base model scores."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def copy(self) -> Any:
        return copy.deepcopy(self.model).requires_grad_(True)

    @cached_property
    def _fluency_folder(self) -> Path:
        return self._language_model("fluency", "fluency", self.fluency_options["steps"])

    @cached_property
    def _independent(self) -> tuple[Any, Any]:
        return _load_part(self._fluency_folder)

    # training of methods ----------------------------------------------------------------------------------------------

    def learned(self, name: str, key: Mapping[str, Any], make: Callable[[Path, Path], Mapping[str, Any]]) -> Path:
        """Return the folder of what a method learns on this bench (see ``Parts.get``); its training time is counted."""
        whole = {
            "weights": self.weights,
            "length": int(self.base_options["length"]),  # of the windows
            "texts": self._identity,
            "tune": self.tune_options,
            "seed": self.seed,
            **({"start": self.start} if self.start else {}),
            **key,
        }
        folder = self.parts.get(name, whole, make)
        self.training_seconds += facts(folder)["seconds"]
        return folder

    def learn(
        self,
        name: str,
        key: Mapping[str, Any],
        trained: Mapping[str, Tensor],
        train: Callable[[Path], Mapping[str, Any]],
    ) -> None:
        """Train tensors in place and keep them, or read those that were kept before.

        Args:
            train: path for a checkpoint -> plain facts (see ``Parts.get``).
        """

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            result = dict(train(checkpoint))
            torch.save({each: value.detach() for each, value in trained.items()}, folder / WEIGHTS)
            return result

        folder = self.learned(name, key, make)
        kept = check_kept(read_kept(folder / WEIGHTS, folder), trained, folder / WEIGHTS, folder)
        with torch.no_grad():
            for each, value in trained.items():
                value.copy_(kept[each])

    def train(
        self,
        name: str,
        key: Mapping[str, Any],
        parameters: Mapping[str, nn.Parameter],
        loss_of: Callable[[np.random.Generator], Tensor],
        learning_rate: float,
        *,
        times: int = 1,
    ) -> None:
        """Train parameters in place as ``tune`` says, ``times`` as many steps, or read those that were kept before."""
        steps = int(self.tune_options["steps"]) * times
        options: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "weight_decay": 0.0}

        def train(checkpoint: Path) -> dict[str, float]:
            return optimise(parameters.values(), loss_of, seed=self.seed, checkpoint=checkpoint, **options)

        self.learn(name, key, parameters, train)

    def tuned(
        self,
        label: str,
        *,
        prepare: Callable[[Any], Any] | None = None,
        name: str = "tuned",
        learning_rate: float | None = None,
    ) -> Any:
        """Return the base model fine-tuned on the training texts of one class.

        Args:
            prepare: changes what is trained (LoRA) before training; the part stores the tensors that require gradients.
            name: of the part; a different one for each ``prepare``.
            learning_rate: None: that of ``tune``.
        """
        model = self.copy()
        own = {} if learning_rate is None else {"learning_rate": learning_rate}
        if prepare is not None:
            torch.manual_seed(self.seed)  # an adapter starts from random numbers
            model = prepare(model)

        def train(checkpoint: Path) -> dict[str, Any]:
            stream = self.stream(label)
            options = {**self.tune_options, **own}
            result = train_model(model, stream, **options, seed=self.seed, checkpoint=checkpoint)
            return {**result, "tokens": len(stream.ids)}

        trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
        self.learn(name, {"label": label, **own}, trained, train)
        return model.eval().requires_grad_(False)

    def stream(self, label: str | None = None) -> Stream:
        """Return the training texts (of one class) as a stream of the base model's ids."""
        texts = [example.text for example in self.task.examples("train", label)]
        length, positions = int(self.base_options["length"]), self._positions
        length = length if positions is None else min(length, positions - 1)
        return Stream(self.tokenizer, texts, length, start=self.start)

    @cached_property
    def word_lists(self) -> dict[str, list[str]]:
        """Class -> the words that most set it apart in the training texts; of a task of words, the words."""
        if self.task.column == "words":
            return {label: list(forms) for label, forms in self.task.labels.items()}
        counts = class_counts(self.task.examples("train"))
        return {label: log_odds_words(counts, label, WORDS) for label in self.task.targets}

    @cached_property
    def graded_words(self) -> dict[str, dict[str, float]]:
        """Class -> word -> grade in (0, 1]: of the task's lexicon, otherwise 1 for the words of ``word_lists``."""
        lexicon = self.task.lexicon
        if lexicon is None:
            return {label: dict.fromkeys(words, 1.0) for label, words in self.word_lists.items()}
        grades = dict(zip(lexicon.words, lexicon.column("polarity"), strict=True))
        signs = self.task.lexicon_signs
        return {
            label: {word: signs[label] * grade for word, grade in grades.items() if signs[label] * grade > 0}
            for label in self.task.targets
        }

    @cached_property
    def held_out_words(self) -> dict[str, frozenset[str]]:
        """Class -> its words that no feature channel is trained on (word lists steer by them too); empty for a task
        without a lexicon."""
        kept = set() if self.task.lexicon is None else set(self.task.lexicon.held_out)
        return {label: frozenset(kept & set(words)) for label, words in self.graded_words.items()}

    # judging ---------------------------------------------------------------------------------------------------------

    @cached_property
    def judges(self) -> tuple[list[Judge], list[Proof]]:
        """The two judges and their results on held-out human texts."""
        longest, options = int(self.decode_options["new_tokens"]), self.judge_options
        shortest, seed = max(4, longest // 2), int(options["seed"])
        judges: list[Judge]
        if self.task.rules:
            judges = [RuleJudge(name, rules) for name, rules in self.task.rules.items()]
        elif self.task.exact:
            judges = [WordJudge(self.task.labels, inflected) for inflected in (False, True)]
        else:
            known = judging_texts(self.task, shortest, longest, int(options["each"]), seed)

            def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
                NeuralJudge(known, seed, steps=int(options["steps"])).save(folder)
                return {"texts": len(known)}

            # judges kept by earlier code read padding
            form = {"form": "packed", "longest": longest}
            key = {"texts": self._identity, "options": {**options, "least_accuracy": None}, **form}
            judges = [BagJudge(known, seed), NeuralJudge.load(self.parts.get("judge", key, make))]
        pieces = proving_texts(self.task, shortest, longest)
        return judges, [prove(judge, pieces) for judge in judges]

    @cached_property
    def overlap(self) -> Overlap:
        """Measures what was copied from the training texts."""
        return Overlap(self.task.texts("train"))

    def cost(self, prompts: Sequence[str], texts: Sequence[str]) -> list[tuple[float, int]]:
        """Return (nats, tokens) of continuations under the independent language model."""
        model, tokenizer = self._independent
        return text_cost(model, tokenizer, prompts, texts)

    # decoding --------------------------------------------------------------------------------------------------------

    @cached_property
    def prompts(self) -> list[tuple[str, Example]]:
        """The prompts, with the human passages that they begin."""
        return self.task.prompts(int(self.decode_options["prompts"]))

    def write(self, arm: Arm, strength: float) -> tuple[list[str], float, int]:
        """Continue every prompt under an arm.

        Row ``place * samples + copy`` draws the same random numbers for every method and strength.

        Returns:
            texts in the order of the prompts, with a prompt's samples adjacent; CPU seconds; tokens written.
        """
        samples, batch = int(self.decode_options["samples"]), int(self.decode_options["batch"])
        steered = Steered(arm.model, list(arm.controls), tokenizer=self.tokenizer)
        decode = self.decode_options
        options: dict[str, Any] = {"max_new_tokens": int(decode["new_tokens"]), "do_sample": True}
        options |= {"min_new_tokens": int(decode["min_new_tokens"])}
        options |= {"top_p": float(decode["top_p"]), "top_k": int(decode["top_k"])}
        rows = list(range(len(self.prompts) * samples))
        texts: list[str] = []
        tokens, began = 0, time.process_time()
        settings = arm.settings(strength)
        given = steered.settings_of(settings)
        taken = sum(control.columns(given[control.name], 1) for control in steered.controls)  # taken by soft prompts
        with arm.at(strength):
            for first in range(0, len(rows), batch):
                chosen = rows[first : first + batch]
                prompts = [arm.prefix(strength, row // samples) + self.prompts[row // samples][0] for row in chosen]
                if self.chat is not None:
                    ids = [chat_ids(self.tokenizer, prompt, self.chat["system"], "chat=true") for prompt in prompts]
                else:
                    ids = text_ids(self.tokenizer, prompts)
                    ids = [[*self.start, *self._cut(row, taken + len(self.start))] for row in ids]
                talk = {"reply_only": self.chat is not None}
                made = steered.generate(ids, settings, seed=self.seed, rows=chosen, **talk, **options)
                new = made[:, max(map(len, ids)) :]
                ends = (new == self.tokenizer.eos_token_id).int()
                tokens += int(((ends.cumsum(1) - ends) == 0).sum())
                texts += [steered.continuation(*both) for both in zip(ids, new.tolist(), strict=True)]
        return texts, time.process_time() - began, tokens

    @property
    def context(self) -> int:
        """The positions that the base model was trained on; for a model other than ours, all that it has.

        One that states no number of positions counts as having as many as ours.
        """
        length = int(self.base_options["length"])
        whole = self._positions or length
        return whole if self.model_name is not None else min(whole, length)

    @property
    def _positions(self) -> int | None:
        """The positions that the base model has; None where its configuration has no such number (Bloom, Mamba)."""
        found = getattr(self.model.config, "max_position_embeddings", None)
        return None if found is None else int(found)

    def _cut(self, ids: list[int], taken: int) -> list[int]:
        """Return a prompt that leaves room for the continuation: the end of a longer one."""
        return ids[-max(1, self.context - taken - int(self.decode_options["new_tokens"])) :]
