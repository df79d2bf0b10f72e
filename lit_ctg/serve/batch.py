"""The controls of a running engine and the requests they act on; nothing here knows vLLM.

A ``Control`` acts on score rules and hooks of a Hugging Face model. An engine has other modules, so the controls are
attached to a *twin*: the Hugging Face model without weights. Its hooks are run on what the engine's modules compute.

Shape letters: N rows of a step (one a request), T tokens of a step, V vocabulary, D hidden size.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import NO_TOKEN, Control, Prefix, Stage, Values
from lit_ctg.control.bundle import load_named, register_ours
from lit_ctg.control.future import StateProbe
from lit_ctg.control.steered import Steered, by_control, check_together
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError, one_line, refuse

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# the folders or names of the bundles, with commas
VARIABLE = "LIT_CTG_CONTROLS"
# the key of a request's settings, nested or as the beginning of flat keys
KEY = "lit_ctg"
# a request's switch: as in a chat, controls do not see the prompt
REPLY = "reply_only"
# what reads the states of the output layer, and what changes other layers: both need the models of network.py
READS_STATES = frozenset({"idea_gate"})
IN_LAYERS = frozenset({"neuron_codes", "activation_vector", "lora"})
ON_SCORES = frozenset({"token_bias", "lexicon", "grammar", "memory", "graphmax", "micro_models", "future"})
log = logging.getLogger(__name__)


@functools.cache
def load_served(words: tuple[str, ...]) -> tuple[Control, ...]:
    """Return the controls of bundles, in the order in which they act.

    Raises:
        UserError: no such bundle, two of a name, or a kind that runs a model of its own.
    """
    register_ours()
    controls = tuple(sorted((load_named(word) for word in words), key=lambda control: control.stage))
    check_together(controls)
    refuse(
        f"control {control.name}: a {control.kind} is not served by vLLM (served: "
        f"{', '.join(sorted(ON_SCORES | READS_STATES | IN_LAYERS))}); use lit-ctg generate"
        for control in controls
        if control.kind not in ON_SCORES | READS_STATES | IN_LAYERS
        or isinstance(getattr(control, "classifier", None), StateProbe)
    )
    return controls


def settings_of(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``{"<control>.<setting>": value}`` of a request's extra arguments, nested or flat."""
    nested = (extra or {}).get(KEY, {})
    flat = {key[len(KEY) + 1 :]: value for key, value in (extra or {}).items() if key.startswith(f"{KEY}.")}
    found = {**nested, **flat} if isinstance(nested, Mapping) else {}
    reply = str(found.get(REPLY, 0))[:80]
    refuse({
        f'{KEY}: give a mapping, {{"<control>.<setting>": value}}': not isinstance(nested, Mapping),
        f"{REPLY}={reply}: give 0 or 1": found.get(REPLY, 0) not in (0, 1),
    })  # fmt: skip
    return found


def checked(controls: Iterable[Control], extra: Mapping[str, Any] | None) -> tuple[bool, dict[str, Values]]:
    """Return whether a request sets ``reply_only``, and the settings [1] of each control that acts on it.

    A control of which a request sets nothing is off: others share the engine.

    Raises:
        UserError: an unknown name or a value out of range.
    """
    settings = settings_of(extra)
    reply = settings.pop(REPLY, False)
    given = by_control(controls, settings)
    named = {control: control.values(given[control.name], 1) for control in controls if given[control.name]}
    return bool(reply), {control.name: values for control, values in named.items() if not control.off(values).all()}


@dataclass(eq=False)
class Request:
    """One text of the engine.

    Attributes:
        reply: whether the prompt is hidden from the controls.
        values: control -> its settings; only of controls that act.
        prompt, output: token ids; the engine's own list grows.
        failed: a control could not go on with it, so it ends.
    """

    reply: bool
    values: Mapping[str, Values]
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    failed: bool = False

    def fail(self, why: str) -> None:
        log.warning("a request ends after %d tokens: %s", len(self.output), why)
        self.failed = True


