"""The definition of a control: settings, a stage, score rules and hooks, and how it is attached to a model.

A ``Control`` steers a Hugging Face causal language model while it decodes, in one or more of three ways: by a score
rule, by hooks that read hidden states, by hooks that change what the network computes. A subclass is beside its paper
(``papers/<paper>/control.py``), or here if it has none, and is found by its ``kind`` (``control/bundle.py:kinds``).
CONTRIBUTING.md shows one from top to bottom.

Shape letters: B prompts, N rows of a decode step (B, or B times the beams or sequences per prompt, a prompt's rows next
to each other), T prefix tokens, V vocabulary, D hidden size.
"""

from __future__ import annotations

import abc
import copy
import enum
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control.bundle import Carried, Origin
from lit_ctg.core.generation import ControlSetting, evaluating
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError, check_known, check_whole, did_you_mean, refuse
from lit_ctg.files import plain_name
from lit_ctg.limits import Checked
from lit_ctg.network.layers import linear_sizes

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

NO_TOKEN = -1  # marks padding in a prefix
PREPARE = "prepare_inputs_for_generation"
# setting -> one number per prompt, [B] float64 on the CPU; NaN: not set; a word of ``choices`` is its index among them
Values = Mapping[str, Tensor]
ControlT = TypeVar("ControlT", bound="Control")
ModuleT = TypeVar("ModuleT", bound=nn.Module)
Tokens = Literal["all", "generated", "prompt_end"]


class Stage(enum.IntEnum):
    """Where a control acts; composed controls act in this order, those of one stage in the given order."""

    NETWORK = 0  # changes embeddings or layers
    LOGITS = 1  # adds to the scores of tokens
    DISTRIBUTION = 2  # replaces the model's distribution over the whole vocabulary
    CLASSES = 3  # redistributes the probability of classes of tokens
    MASK = 4  # forbids tokens


