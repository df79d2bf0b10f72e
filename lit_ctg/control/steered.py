"""A model under several controls at once; Hugging Face's own ``generate`` decodes.

Shape letters: B prompts, N rows of a decode step, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lit_ctg.control.base import (
    NO_TOKEN,
    Control,
    Prefix,
    added_ids,
    generating,
    like_inputs,
    refuse_encoder,
    row_values,
)
from lit_ctg.control.bundle import check_tokenizer
from lit_ctg.core.chat import chat_ids
from lit_ctg.core.generation import LARGEST, check_room
from lit_ctg.decoding.filters import sample
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError, check_known, check_number, check_whole, one_line, refuse

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Tensor | Mapping[str, Tensor]
# options of generate that propose several tokens at once or run the network outside the rows
UNSUPPORTED = {
    "assistant_model": "assisted decoding",
    "prompt_lookup_num_tokens": "prompt lookup",
    "custom_generate": "another decoding loop",
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa",
    "num_beam_groups": "group beam search",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "guidance_scale": "classifier-free guidance",
    "inputs_embeds": "embeddings in place of ids",
    "past_key_values": "a user-supplied cache",
    "prefill_chunk_size": "a prompt read in chunks",
    "assistant_early_exit": "assisted decoding",
    "use_mtp": "several tokens at once",
    "token_healing": "a prompt whose end is rewritten",
}
HARMLESS = {
    "guidance_scale": (None, 1, 1.0),
    "num_beam_groups": (None, 1),
    "use_mtp": (None, False),
    "token_healing": (None, False),
}
# options of generate that look at the ids of the prompt, with the values that change nothing
OF_THE_PROMPT = {
    "repetition_penalty": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
}
# limits of what Hugging Face takes as it is: some values would silently change nothing, others run for days
WHOLE = {  # least, most
    **dict.fromkeys(("max_new_tokens", "max_length"), (1, 2**31)),
    **dict.fromkeys(("min_new_tokens", "min_length", "top_k"), (0, 2**31)),
    **dict.fromkeys(("num_beams", "num_return_sequences"), (1, 10_000)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0, 1000)),
}
NUMBERS: dict[str, dict[str, float]] = {  # arguments of ``check_number``
    **{key: {"above": 0, "most": 1} for key in ("top_p", "typical_p")},
    "min_p": {"least": 0, "most": 1},
    **{key: {"least": 0, "below": 1} for key in ("epsilon_cutoff", "eta_cutoff")},
    **{key: {"above": 0} for key in ("temperature", "repetition_penalty", "encoder_repetition_penalty", "max_time")},
    **{key: {} for key in ("length_penalty", "diversity_penalty")},
}
LISTS = ("logits_processor", "stopping_criteria")
SWITCHES = ("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "low_memory")
# options that are a token or several
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
          "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")  # fmt: skip
# texts whose divergence is measured at a time
TEXTS = 8
PROMPTS = "give texts, lists of ids, ids [B, T], or a tokenizer's result"


class Steered:
    """A Hugging Face causal language model with controls.

    Controls act by stage (network, logits, distribution, classes, mask), those of one stage in the given order:
    additions to scores come before replacements of the distribution, and masks come last.

    Args:
        model: on its device; it is changed only while ``generate`` runs, which switches off its dropout.
        tokenizer: of the model; needed for prompts given as text and for controls stored as text.

    Attributes:
        controls: in the order in which they act.

    Raises:
        UserError: two controls of one name, two that exclude each other, one that does not fit the model or tokenizer.
    """

    def __init__(self, model: Any, controls: Sequence[Control], *, tokenizer: Any = None) -> None:
        several = isinstance(controls, Iterable) and all(isinstance(one, Control) for one in controls)
        loaded = tokenizer is None or callable(tokenizer)
        refuse({
            "controls: give a list of controls; Control.from_pretrained(folder) loads one": not several,
            "tokenizer: give the model's own, as AutoTokenizer.from_pretrained(...) loads it": not loaded,
        })  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.controls = tuple(sorted(controls, key=lambda control: control.stage))
        refuse_encoder(model)
        check_together(self.controls)
        for control in self.controls:
            control.check_model(model)
            if tokenizer is not None:
                check_tokenizer(control, tokenizer)
                control.bind(tokenizer)

    def settings_of(self, settings: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
        """Sort settings by control, see ``by_control``."""
        return by_control(self.controls, settings)

    @contextmanager
    def attached(
        self, settings: Mapping[str, Any] | None, rows: int, prefix: Prefix | None = None
    ) -> Iterator[RuleList]:
        """Attach all controls to the model; yields their score rules in order.

        Args:
            prefix: to follow the decoding with; a new one by default.
        """
        given = self.settings_of(settings)
        rules: list[ScoreRule] = []
        with ExitStack() as stack:
            prefix = stack.enter_context((prefix or Prefix()).watch(self.model))
            for control in self.controls:
                if self.tokenizer is not None:
                    control.bind(self.tokenizer)  # since then another model may have had it
                rules += stack.enter_context(control.attach(self.model, given[control.name], rows=rows, prefix=prefix))
            yield RuleList(rules)

    @torch.no_grad()
    def generate(
        self,
        prompts: Prompts,
        settings: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        rows: Sequence[int] | None = None,
        reply_only: bool = False,
        **generate_kwargs: Any,
    ) -> Any:
        """Continue prompts by ``model.generate`` under the controls.

        Args:
            prompts: texts (with a tokenizer), lists of ids of any lengths, ids [B, T], or a tokenizer's own result.
            settings: ``{"<control>.<setting>": value}``, a value for all prompts or a list with one each; beams and
            further sequences of a prompt share its value.
            seed: with ``do_sample``, the draws of row i are a function of (seed, rows[i]) only, whatever else is in the
            batch; None draws as Hugging Face does, from torch's global generator. Without ``do_sample`` nothing is
            drawn.
            rows: row numbers of the draws, one for each returned sequence; 0, 1, ... by default.
            reply_only: controls act on what follows the prompts and do not see these, as in a chat.

        Returns:
            what ``model.generate`` returns; prompts are padded on the left.

        Raises:
            UserError: a prompt or setting that does not fit, an option of ``generate`` that controls cannot follow, a
                text longer than the model's positions.
        """
        options = self._options(generate_kwargs)
        asked = _spelled_out(options)
        self._check_options(asked, seed)
        text_BT, mask_BT = self._encoded(prompts, _spelled_out(generate_kwargs))
        prefix = Prefix()
        given = self.settings_of(settings)
        ids_BT, mask_BT, prefix.reply = self._fronted(text_BT, mask_BT, given, reply_only)
        # a soft prompt has its own columns, before padding and text
        prefix.hidden = sum(control.columns(given[control.name], len(ids_BT)) for control in self.controls)
        self._check_room(prefix.hidden, ids_BT.shape[1], asked)
        if prefix.hidden:
            self._check_soft(asked, mask_BT)
            ids_BT = torch.nn.functional.pad(ids_BT, (prefix.hidden, 0), value=0)
            mask_BT = torch.nn.functional.pad(mask_BT, (prefix.hidden, 0), value=1)
            if prefix.reply is not None:
                prefix.reply = prefix.reply[0] + prefix.hidden * (prefix.reply[0] >= 0), prefix.reply[1]
        if added := ids_BT.shape[1] - text_BT.shape[1]:
            self._make_room(added, options, asked)
        samples = bool(asked.get("do_sample", self.model.generation_config.do_sample))
        draws_B, judge = self._draws(given, len(ids_BT)) if samples else (torch.ones(1), None)
        most = int(draws_B.max())
        copies = asked.get("num_return_sequences", self.model.generation_config.num_return_sequences) or 1
        if most > 1:
            self._check_draws(asked)
            _put(options, "num_return_sequences", copies * most)
        with self.attached(settings, len(ids_BT), prefix) as rules, ExitStack() as stack:
            drawn = None
            if seed is not None and samples:
                keeps = bool(asked.get("output_scores", self.model.generation_config.output_scores))
                drawn = _Drawn(seed, rows, most, keeps)
                stack.enter_context(_last(self.model, drawn))
            beams = (asked.get("num_beams", self.model.generation_config.num_beams) or 1) > 1
            if beams and rules:
                stack.enter_context(_last(self.model, _Normalised(rules)))
            kind = _PossibleBeams if beams else _Possible
            possible = [kind(ids_BT.shape[1], self._ends(asked))] if rules else []
            options["logits_processor"] = [*rules, *possible, *(options.get("logits_processor") or ())]
            # a compiled forward pass would not see hooks that are added later
            _put(options, "disable_compile", True)
            made = self.model.generate(input_ids=ids_BT, attention_mask=mask_BT, **options)
            if drawn is not None and getattr(made, "scores", None) is not None:
                made.scores = tuple(drawn.before)
        if judge is not None and most > 1:
            made = made[self._best(judge, made, prefix, mask_BT, draws_B, given, copies, asked)]
        if not added:
            return made
        sequences = made if isinstance(made, Tensor) else made.sequences
        sequences = torch.cat(
            [text_BT.repeat_interleave(len(sequences) // len(text_BT), dim=0), sequences[:, ids_BT.shape[1] :]], dim=1
        )
        if isinstance(made, Tensor):
            return sequences
        made.sequences = sequences
        return made

    def _fronted(
        self, ids_BT: Tensor, mask_BT: Tensor, given: Mapping[str, Mapping[str, Any]], reply_only: bool
    ) -> tuple[Tensor, Tensor, tuple[Tensor, int] | None]:
        """Put before the prompts what controls ask for; return ids, mask and ``Prefix.reply``.

        Raises:
            UserError: an instruction in a chat, whose messages have their own.
        """
        size, last = len(ids_BT), ids_BT.shape[1] - 1
        fronts = [list[int]() for _ in range(size)]
        for control in self.controls:
            owns = control.before(control.values(given[control.name], size), self.tokenizer)
            for front, own in zip(fronts, owns or [()] * size, strict=True):
                front += own
        if not any(fronts):
            reply = torch.full((size,), last), self._start(int(ids_BT[0, -1]))
            return ids_BT, mask_BT, reply if reply_only else None
        if reply_only:
            raise UserError("an instruction is put before a prompt: in a chat give system= or a message")
        begin, rows, columns = self._start(NO_TOKEN), [], []
        for front, ids_T, mask_T in zip(fronts, ids_BT, mask_BT, strict=True):
            text = ids_T[mask_T.bool()].tolist()
            rows.append([*front, *(text[1:] if front and text[0] == begin else text)])
            columns.append(len(rows[-1]) - len(front))
        longest = max(map(len, rows))
        ids = [[self._pad_id()] * (longest - len(row)) + row for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        ends = [longest - text - 1 if front else -1 for text, front in zip(columns, fronts, strict=True)]
        placed = self._placed(torch.tensor(ids), torch.tensor(mask))
        return *placed, (torch.tensor(ends), self._start(rows[0][-1]))

    def _draws(self, given: Mapping[str, Mapping[str, Any]], size: int) -> tuple[Tensor, Control | None]:
        """Return how many texts of each prompt are drawn, and the control that chooses one."""
        for control in self.controls:
            draws_B = control.draws(control.values(given[control.name], size))
            if int(draws_B.max()) > 1:
                return draws_B, control
        return torch.ones(size, dtype=torch.long), None

    def _best(
        self, judge: Control, made_NT: Tensor, prefix: Prefix, mask_BT: Tensor, draws_B: Tensor,
        given: Mapping[str, Mapping[str, Any]], copies: int, asked: Mapping[str, Any],
    ) -> Tensor:  # fmt: skip
        """Return the places of the texts that are kept, of those that were drawn."""
        width, most = mask_BT.shape[1], int(draws_B.max())
        mask_NT = torch.ones_like(made_NT)
        mask_NT[:, :width] = row_values(mask_BT.cpu(), len(made_NT)).to(mask_NT)
        prefix.take(made_NT, mask_NT, first=True)
        ids_NT = prefix.of(made_NT).clone()
        ends = torch.isin(ids_NT[:, width:], torch.tensor(self._ends(asked), device=ids_NT.device))
        ids_NT[:, width:].masked_fill_(ends.cumsum(1) > 0, NO_TOKEN)
        score_N = judge.scores(self.model, self.tokenizer, ids_NT, judge.values(given[judge.name], len(mask_BT)))
        score_XM = score_N.view(-1, most)
        allowed_X1 = draws_B.repeat_interleave(copies).unsqueeze(1)
        best_X = score_XM.masked_fill(torch.arange(most) >= allowed_X1, -torch.inf).argmax(1)
        return torch.arange(0, len(made_NT), most) + best_X

    def check(
        self,
        prompt: str | Sequence[int],
        settings: Mapping[str, Any] | None = None,
        *,
        reply_only: bool = False,
        **generate_kwargs: Any,
    ) -> int:
        """Refuse a prompt and its settings as ``generate`` would, without running the model.

        Returns:
            the number of columns before the text (a soft prompt's), the same for all prompts of a batch.
        """
        given = self.settings_of(settings)
        hidden = 0
        for control in self.controls:
            control.values(given[control.name], 1)
            hidden += control.columns(given[control.name], 1)
        asked = _spelled_out(self._options(generate_kwargs))
        self._check_options(asked, None)
        ids_1T = torch.tensor([self.prompt_ids(prompt)])
        ids_1T = self._fronted(ids_1T, torch.ones_like(ids_1T), given, reply_only)[0]
        self._check_room(hidden, ids_1T.shape[1], asked)
        if hidden:
            self._check_soft(asked, torch.ones_like(ids_1T))
        if asked.get("do_sample") and int(self._draws(given, 1)[0].max()) > 1:
            self._check_draws(asked)
        return hidden

    def write(self, prompts: Prompts, settings: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
        """Return the continuations as texts, without the prompts and without special tokens; see ``generate``.

        They can be appended to the prompt as they are: they include the space between two words.
        """
        self._need_tokenizer()
        encoded = self._encoded(prompts, _spelled_out(options))
        made = self.generate({"input_ids": encoded[0], "attention_mask": encoded[1]}, settings, **options)
        sequences = made if isinstance(made, Tensor) else made.sequences
        start = encoded[0].shape[1]
        return [self.continuation(ids[:start], ids[start:]) for ids in sequences.tolist()]

    def chat(
        self, messages: Any, settings: Mapping[str, Any] | None = None, *, system: str | None = None, **options: Any
    ) -> list[str]:
        """Return the model's replies in its chat template; controls act on a reply only, and see nothing before it.

        Args:
            messages: one conversation, a list of ``{"role": ..., "content": ...}`` that ends with the user's message,
                or a list of several; a text is a conversation of one message. Special tokens in them are text.
            system: the first message of each, of the role system.
        """
        self._need_tokenizer()
        one = isinstance(messages, str) or all(isinstance(message, Mapping) for message in messages)
        prompts = [chat_ids(self.tokenizer, each, system) for each in ([messages] if one else messages)]
        return self.write(prompts, settings, reply_only=True, **options)

    def divergence(self, texts: Prompts, settings: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
        """Return KL(p under ``settings`` || p under ``reference``) of the next token, in nats.

        It is the mean over the places of the second halves of texts, whose first halves are the prompts.

        Args:
            texts: or lists of ids.
            settings: one value for all texts.
        """
        return self._moved(self._halves(texts), settings, self._next(self._halves(texts), reference))

    def strength_for(
        self, control: str, *, nats: float, texts: Prompts, settings: Mapping[str, Any] | None = None
    ) -> float:
        """Return the strength at which a control moves the distribution of the next token by that many nats.

        That is ``divergence`` from the same settings with this control's strength 0, within 2%, found by bisection.

        Args:
            control: its name.
            settings: the others, one value for all texts.

        Raises:
            UserError: no such control, or one that does not reach that divergence.
        """
        check_number("nats", nats, above=0)
        check_known("control", control, [each.name for each in self.controls])
        (own,) = (each for each in self.controls if each.name == control)
        (setting,) = (each for each in own.settings if each.name == own.strength)
        key, halves = f"{control}.{setting.name}", self._halves(texts)
        bare = self._next(halves, {**(settings or {}), key: 0.0})

        def moved(strength: float) -> float:
            return self._moved(halves, {**(settings or {}), key: strength}, bare)

        low, most = 0.0, min(setting.high, LARGEST)
        high = min(float(setting.default or 1.0), most)
        while (reached := moved(high)) < nats and high < most:
            low, high = high, min(2 * high, most)
        if reached < nats:
            raise UserError(
                f"control {control} moves the next token by {reached:.3g} nats at its largest strength {most:g}, not "
                f"by {nats:g}: ask for less, or set what it is to do (to_<class>=1)"
            )
        for _ in range(40):
            if abs(reached - nats) <= 0.02 * nats:
                return high
            middle = (low + high) / 2
            if (between := moved(middle)) < nats:
                low = middle
                if abs(between - nats) <= 0.02 * nats:
                    return middle
            else:
                high, reached = middle, between
        raise UserError(
            f"control {control} jumps to {reached:.3g} nats at strength {high:g}: there is no strength for {nats:g}"
        )

    def _halves(self, texts: Prompts) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each text in two halves, the first of them with a token at least."""
        ids_BT, mask_BT = self._encoded(texts, {})
        rows = [ids_T[mask_T.bool()].tolist() for ids_T, mask_T in zip(ids_BT, mask_BT, strict=True)]
        return [(row[: (len(row) + 1) // 2], row[(len(row) + 1) // 2 :]) for row in rows]

    def _next(
        self,
        halves: Sequence[tuple[list[int], list[int]]],
        settings: Mapping[str, Any],
        use: Callable[[int, Tensor], Tensor] = lambda place, log_p_BV: log_p_BV.float().cpu(),
    ) -> list[list[Tensor]]:
        """Return what ``use`` makes of log p of each token of the second halves, and of the one after, by batch.

        The texts are written as ``generate`` writes them, with caches and all controls, but with given tokens.
        """
        found = []
        for first in range(0, len(halves), TEXTS):
            batch = halves[first : first + TEXTS]
            longest = max(len(rest) for _, rest in batch) + 1
            ids_BT = torch.tensor(
                [[*rest, *[(first_half + rest)[-1]] * (longest - len(rest))] for first_half, rest in batch]
            )
            kept: list[Tensor] = []
            given = _Given(ids_BT, lambda log_p_BV: kept.append(use(len(kept), log_p_BV)))  # noqa: B023 # called here
            with _last(self.model, given):
                self.generate(
                    [ids for ids, _ in batch], settings, max_new_tokens=longest, do_sample=False, num_beams=1
                )  # fmt: skip
            found.append(kept)
        return found

    def _moved(
        self, halves: Sequence[tuple[list[int], list[int]]], settings: Mapping[str, Any], bare: list[list[Tensor]]
    ) -> float:
        """Return the divergence of the distributions under ``settings`` from those of ``bare``."""
        known = iter([each for batch in bare for each in batch])

        def apart(place: int, log_p_BV: Tensor) -> Tensor:
            log_q_BV, wide_BV = next(known).double(), log_p_BV.double().cpu()
            return torch.where(wide_BV.isneginf(), 0.0, wide_BV.exp() * (wide_BV - log_q_BV)).sum(1)

        total, count = 0.0, 0
        for first, kl in zip(range(0, len(halves), TEXTS), self._next(halves, settings, apart), strict=True):
            for row, (_, rest) in enumerate(halves[first : first + TEXTS]):
                own = [float(kl_B[row]) for kl_B in kl[: len(rest) + 1]]
                total, count = total + sum(own), count + len(own)
        return total / count

    def continuation(self, prompt: list[int], new: list[int]) -> str:
        """Return new tokens as text: decoded alone, the first word would lack the space before it."""
        before, whole = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, prompt + new))
        if whole.startswith(before):
            return whole[len(before) :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True))

    def _need_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise UserError("texts and messages need a tokenizer: Steered(model, controls, tokenizer=...)")

    # prompts and options ---------------------------------------------------------------------------------------------

    def _encoded(self, prompts: Prompts, asked: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return ids and mask [B, T], padded on the left.

        Args:
            asked: the caller's options of ``generate``, which may name other pad and end tokens than the model's.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        if isinstance(prompts, Mapping):
            ids_BT, mask_BT = prompts.get("input_ids"), prompts.get("attention_mask")
            if isinstance(ids_BT, Tensor | np.ndarray):
                ids_BT = torch.as_tensor(ids_BT)
                return self._placed(
                    ids_BT, self._inferred(ids_BT, asked) if mask_BT is None else torch.as_tensor(mask_BT)
                )
            keys = ", ".join(map(str, prompts)) or "nothing"
            refuse({
                f"prompts hold {keys}, but no input_ids: add them": ids_BT is None,
                f"input_ids are a {type(ids_BT).__name__}: {PROMPTS}": not isinstance(ids_BT, list | tuple),
            })  # fmt: skip
            # a tokenizer's own result without return_tensors: lists
            several = bool(ids_BT) and not isinstance(cast(Any, ids_BT)[0], int)
            rows: Any = ids_BT if several else [ids_BT]
            if mask_BT is not None:
                masks = mask_BT if several else [mask_BT]
                if list(map(len, masks)) != list(map(len, rows)):
                    raise UserError("attention_mask: give one number for each id")
                pairs = [zip(*both, strict=True) for both in zip(rows, masks, strict=True)]
                rows = [[number for number, real in pair if real] for pair in pairs]
            prompts = rows
        if isinstance(prompts, Tensor):
            return self._placed(prompts, self._inferred(prompts, asked))
        if not isinstance(prompts, Iterable):
            raise UserError(f"prompts are a {type(prompts).__name__}: {PROMPTS}")
        lists = [self.prompt_ids(prompt) for prompt in prompts]
        refuse({"no prompt: give at least one": not lists})
        longest, pad = max(map(len, lists)), self._pad_id()
        ids = [[pad] * (longest - len(row)) + row for row in lists]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in lists]
        return self._placed(torch.tensor(ids), torch.tensor(mask))

    def _ends(self, asked: Mapping[str, Any]) -> list[int]:
        """Return the ids that end a text in ``generate``."""
        found = asked.get("eos_token_id", self.model.generation_config.eos_token_id)
        return list(found) if isinstance(found, list | tuple) else [] if found is None else [int(found)]

    def _inferred(self, ids_BT: Tensor, asked: Mapping[str, Any]) -> Tensor:
        """Return the mask that ``model.generate`` infers from ids alone: padding is a pad token that ends no text."""
        pad = asked.get("pad_token_id", self.model.generation_config.pad_token_id)
        return torch.ones_like(ids_BT) if pad is None or pad in self._ends(asked) else (ids_BT != pad).long()

    def _check_soft(self, asked: Mapping[str, Any], mask_BT: Tensor) -> None:
        """Refuse what does not go with a soft prompt.

        Raises:
            UserError: an option that would take it for text, or a recurrent model and prompts of different lengths.
        """
        own = self.model.generation_config
        refuse({
            **{f"{name}: it would count the places of the soft prompt as text; leave it out":
               asked.get(name, getattr(own, name, None)) not in unchanged for name, unchanged in OF_THE_PROMPT.items()},
            "prompts of different lengths: this model reads the padding after the soft prompt; give one":
            not bool(mask_BT.all()) and _counts_padding(self.model),
        })  # fmt: skip

    def _check_draws(self, asked: Mapping[str, Any]) -> None:
        """Refuse what does not go with several draws of a text, of which one is kept."""
        own, alone = self.model.generation_config, {"num_beams": (None, 1), "return_dict_in_generate": (None, False)}
        refuse({
            f"{name}: of several texts one is kept, so leave it out":
                asked.get(name, getattr(own, name, None)) not in unchanged
            for name, unchanged in {**alone, "streamer": (None,)}.items()
        })  # fmt: skip

    def _make_room(self, added: int, options: dict[str, Any], asked: Mapping[str, Any]) -> None:
        """Make options of ``generate`` count without the columns that are added before the prompts."""
        own = self.model.generation_config
        length, least = (own.to_diff_dict().get(name) for name in ("max_length", "min_length"))  # of the model itself
        if length and not any(asked.get(name) for name in ("max_length", "max_new_tokens")) and not own.max_new_tokens:
            _put(options, "max_length", length + added)
        if least and asked.get("min_length") is None:
            _put(options, "min_length", least + added)
        for name in ("max_length", "min_length"):
            if asked.get(name):
                _put(options, name, asked[name] + added)
        if asked.get("streamer") is not None:
            options["streamer"] = _Streamed(asked["streamer"], added)

    def _placed(self, ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        shape, size, place = tuple(ids_BT.shape), self._tokens(), like_inputs(self.model).device
        masked = f"attention_mask of shape {tuple(mask_BT.shape)} for ids of shape {shape}: give one number for each id"
        whole = not ids_BT.is_floating_point() and ids_BT.dtype != torch.bool
        refuse({
            f"prompts of shape {shape}: give at least one prompt of at least one token": len(shape) != 2 or 0 in shape,
            f"prompts of {ids_BT.dtype}: ids are whole numbers": not whole,
            masked: mask_BT.shape != ids_BT.shape,
        })  # fmt: skip
        least, most, real_B = int(ids_BT.min()), int(ids_BT.max()), mask_BT[:, -1].bool()
        known = f"the model has tokens 0 to {size - 1}: use the model's own tokenizer"
        refuse({
            "prompts are padded on the right: pad them on the left, or give lists of ids or texts": not real_B.all(),
            f"prompts hold ids from {least} to {most}, {known}": not 0 <= least <= most < size,
        })  # fmt: skip
        return ids_BT.to(place), mask_BT.to(place)

    def _tokens(self) -> int:
        embedding = self.model.get_input_embeddings()
        return getattr(embedding, "num_embeddings", None) or len(embedding.weight)

    def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the ids of one prompt, at least one.

        Raises:
            UserError: neither a text nor ids, a text without a tokenizer, or an empty prompt where the model has no
                start token.
        """
        if not isinstance(prompt, str):
            try:
                ids = [operator.index(number) for number in prompt]
            except TypeError:
                raise UserError(f"prompt {str(prompt)[:60]}: give a text, or a list of ids") from None
        else:
            ids = self._read(prompt)
        if ids:
            return ids
        if (start := self._start(-1)) < 0:
            raise UserError("a prompt is empty and the model has no token to begin with: give a prompt")
        return [start]

    def _start(self, otherwise: int) -> int:
        """Return the id that begins a text."""
        start = getattr(self.tokenizer, "bos_token_id", None)
        start = getattr(self.model.config, "bos_token_id", None) if start is None else start
        return otherwise if start is None else int(start)

    def _read(self, prompt: str) -> list[int]:
        """Return the ids of a text, without what the tokenizer puts at its end, since the text continues."""
        self._need_tokenizer()
        try:
            ids = list(self.tokenizer(prompt).input_ids)
        except Exception as error:  # the library raises a bare Exception
            known = self.tokenizer.get_vocab()
            unknown = [word for word in prompt.split() if word not in known]
            words = f"; it does not know {', '.join(unknown[:5])}" if unknown else ""
            reason = one_line(error)[:120]
            raise UserError(f"prompt {prompt[:60]!r}: the tokenizer refuses it ({reason}){words}") from error
        _, back = added_ids(self.tokenizer)
        return ids[: len(ids) - len(back)] if back and ids[-len(back) :] == back else ids

    def _pad_id(self) -> int:
        own, model = self.model.generation_config, self.model.config
        pads = [getattr(source, "pad_token_id", None) for source in (own, self.tokenizer, model)]
        ends = [getattr(source, "eos_token_id", None) for source in (self.tokenizer, own, model)]
        return next((found for found in (*pads, *ends) if isinstance(found, int)), 0)

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for ``model.generate``, which takes a ``generation_config`` or single ones, not both."""
        options = dict(given)
        config = copy.deepcopy(_config(options))
        options.pop("generation_config", None)
        if getattr(config, "pad_token_id", None) is None and self.model.generation_config.pad_token_id is None:
            options.setdefault("pad_token_id", self._pad_id())
        if options.get("stop_strings") or getattr(config, "stop_strings", None):
            options.setdefault("tokenizer", self.tokenizer)
        return options if config is None else {**config.update(**options), "generation_config": config}

    def _check_options(self, options: Mapping[str, Any], seed: int | None) -> None:
        own = self.model.generation_config  # what it sets, ``generate`` takes where nothing else is asked for
        for name, what in UNSUPPORTED.items():
            if options.get(name, getattr(own, name, None)) not in HARMLESS.get(name, (None,)):
                where = "leave it out" if name in options else "take it out of the model's generation_config (.json)"
                raise UserError(f"{name}: controls cannot follow {what}; {where}")
        paged = options.get("cache_implementation", own.cache_implementation) == "paged"
        first = "give the prompts as the first argument (a tokenizer's result may be one)"
        beams, streamer = (options.get("num_beams", own.num_beams) or 1) > 1, options.get("streamer")
        streams = streamer is None or hasattr(streamer, "put")
        refuse({
            "cache_implementation=paged: such a batch is decoded without controls; leave it out": paged,
            **{f"{name}: {first}": name in options for name in ("input_ids", "inputs", "attention_mask")},
            **{f"{name}: give a list of them": not _callables(options.get(name)) for name in LISTS},
            **{f"{name}={options.get(name)!r}: give true or false": not isinstance(options.get(name), bool | None)
               for name in SWITCHES},
            "streamer: give one of transformers, such as TextStreamer(tokenizer)": not streams,
            "seed: beams draw together, so a row has no draws; leave seed out or pass num_beams=1":
                beams and seed is not None,
        })  # fmt: skip
        for name, value in options.items():
            if value is None:
                continue
            if name in WHOLE:
                check_whole(name, value, WHOLE[name][0], most=WHOLE[name][1])
            elif name in NUMBERS:
                check_number(name, value, **NUMBERS[name])
            elif name in TOKENS:
                ids = value.tolist() if isinstance(value, Tensor) else value
                if ids != self._pad_id():  # which we add where the model has none
                    least = -1 if name == "eos_token_id" else 0  # -1: no token ends a text
                    for one in ids if isinstance(ids, list | tuple) else [ids]:
                        check_whole(name, one, least, "a token of the model", most=self._tokens() - 1)
        if seed is not None:
            check_whole("seed", seed, 0)

    def _check_room(self, hidden: int, prompt: int, options: Mapping[str, Any]) -> None:
        context = getattr(self.model.config, "max_position_embeddings", None)
        named, new = "max_new_tokens", options.get("max_new_tokens")
        if new is None and options.get("max_length") is None:
            new = self.model.generation_config.max_new_tokens
        if new is None and options.get("max_length") is not None:
            named, new = "max_length", max(0, options["max_length"] - prompt)
        prompt += hidden
        check_room(prompt, new, context, named)


def by_control(controls: Iterable[Control], settings: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Sort ``{"<control>.<setting>": value}`` by control.

    Raises:
        UserError: no such control, or no setting named. (The settings themselves are checked by their control.)
    """
    settings = {} if settings is None else settings
    if not isinstance(settings, Mapping):
        raise UserError('settings: give a mapping, {"<control>.<setting>": value}')
    known = {control.name: dict[str, Any]() for control in controls}
    for key, value in settings.items():
        name, dot, setting = str(key).partition(".")
        check_known("control", name, known)
        if not dot:
            raise UserError(f"setting '{key}': write {name}.<setting>")
        known[name][setting] = value
    return known


def _counts_padding(model: Any) -> bool:
    """Return whether padding inside a row changes what follows: by recurrence, convolution or distance in columns."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    kinds = [*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())]
    return (
        bool(getattr(model, "_is_stateful", False))
        or bool(getattr(config, "sliding_window", None))
        or any(kind not in ("full_attention", "global", "attention") for kind in kinds)
        or config.model_type == "mpt"
    )


def _put(options: dict[str, Any], name: str, value: Any) -> None:
    """Set an option of ``generate``, in its ``generation_config`` if there is one."""
    if options.get("generation_config") is not None and name not in options:
        setattr(options["generation_config"], name, value)
    else:
        options[name] = value


def _config(options: Mapping[str, Any]) -> Any:
    """Return the ``generation_config`` among options of ``generate``; None if there is none."""
    config = options.get("generation_config")
    if config is not None and not hasattr(config, "to_diff_dict"):
        raise UserError(f"generation_config is a {type(config).__name__}: give a transformers.GenerationConfig")
    return config


def _callables(given: Any) -> bool:
    return given is None or (isinstance(given, Iterable) and all(map(callable, given)))


def _spelled_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``generate`` with those of its ``generation_config`` spelled out."""
    config = _config(options)
    return {**({} if config is None else config.to_diff_dict()), **options}


def check_together(controls: Sequence[Control]) -> None:
    """Refuse controls that share a name or exclude each other (``UserError``: names two of them)."""
    for number, control in enumerate(controls):
        for other in controls[:number]:
            again = "a second one" if control.kind == other.kind else f"{other.name}, which is a {other.kind}"
            another = "give one another name (name=..., on the command line controls=[<name>=<folder>,...])"
            excluded = other.kind in control.excludes or control.kind in other.excludes
            refuse({
                f"two controls are called '{control.name}': {another}": control.name == other.name,
                f"control {control.name} ({control.kind}) cannot be composed with {again}: leave one out": excluded,
            })  # fmt: skip


@contextmanager
def _last(model: Any, rule: ScoreRule) -> Iterator[None]:
    """Put a score rule after all others of ``model.generate``: temperature and the like come after a caller's."""
    model = generating(model)
    inner = model._get_logits_processor

    def processors(*args: Any, **kwargs: Any) -> Any:
        made = inner(*args, **kwargs)
        made.append(rule)
        return made

    model._get_logits_processor = processors
    try:
        yield
    finally:
        del model.__dict__["_get_logits_processor"]


class _Normalised(ScoreRule):
    """Makes log-probabilities of scores that a control changed: beams are compared by sums of them.

    Rows in which all rules are off are left to what ``generate`` does with the bare model's.
    """

    def __init__(self, rules: Iterable[Any]) -> None:
        self.off_B = torch.stack([rule.off_B for rule in rules]).all(0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        off_N1 = row_values(self.off_B, len(scores)).unsqueeze(1).to(scores.device)
        return torch.where(off_N1, scores, scores.log_softmax(-1))


class _Streamed:
    """Passes tokens on to a streamer without the columns of a soft prompt."""

    def __init__(self, streamer: Any, hidden: int) -> None:
        self.streamer, self.hidden, self.begun = streamer, hidden, False

    def put(self, value: Tensor) -> None:
        """Take the prompts first, then a token for each row."""
        self.streamer.put(value if self.begun else value[:, self.hidden :])
        self.begun = True

    def end(self) -> None:
        self.streamer.end()


class _Possible(ScoreRule):
    """Refuses a row in which the controls together leave no token, or scores that are no numbers.

    Args:
        ends: ids that end a text; a row with one of them after the prompt counts no more.
    """

    def __init__(self, start: int, ends: Sequence[int]) -> None:
        self.start, self.ends = start, list(ends)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        best_N = scores.amax(1)  # NaN if any is, -inf if no token is left
        bad_N = ~best_N.isfinite()
        if input_ids.shape[1] > self.start:
            ends = torch.tensor(self.ends, dtype=input_ids.dtype, device=input_ids.device)
            ended_N = bad_N & torch.isin(input_ids[:, self.start :], ends).any(1)
            scores = scores.masked_fill(ended_N.unsqueeze(1), 0.0)
            bad_N = bad_N & ~ended_N
        if bool(bad_N.any()):
            row = int(bad_N.nonzero()[0])
            why = f"its best score is {best_N[row].item()}; lower the strengths (or use the model in full precision)"
            if bool(best_N[row].isneginf()):
                why = "the controls exclude each other there; leave one out (or let future consider more candidates)"
            raise UserError(
                f"generation: row {row} has no token after {input_ids.shape[1] - self.start} new ones: {why}"
            )
        return scores


class _PossibleBeams(_Possible):
    """``_Possible`` for beams, of which some are placeholders: their newest token, or an earlier one, was impossible.

    Beam search keeps as many rows as there are beams, also where the controls leave fewer tokens.
    """

    def __init__(self, start: int, ends: Sequence[int]) -> None:
        super().__init__(start, ends)
        self._before: tuple[Tensor, Tensor] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        real_N = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        if self._before is not None:
            ids_NT, possible_NV = self._before
            same_NN = (input_ids[:, None, :-1] == ids_NT[None]).all(2)  # [new row, the row that it continues]
            real_N = (same_NN & possible_NV[:, input_ids[:, -1]].T).any(1)
        made = super().__call__(input_ids, scores.masked_fill(~real_N.unsqueeze(1), 0.0))
        self._before = input_ids.clone(), made.isfinite() & real_N.unsqueeze(1)
        return made


class _Given(ScoreRule):
    """Keeps the token of each row that is given, and passes on the log-probabilities of all.

    Args:
        ids_BT: the tokens, a column a step.
    """

    def __init__(self, ids_BT: Tensor, use: Callable[[Tensor], None]) -> None:
        self.steps, self.use = iter(ids_BT.unbind(1)), use

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.use(scores.log_softmax(-1))
        given_B1 = next(self.steps).unsqueeze(1).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, given_B1, 0.0)


class _Drawn(ScoreRule):
    """Keeps one token per row: the one drawn with the row's own random numbers (``filters.row_noise``).

    Args:
        most: draws of each row, next to each other; the first are those of a single draw.
        keeps: whether to keep the scores, which for 32 texts of a large vocabulary take 6 MB a step.

    Attributes:
        before: the scores of every step, with ``keeps``.
    """

    def __init__(self, seed: int, rows: Sequence[int] | None, most: int = 1, keeps: bool = True) -> None:
        self.seed, self.rows, self.most, self.keeps = seed, rows, most, keeps
        self.before: list[Tensor] = []
        self._generators: list[np.random.Generator] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self._generators:
            rows = range(len(scores) // self.most) if self.rows is None else self.rows
            texts = len(scores) // self.most
            refuse({f"rows={rows}: give a list of whole numbers": not isinstance(rows, Sequence | np.ndarray)})
            for row in rows:
                check_whole("rows", row, 0)
            refuse({f"{len(rows)} row numbers for {texts} sequences: give one each": len(rows) != texts})
            self._generators = [
                np.random.default_rng([self.seed, row, *([copy] if copy else [])])
                for row in rows
                for copy in range(self.most)
            ]
        if self.keeps:
            self.before.append(scores)
        uniform_N = torch.tensor([generator.random() for generator in self._generators], dtype=torch.float64)
        drawn_N1 = sample(scores, uniform_N.to(scores.device)).unsqueeze(1)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn_N1, 0.0)