@dataclass
class _Attached:
    """A control's rule for some requests, and its hooks on the twin."""

    requests: tuple[Request, ...] = ()
    rule: ScoreRule | None = None
    handles: list[RemovableHandle] = field(default_factory=list)

    def detach(self) -> None:
        for handle in self.handles:
            handle.remove()


class ServedControls:
    """The controls of one engine.

    Args:
        words: folders or names of the bundles.
        config: Hugging Face configuration of the engine's model.
        tokenizer: of the model.

    Raises:
        UserError: a bundle is missing, is not served, or does not fit the model or tokenizer.
    """

    def __init__(self, words: Sequence[str], config: Any, tokenizer: Any) -> None:
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            self.twin = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        self.place(torch.empty(0))
        self.steered = Steered(self.twin, load_served(tuple(words)), tokenizer=tokenizer)
        self.controls = self.steered.controls
        self.end_id = tokenizer.eos_token_id
        self.start_id: int | None = tokenizer.bos_token_id
        self._rules: dict[str, _Attached] = {}
        self._layers = _Attached()
        self._tokens: Any = None

    def request(self, extra: Mapping[str, Any] | None, prompt: Sequence[int], output: Sequence[int]) -> Request:
        """Return a new request; settings that were not checked at the door end it."""
        try:
            return Request(*checked(self.controls, extra), prompt, output)
        except UserError as error:
            request = Request(False, {}, prompt, output)
            request.fail(one_line(error))
            return request

    def place(self, like: Tensor, head_VD: Tensor | None = None) -> None:
        """Give the twin the device and precision of the engine, and the weights of its output layer.

        Without those the twin has numbers that take no memory: controls look at their shape and precision alone.
        """
        for layer, weight in ((self.twin.get_input_embeddings(), None), (self.twin.get_output_embeddings(), head_VD)):
            own, shape = layer.weight, layer.weight.shape
            if weight is None and (own.is_meta or (own.dtype, own.device) != (like.dtype, like.device)):
                weight = torch.empty(1, 1, dtype=like.dtype, device=like.device).expand(shape)
            if weight is not None and (own.is_meta or own.data_ptr() != weight.data_ptr()):
                layer.weight = nn.Parameter(weight[: shape[0]], requires_grad=False)

    # scores ---------------------------------------------------------------------------------------------------------

    def apply(self, logits_NV: Tensor, requests: Mapping[int, Request], states_ND: Tensor | None = None) -> Tensor:
        """Return the logits under the controls, changed in place or not; other rows stay as they are.

        Args:
            requests: row -> its request.
            states_ND: what the output layer read, for the idea gate.
        """
        touched = set[int]()
        for control in self.controls:
            rows = sorted(row for row, request in requests.items() if control.name in request.values)
            if rows and control.stage != Stage.NETWORK:
                touched.update(rows)
                logits_NV = self._apply(control, logits_NV, rows, requests, states_ND)
        rows = sorted(touched)
        if rows and not bool((best_N := logits_NV[rows].amax(1)).isfinite().all()):
            for row, best in zip(rows, best_N.tolist(), strict=True):
                if not abs(best) < torch.inf:
                    requests[row].fail(f"its best score is {best}: the controls exclude each other or are too strong")
        for row in [row for row, request in requests.items() if request.failed]:
            logits_NV[row] = -torch.inf
            logits_NV[row, self.end_id] = 0.0
        return logits_NV

    def _apply(
        self,
        control: Control,
        logits_NV: Tensor,
        rows: Sequence[int],
        requests: Mapping[int, Request],
        states_ND: Tensor | None,
    ) -> Tensor:
        """Return the logits under one control; a text that it cannot go on with costs no other request."""
        acting = tuple(requests[row] for row in rows)
        index = torch.tensor(rows, device=logits_NV.device)
        try:
            attached = self._attached(control, acting)
            if states_ND is not None and control.kind in READS_STATES:
                head = self.twin.get_output_embeddings()
                for handle in attached.handles:
                    head._forward_pre_hooks[handle.id](head, (states_ND[index].unsqueeze(1),))
            whole = len(rows) == len(logits_NV)
            assert attached.rule is not None
            changed = attached.rule(self._prefixes(acting).to(index.device), logits_NV if whole else logits_NV[index])
            return changed.to(logits_NV) if whole else logits_NV.index_copy_(0, index, changed.to(logits_NV))
        except Exception as error:
            if len(rows) == 1:
                acting[0].fail(f"control {control.name}: {one_line(error)}")
                return logits_NV
            for row in rows:
                logits_NV = self._apply(control, logits_NV, [row], requests, states_ND)
            return logits_NV

    def _attached(self, control: Control, requests: tuple[Request, ...]) -> _Attached:
        """Return the rule of a control for these requests: the last one if they are the same."""
        attached = self._rules.get(control.name)
        if attached is not None and attached.requests == requests:
            return attached
        if attached is not None:
            attached.detach()
        values = _stacked([request.values[control.name] for request in requests])
        prefix = Prefix()
        handles = list(control.hooks(self.twin, values, prefix))
        attached = self._rules[control.name] = _Attached(requests, control.rule(values, prefix), handles)
        return attached

    def _prefixes(self, requests: Sequence[Request]) -> Tensor:
        """Return the texts so far [N, T], padded on the left."""
        texts = [
            [*([self.start_id] if self.start_id is not None else request.prompt[-1:]), *request.output]
            if request.reply
            else [*request.prompt, *request.output]
            for request in requests
        ]
        longest = max(map(len, texts))
        return torch.tensor([[NO_TOKEN] * (longest - len(text)) + text for text in texts])

    # layers ---------------------------------------------------------------------------------------------------------

    @property
    def in_layers(self) -> list[Control]:
        return [control for control in self.controls if control.stage == Stage.NETWORK]

    def attach(self, requests: Sequence[Request], row_T: Tensor, position_T: Tensor) -> None:
        """Attach the controls of layers to the twin, for the tokens of a step.

        Args:
            requests: of the rows.
            row_T: of each token.
            position_T: of each token in its text.
        """
        end_N = torch.tensor([len(request.prompt) - 1 for request in requests])
        reply_T, way_T = torch.tensor([request.reply for request in requests])[row_T], position_T - end_N[row_T]
        # where each control acts: as ``Prefix.places`` has it
        acts = {"all": ~reply_T | (way_T >= 0), "generated": way_T >= 0, "prompt_end": way_T == 0}
        known, tokens = self._tokens, (row_T, *acts.values())
        if known is not None and known[0] == tuple(requests) and all(map(torch.equal, known[1], tokens)):
            return
        self.detach()
        self._tokens = tuple(requests), tokens
        for control in self.in_layers:
            off = control.values({control.strength: 0}, 1)
            if any(control.name in request.values for request in requests):
                values = _stacked([request.values.get(control.name, off) for request in requests])
                values_T = {name: value[row_T] for name, value in values.items()}
                acts_T = acts[getattr(control, "tokens", "all")]
                values_T[control.strength] = values_T[control.strength].where(acts_T, 0.0)
                self._layers.handles += control.hooks(self.twin, values_T, Prefix())

    def detach(self) -> None:
        """Take the controls of layers off the twin."""
        self._layers.detach()
        self._layers, self._tokens = _Attached(), None

    def paths(self) -> set[str]:
        """Return the paths of the layers that controls change (``UserError``: one that changes an input)."""
        values = {control.name: control.values({}, 1) for control in self.in_layers}
        self.attach([Request(False, values)], torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
        modules = dict(self.twin.named_modules())
        found = {path for path, module in modules.items() if module._forward_hooks}
        before = [path for path, module in modules.items() if module._forward_pre_hooks]
        self.detach()
        refuse(f"a control changes the input of {path}, which vLLM's layers share with others" for path in before)
        return found

    def changed(self, path: str, inputs: Any, output: Tensor) -> Tensor:
        """Return a layer's output [T, O] under the controls."""
        layer = self.twin.get_submodule(path)
        for hook in list(layer._forward_hooks.values()):
            changed = hook(layer, inputs, output)
            output = output if changed is None else changed
        return output


def _stacked(values: Sequence[Values]) -> dict[str, Tensor]:
    return {name: torch.cat([each[name] for each in values]) for name in values[0]}