def row_values(value_B: Tensor, rows: int) -> Tensor:
    """Expand a setting [B] to the rows [N] of a decode step: a prompt's value for all of its beams or sequences.

    Raises:
        ValueError: N is not a multiple of B.
    """
    if len(value_B) == 0 or rows % len(value_B):
        raise ValueError(f"{len(value_B)} settings for {rows} rows: attach with rows=, the number of prompts")
    return value_B.repeat_interleave(rows // len(value_B), dim=0)


def shares(names: Sequence[str], values: Values) -> Tensor:
    """Return the settings ``names`` as shares [B, names] that sum to 1; 0 for a prompt that sets none of them."""
    weights_BS = torch.stack([values[name] for name in names], dim=1).nan_to_num(0.0)
    return weights_BS / weights_BS.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def refuse_encoder(model: Any) -> None:
    """Refuse an encoder-decoder model, and XLNet, whose layers have the rows of a batch in the second place."""
    config, only = getattr(model, "config", None), "controls steer causal language models"
    refuse({
        f"{only}, this one has an encoder: use a decoder-only model": getattr(config, "is_encoder_decoder", False),
        f"{only}, XLNet predicts in any order: use another model": getattr(config, "model_type", None) == "xlnet",
    })  # fmt: skip


def generating(model: Any) -> Any:
    """Return the model whose ``generate`` runs: the one that PEFT has wrapped, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def added_ids(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""

    def texts() -> Iterator[str]:
        yield "a"
        # a tokenizer of whole words may refuse the first
        yield from (token for token in tokenizer.get_vocab() if token not in tokenizer.all_special_tokens)

    for text in texts():
        try:
            bare = list(tokenizer(text, add_special_tokens=False).input_ids)
            whole = list(tokenizer(text).input_ids)
        except Exception:  # the library raises a bare Exception
            continue
        for first in range(len(whole) - len(bare) + 1):
            if bare and whole[first : first + len(bare)] == bare:
                return whole[:first], whole[first + len(bare) :]
    return [], []


def cast_like(module: ModuleT, weight: Tensor) -> ModuleT:
    """Return a control's module in a model's precision and on its device: a copy, so that its own values stay."""
    if all((value.dtype, value.device) == (weight.dtype, weight.device) for value in module.parameters()):
        return module
    return copy.deepcopy(module).to(weight)


def loaded(build: Callable[[], ModuleT], state: Mapping[str, Tensor]) -> ModuleT:
    """Return a module in float32 with the tensors of a file as its values.

    Nothing is allocated for the sizes that the file declares: they are compared with its tensors first.

    Raises:
        RuntimeError: the tensors are not those of the module.
    """
    with torch.device("meta"):
        module = build()
    module.load_state_dict(state, assign=True)
    return module.float()


class Prefix:
    """The whole prefixes of the rows of the current decode step, with padding marked.

    Hugging Face's ``generate`` passes only the newest token to the network, reorders beams, pads prompts on the left,
    and does not show the padding to score rules. It does pass all of this to ``prepare_inputs_for_generation``,
    which is watched here.

    Attributes:
        hidden: number of first columns that are not text either (the positions of a soft prompt).
        reply: of a chat, the column of each prompt's last token before the reply (-1: none), and the id that begins a
            text: controls see the reply as a text, and none of what is before it. None where all is part of the text.
        ids_NT: the prefixes, ``NO_TOKEN`` at padding; None before the first step.
    """

    def __init__(self) -> None:
        self.hidden = 0
        self.reply: tuple[Tensor, int] | None = None
        self._whole_NT: Tensor | None = None
        self.ids_NT: Tensor | None = None
        self._given_NT: Tensor | None = None
        self._fresh = False
        self._prompt = 0  # its columns

    @contextmanager
    def watch(self, model: Any) -> Iterator[Prefix]:
        """Follow the model's generation, in evaluation mode; changes to the model are undone at the end.

        Raises:
            UserError: there is a soft prompt, and another watch that would take its places for text; or a step of the
                generation ran none of the model's hooks.
        """
        parts = [model]
        if generating(model) is not model:  # adapters of PEFT decode with the inner model, its soft prompts do not
            parts.append(generating(model))
        if self.hidden and any(isinstance(part.__dict__.get(PREPARE), _Preparation) for part in parts):
            raise UserError("a soft prompt would be text to the controls attached already: give all to one Steered")
        with ExitStack() as stack:
            stack.enter_context(evaluating(model))
            for part in parts:
                stack.enter_context(_watching(part, self))
                # also where the pass fails
                stack.callback(part.register_forward_hook(self._over, always_call=True).remove)
            yield self
            if self._fresh:
                raise UserError("the model's forward pass ran without hooks, so no control acted: give it uncompiled")

    def _over(self, *_: Any) -> None:
        """Forget the step after its forward pass: what follows belongs to another step, or to a plain call."""
        self._fresh = False

    def take(self, input_ids_NT: Tensor, mask_NT: Tensor | None, *, first: bool = False) -> None:
        """Take the prefixes of a step, or of the ``first`` one; a mask of another length is ignored."""
        ids_NT = input_ids_NT
        if first or self._whole_NT is None or ids_NT.shape[1] <= self._whole_NT.shape[1]:
            self._prompt = ids_NT.shape[1]
        if mask_NT is not None and mask_NT.shape == ids_NT.shape:
            ids_NT = ids_NT.masked_fill(~mask_NT.bool(), NO_TOKEN)
        if self.hidden:
            ids_NT = torch.nn.functional.pad(ids_NT[:, self.hidden :], (self.hidden, 0), value=NO_TOKEN)
        self._whole_NT = ids_NT
        if self.reply is not None:
            column_B, start = self.reply
            column_N1 = row_values(column_B, len(ids_NT)).unsqueeze(1).to(ids_NT.device)
            place_T = torch.arange(ids_NT.shape[1], device=ids_NT.device)
            ids_NT = ids_NT.masked_fill(place_T < column_N1, NO_TOKEN).masked_fill(place_T == column_N1, start)
        self.ids_NT, self._given_NT, self._fresh = ids_NT, input_ids_NT, True

    def of(self, input_ids_NT: Tensor, *, whole: bool = False) -> Tensor:
        """Return the prefixes for a score rule, ``NO_TOKEN`` at padding; ids of something else are what they are.

        Args:
            input_ids_NT: as the rule is given them.
            whole: with the prompt of a chat.
        """
        given_NT = self._given_NT
        if self.ids_NT is None or given_NT is None:
            return input_ids_NT
        if given_NT is not input_ids_NT and not torch.equal(given_NT, input_ids_NT):
            return input_ids_NT
        return self._whole_NT if whole and self._whole_NT is not None else self.ids_NT

    def real(self, rows: int, columns: int) -> Tensor | None:
        """Return [N, t] bool, which of the newest columns of the running step are text; None if none runs of N rows."""
        whole_NT = self._of_step(rows, columns)
        return None if whole_NT is None else whole_NT[:, whole_NT.shape[1] - columns :] != NO_TOKEN

    def places(self, rows: int, columns: int, tokens: Tokens = "all") -> Tensor | None:
        """Return [N or 1, t] bool, at which of the newest columns a control acts; None: at all of them.

        Args:
            tokens: ``all`` of the text, those that are ``generated`` from (the prompt's last and what follows it), or
                the ``prompt_end`` alone. Outside ``generate`` a text is ``generated``, and its last token the end.
        """
        # one newest position is never padding
        real_Nt = self.real(rows, columns) if columns > 1 else None
        place_1t: Tensor | None = None
        if tokens != "all":
            whole_NT = self._of_step(rows, columns)
            length, end = (columns, columns - 1) if whole_NT is None else (whole_NT.shape[1], self._prompt - 1)
            column_t = torch.arange(length - columns, length)
            if tokens == "prompt_end":
                place_1t = (column_t == end).unsqueeze(0)
            elif whole_NT is not None:
                place_1t = (column_t >= end).unsqueeze(0)
        both = [each for each in (real_Nt, place_1t) if each is not None and not bool(each.all())]
        return both[0] if len(both) == 1 else both[0] & both[1].to(both[0].device) if both else None

    def _of_step(self, rows: int, columns: int) -> Tensor | None:
        """Return the prefixes of the running step; None if none runs of that many rows and columns."""
        whole_NT = self.ids_NT
        if not self._fresh or whole_NT is None or len(whole_NT) != rows or whole_NT.shape[1] < columns:
            return None
        return whole_NT

    def newest(self, ids_Nt: Tensor) -> Tensor:
        """Return the whole prefixes [N, T] of an embedding call, whose newest columns are ``ids_Nt``.

        Outside ``generate`` (a plain call of the model) these are the ids themselves.
        """
        whole_NT = self._of_step(*ids_Nt.shape)
        return ids_Nt if whole_NT is None else whole_NT


class _Preparation:
    """A model's ``prepare_inputs_for_generation`` that passes its arguments to a prefix, too."""

    def __init__(self, inner: Any, prefix: Prefix) -> None:
        functools.update_wrapper(self, inner)  # ``generate`` looks at the arguments
        self.inner, self.prefix = inner, prefix

    def __call__(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        first = bool(kwargs.get("is_first_iteration"))
        self.prefix.take(input_ids, kwargs.get("attention_mask"), first=first)
        return self.inner(input_ids, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied with its model, whose copy would keep the controls and prepare the original's inputs."""
        raise UserError("a model cannot be copied or pickled while controls are attached: do it before or after")


@contextmanager
def _watching(model: Any, prefix: Prefix) -> Iterator[None]:
    """Pass the arguments of a model's ``prepare_inputs_for_generation`` to a prefix, too."""
    own = model.__dict__
    before = own.get(PREPARE)
    setattr(model, PREPARE, _Preparation(getattr(model, PREPARE), prefix))
    try:
        yield
    finally:
        own.pop(PREPARE, None)
        if before is not None:
            own[PREPARE] = before


class StateHook:
    """A hook that changes the states of a layer at the places of a control, on the rows where it is on.

    Other rows, and padding, keep what the network computed, to the bit. Attention masks padding anyway; a recurrent
    state and a convolution run over it.

    Args:
        change: states [N, T, D] and the values, each [N, 1, K] -> new states. Some layers (OPT's) see the positions as
            rows, those of a row next to each other: [N T, D] and [N T, K].
        values: [B, K] each, a row a prompt.
        prefix: knows the padding and where the prompt ends; None: padding follows the text, and no token sees it.
        tokens: see ``Prefix.places``.
        wide: half precision is changed in float32.
    """

    def __init__(
        self,
        change: Callable[..., Tensor],
        values: Sequence[Tensor],
        off_B: Tensor,
        prefix: Prefix | None,
        *,
        tokens: Tokens = "all",
        wide: bool = False,
    ) -> None:
        self.change, self.values, self.off_B, self.some_off = change, values, off_B, bool(off_B.any())
        self.prefix, self.tokens, self.wide = prefix, tokens, wide
        # values and rows that are off, expanded to the layer's rows: the same at every decoding step
        self._for_rows: tuple[Any, list[Tensor], Tensor] | None = None

    def __call__(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        return (self.changed(output[0]), *output[1:]) if isinstance(output, tuple) else self.changed(output)

    def before(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Change the input instead, as a hook that runs before the layer."""
        return (self.changed(inputs[0]), *inputs[1:])

    def changed(self, state: Tensor) -> Tensor:
        """Return the states with changes."""
        dtype = torch.promote_types(state.dtype, torch.float32) if self.wide else state.dtype
        like = (len(state), state.dim(), dtype, state.device)
        if self._for_rows is None or self._for_rows[0] != like:
            layout = (len(state), *[1] * (state.dim() - 2), -1)
            values = [
                row_values(value, len(state)).view(layout).to(dtype=dtype, device=state.device) for value in self.values
            ]
            self._for_rows = like, values, row_values(self.off_B, len(state)).view(layout).to(state.device)
        _, values, off = self._for_rows
        kept = off if self.some_off else None
        if self.prefix is not None and state.dim() == 3:
            on_Nt = self.prefix.places(len(state), state.shape[1], self.tokens)
            if on_Nt is not None:
                out_Nt1 = ~on_Nt.unsqueeze(2).to(state.device)
                kept = out_Nt1 if kept is None else kept | out_Nt1
        new = self.change(state.to(dtype), *values).to(state.dtype)
        if kept is None:
            return new
        # laid out as the model's own: rows that are off get the same sums from the next layer, to the bit
        new = torch.where(kept, state, new)
        return new if state.is_contiguous() else state.new_empty_strided(state.shape, state.stride()).copy_(new)


class _Noted:
    """A hook that removes itself from ``waiting`` when it runs."""

    def __init__(self, hook: Callable[..., Any], waiting: dict[int, str], number: int) -> None:
        self.hook, self.waiting, self.number = hook, waiting, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting.pop(self.number, None)
        return self.hook(*args, **kwargs)


class _AllRan:
    """A forward hook of a whole model that fails unless every hook of a control ran in the pass.

    Compiled and fused layers skip hooks without a word. Only an expert of a mixture may be skipped: it runs when text
    is routed to it.

    Args:
        model: the model that has the hooks.
    """

    def __init__(self, name: str, model: Any, handles: Iterable[RemovableHandle]) -> None:
        self.name = name
        self.waiting: dict[int, str] = {}  # hook -> path of its module
        ids = {handle.id for handle in handles}
        for path, module in model.named_modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for number in ids & hooks.keys() if "experts" not in path.split(".") else ():
                    self.waiting[number] = path or "the model"
                    hooks[number] = _Noted(hooks[number], self.waiting, number)

    def __call__(self, *_: Any) -> None:
        if self.waiting:
            raise UserError(
                f"control {self.name}: {next(iter(self.waiting.values()))} ran without what the control attached to it "
                "(is it compiled or fused?): load the model without that"
            )


def _is_compiled(module: nn.Module) -> bool:
    """Say whether torch.compile has a module or its ``forward``: it misses later hooks, and keeps those it compiled."""
    forward = getattr(module, "forward", None)
    traced = hasattr(forward, "_torchdynamo_orig_callable") and not getattr(forward, "_torchdynamo_disable", False)
    return traced or getattr(module, "_compiled_call_impl", None) is not None


class Control(Carried, Checked, abc.ABC):
    """One way of steering a causal language model; see the module's docstring and CONTRIBUTING.md.

    A subclass sets the class attributes and defines ``settings``, at least one of ``rule`` and ``hooks``, and for
    bundles ``config``, ``tensors`` and ``restore``.

    Args:
        name: the prefix of its settings in a composition (``<name>.<setting>``); by default its kind.

    Attributes:
        kind: its name in ``control.json``; a word, unique among all controls.
        strength: the setting that turns it off: a row in which it is 0 is exactly the bare model's. Every control has
            one.
        of_ids: it refers to tokens by their ids, so it needs the tokenizer it was made with; False if stored as text.
        excludes: kinds with which it cannot be composed (its own kind: only once).
        whole_prompt: it reads the prompt of a chat, which others do not see.
        not_weights: pattern of the names of tensors that are not real, finite numbers (ids, masks): ``restore`` checks
            them.
        origin: where it comes from (run record, tokenizer, ...), see ``bundle.Origin``; None if made by hand.
    """

    kind: ClassVar[str]
    paper: ClassVar[str] = ""
    stage: ClassVar[Stage]
    strength: ClassVar[str] = "strength"
    of_ids: ClassVar[bool] = True
    excludes: ClassVar[frozenset[str]] = frozenset()
    whole_prompt: ClassVar[bool] = False
    not_weights: ClassVar[str] = ""

    def __init__(self, *, name: str | None = None) -> None:
        self.rename(name or self.kind)
        self.origin: Origin | None = None

    def rename(self, name: object) -> None:
        """Give the control another name, by which settings and folders are called.

        Raises:
            UserError: it is not a short word of letters, digits and _.
        """
        remedy = "use letters, digits and _ only"
        self.name = plain_name(name, "the name of a control", remedy)
        if not self.name.isidentifier():
            raise UserError(f"control name '{self.name}': {remedy}")

    # to be defined by subclasses --------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def settings(self) -> tuple[ControlSetting, ...]:
        """The settings: name, range, default and meaning; ``default=None`` for an optional one."""

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule | None:
        """Return the score rule of a batch; None where the control has none.

        The rule is called with prefixes [N, T], ``NO_TOKEN`` at padding, and scores [N, V]; it takes a column of
        ``values`` by ``decoding.rule.per_row`` (one per prompt, N is B or a multiple). The base class undoes its
        effect on rows whose ``strength`` is 0.
        """
        return None

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        """Register forward hooks on the model, which each forward pass has to run, and return their handles.

        Rows whose ``strength`` is 0 must keep what the network computes (``torch.where``), and no hook may write in
        place. ``prefix.newest(ids)`` gives the whole prefixes of an embedding call.
        """
        return ()

    def before(self, values: Values, tokenizer: Any) -> Sequence[Sequence[int]]:
        """Return for each prompt the ids before it that are no text to the controls (an instruction); () for none."""
        return ()

    def draws(self, values: Values) -> Tensor:
        """Return [B], how many texts of each prompt are drawn; the one with the best of ``scores`` is kept."""
        return torch.ones(len(values[self.strength]), dtype=torch.long)

    def scores(self, model: Any, tokenizer: Any, ids_NT: Tensor, values: Values) -> Tensor:
        """Return a number [N] for each text, ``NO_TOKEN`` where there is none; those of a prompt are adjacent."""
        raise NotImplementedError

    def columns(self, settings: Mapping[str, Any], rows: int) -> int:
        """Return how many extra columns the control needs before the prompts (a soft prompt); usually none."""
        return 0

    def bind(self, tokenizer: Any) -> None:
        """Take the tokenizer of the model; for controls stored as text (classes, lexicons, grammars).

        Raises:
            UserError: it cannot express what the control needs.
        """
        return None

    def shape(self) -> dict[str, int]:
        """Return what the model must have: ``vocab_size`` (columns of its scores) and ``hidden_size``, as needed."""
        return {}

    def config(self) -> dict[str, Any]:
        """Return everything except tensors as plain values, for ``control.json``."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, for ``control.safetensors``."""
        return {}

    @classmethod
    def restore(cls: type[ControlT], config: dict[str, Any], tensors: dict[str, Tensor]) -> ControlT:
        """Rebuild the control from its ``config()`` and ``tensors()``."""
        if tensors:
            raise UserError(f"a control of the kind {cls.kind} has no tensors")
        return cls(**config)

    # use --------------------------------------------------------------------------------------------------

    @contextmanager
    def attach(
        self, model: Any, settings: Mapping[str, Any] | None = None, *, rows: int = 1, prefix: Prefix | None = None
    ) -> Iterator[RuleList]:
        """Attach the control to a model; at the end the model is as it was.

        ``with control.attach(model, {"alpha": [0, 1]}, rows=2) as rules: model.generate(..., logits_processor=rules)``

        Args:
            model: a Hugging Face causal language model.
            settings: values by name, one for all prompts or a list with one each; the others have their defaults.
            rows: prompts B.
            prefix: that of a composition, already watching; None watches the model here.

        Yields:
            its score rules, for ``logits_processor``; empty where there are none.

        Raises:
            UserError: a setting that does not exist or does not fit, a model of another shape, or a forward pass that
                skipped what the control attached.
        """
        check_whole("rows", rows, 0, "the number of prompts")
        values = self.values(settings or {}, rows)
        self.check_model(model)
        with ExitStack() as stack:
            if prefix is None:
                prefix = stack.enter_context(Prefix().watch(model))
            off_B = self.off(values)
            if bool(off_B.all()):  # nothing is attached, so the model is the bare one to the bit
                yield RuleList()
                return
            handles = []
            for handle in self.hooks(model, values, prefix):
                stack.callback(handle.remove)
                handles.append(handle)
            all_ran = _AllRan(self.name, model, handles)
            stack.callback(generating(model).register_forward_hook(all_ran).remove)
            rule = self.rule(values, prefix)
            yield RuleList(() if rule is None else (_Kept(rule, off_B, prefix, self.whole_prompt),))

    def values(self, settings: Mapping[str, Any], rows: int) -> dict[str, Tensor]:
        """Return all settings, checked, with defaults filled in, one number per prompt.

        Raises:
            UserError: no such setting, a value out of range, or not as many values as prompts.
        """
        if not isinstance(settings, Mapping):
            raise UserError(f"control {self.name}: give settings as a mapping, {{name: value}}")
        known = {setting.name: setting for setting in self.settings}
        for name in settings:
            check_known(f"setting of control {self.name}", name, known)
        return {
            name: self._column(setting, settings.get(name, setting.default), rows) for name, setting in known.items()
        }

    def _column(self, setting: ControlSetting, given: Any, rows: int) -> Tensor:
        listed = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
        several = isinstance(listed, Sequence) and not isinstance(listed, str)
        if several and len(listed) not in (1, rows):
            raise UserError(
                f"{self.name}.{setting.name} has {len(listed)} values for {rows} prompts: give one for all or one each"
            )
        one_each = list(listed) if several else [listed]
        numbers = []
        for value in one_each * (rows // len(one_each) if rows else 0):
            value = setting.default if value is None else value
            if value is None:
                numbers.append(math.nan)
                continue
            checked = setting.checked(value, f"{self.name}.{setting.name}")
            numbers.append(float(setting.choices.index(checked)) if setting.choices else float(checked))
        return torch.tensor(numbers, dtype=torch.float64)

    def off(self, values: Values) -> Tensor:
        """Return [B] bool: the prompts that the control leaves to the bare model."""
        return values[self.strength] == 0

    def check_model(self, model: Any) -> None:
        """Refuse a model that the control does not fit.

        Raises:
            UserError: it is not a causal language model, is compiled, or has another width or vocabulary.
        """
        kind, me = type(model).__name__, f"control {self.name}"
        if not isinstance(model, nn.Module) or not hasattr(model, PREPARE):
            raise UserError(f"{me}: a {kind} is not a Hugging Face causal language model")
        refuse_encoder(model)
        compiled = next((path or kind for path, module in model.named_modules() if _is_compiled(module)), None)
        found, remedy = model_shape(model), "use the model it was made for"
        refuse({
            f"{me}: a compiled model ({compiled}) does not see what controls attach: uncompile it": compiled,
            **{f"{me} fits a model with {part}={needed}, this one has {found.get(part)}: {remedy}":
               found.get(part) != needed for part, needed in self.shape().items()},
        })  # fmt: skip


class _Kept(ScoreRule):
    """A control's rule with the proper prefixes; rows where the control is off keep their scores."""

    def __init__(self, rule: ScoreRule, off_B: Tensor, prefix: Prefix, whole: bool) -> None:
        self.rule, self.off_B, self.prefix, self.whole = rule, off_B, prefix, whole

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        changed_NV = self.rule(self.prefix.of(input_ids, whole=self.whole), scores)
        if not bool(self.off_B.any()):
            return changed_NV
        off_N1 = row_values(self.off_B, len(scores)).unsqueeze(1).to(scores.device)
        return torch.where(off_N1, scores.to(changed_NV.dtype), changed_NV)


def layer_named(model: Any, path: str, name: str) -> nn.Module:
    """Return the layer of that path, or the only one with that suffix (a model may be wrapped in another).

    Raises:
        UserError: there is none; names the control.
    """
    try:
        found_there: nn.Module = model.get_submodule(path)
        return found_there
    except AttributeError:  # look everywhere, which takes milliseconds a layer
        known = dict(model.named_modules())
    found = [own for own in known if own.endswith(f".{path}")]
    if len(found) != 1:
        raise UserError(
            f"control {name} feeds the layer {path}, which this model does not have{did_you_mean(path, known)}: "
            "use the model it was made for"
        )
    return known[found[0]]


def model_shape(model: Any) -> dict[str, int]:
    """Return ``vocab_size`` (columns of the scores) and ``hidden_size`` of a Hugging Face causal language model."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if sizes := linear_sizes(head) or (isinstance(weight, Tensor) and tuple(weight.shape[::-1])):
        return {"vocab_size": sizes[1], "hidden_size": sizes[0]}
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return {name: int(value) for name in ("vocab_size", "hidden_size") if (value := getattr(config, name, None))}


def head_weight(model: Any, name: str) -> Tensor:
    """Return the weight [V, D] of a model's output layer, for the control ``name``.

    Raises:
        UserError: it is packed (quantized), offloaded, or not there.
    """
    weight, shape = getattr(model.get_output_embeddings(), "weight", None), model_shape(model)
    plain = (shape["vocab_size"], shape["hidden_size"])
    if not isinstance(weight, Tensor) or tuple(weight.shape) != plain or weight.is_meta:
        raise UserError(
            f"control {name} needs the weights of the output layer, which this {type(model).__name__} packs, "
            "offloads or does not have: load the model unquantized, with its output layer in memory"
        )
    return weight


def like_inputs(model: Any) -> Tensor:
    """Return an empty tensor with the precision and device in which a model embeds ids.

    Accelerate keeps offloaded weights elsewhere until their layer runs.
    """
    embedding = model.get_input_embeddings()
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor):  # quantized: a method
        return torch.empty(0, device=model.device)
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    dtype = weight.dtype if weight.is_floating_point() else torch.float32
    return torch.empty(0, dtype=dtype, device=weight.device if device is None else device)
