"""Activation vectors: directions of classes in the states after blocks, which are added, removed, or turned towards.

How they are made (``method``): ``means``, the difference of the classes' mean states (CAA, Rimsky et al., 2023);
``pca``, the first principal component of the differences of pairs and of their negatives (RepE, Zou et al., 2023);
``pca_centred``, that of the differences about their own mean (repeng's default).

How they act (``form``): ``add`` (CAA); ``ablate`` takes the direction out of all that is written to the states (Arditi
et al., 2024, Eq. 4); ``rotate`` turns states in a plane that holds the direction (angular steering, Vu and Nguyen,
2025). With a ``condition`` a state is changed only where a linear probe fires (CAST, Lee et al., 2024).

Shape letters: B prompts, N rows, T positions, X texts, L blocks, C classes, D hidden size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from lit_ctg.control.base import (
    Control,
    Prefix,
    Stage,
    StateHook,
    Tokens,
    Values,
    added_ids,
    like_inputs,
)
from lit_ctg.control.bundle import check_weights
from lit_ctg.control.token_bias import ClassControl, check_classes, class_settings, class_shares
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError, refuse
from lit_ctg.files import check_regular, reading, replacing
from lit_ctg.network.layers import MIXERS, blocks

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Form = Literal["add", "ablate", "rotate"]
Scale = Literal["norm", "raw"]
Method = Literal["means", "pca", "pca_centred"]
Read = Literal["mean", "last"]
# texts read at a time, and tokens of each
TOGETHER, LONGEST = 8, 256
ARCHITECTURE = "controlvector"
Texts = Sequence[str] | Sequence[Sequence[int]]


# the equations --------------------------------------------------------------------------------------------------------


def added(state: Tensor, unit: Tensor, strength: Tensor) -> Tensor:
    """Return h + strength |h| unit: a step whose length is a share of the state's."""
    return state + strength * state.norm(dim=-1, keepdim=True) * unit


def ablated(state: Tensor, unit: Tensor, share: Tensor) -> Tensor:
    """Return h - share (h . unit) unit; with share 1 nothing is left of the direction."""
    return state - share * (state * unit).sum(-1, keepdim=True) * unit


def turned(state: Tensor, first: Tensor, second: Tensor, angle: Tensor, share: Tensor) -> Tensor:
    """Turn a state's part in the plane of two orthonormal vectors a share of the short way to an angle from ``first``.

    With share 1 this is h - P h + |P h| (cos(angle) first + sin(angle) second), P the projection to the plane.
    """
    along, across = ((state * axis).sum(-1, keepdim=True) for axis in (first, second))
    own, length = torch.atan2(across, along), torch.hypot(along, across)
    way = torch.remainder(angle - own + math.pi, 2 * math.pi) - math.pi
    new = own + share * way
    return state + (length * new.cos() - along) * first + (length * new.sin() - across) * second


@dataclass(frozen=True)
class Condition:
    """Fires for the states h after a block for which h . weight / |h| + bias > 0.

    CAST compares the cosine of a state and a vector c with a threshold: weight c / |c|, bias -threshold.
    """

    block: int
    weight_D: Tensor
    bias: float

    def fires(self, state: Tensor) -> Tensor:
        """Return [..., 1] bool."""
        wide = state.to(torch.promote_types(state.dtype, torch.float32))
        length = wide.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
        return (wide @ self.weight_D.to(wide)).unsqueeze(-1) / length + self.bias > 0


# the control ----------------------------------------------------------------------------------------------------------


class ActivationVector(ClassControl):
    """Moves the states after some blocks along the direction of a class.

    Args:
        classes: their names, in order.
        directions: number of a block, from 0 -> the directions of the classes, [C, D]. For ``rotate`` they are the
            same everywhere.
        form: see above.
        tokens: where it acts, see ``Prefix.places``.
        scale: of ``add``: ``norm`` in units of each state's norm, shared equally by the blocks; ``raw`` as long as the
            directions are, at each block.
        plane_CD: of ``rotate``: a second vector of each class's plane.
        condition: on the states it changes; None: everywhere.

    Raises:
        UserError: no block, or vectors of different sizes; a condition on a block after the first that is changed.
    """

    kind, stage, of_ids = "activation_vector", Stage.NETWORK, False

    def __init__(
        self,
        classes: Sequence[str],
        directions: Mapping[int, Tensor],
        *,
        form: Form = "add",
        tokens: Tokens = "all",
        scale: Scale = "norm",
        plane_CD: Tensor | None = None,
        condition: Condition | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.classes, self.form, self.tokens, self.scale = check_classes(classes), form, tokens, scale
        self.directions = {block: directions[block].detach().float() for block in sorted(directions)}
        self.plane_CD = None if plane_CD is None else plane_CD.detach().float()
        self.condition = condition
        vectors = [*self.directions.values(), *([] if self.plane_CD is None else [self.plane_CD])]
        size = vectors[0].shape[-1] if vectors else 0
        sizes = {tuple(each.shape) for each in vectors} | {
            (len(self.classes), each.weight_D.numel()) for each in [condition] if each is not None
        }
        me = f"control {self.name}"
        refuse({
            f"{me}: it has no block: give the directions of one at least": not self.directions,
            f"{me}: vectors of sizes {sorted(sizes)} for {len(self.classes)} classes: give [classes, hidden size]":
                sizes != {(len(self.classes), size)} or size == 0,
            f"{me}: form=rotate needs plane_CD, a second vector for each class": form == "rotate" and not vectors[1:],
            f"{me}: the condition looks at a block after the first one that is changed: give an earlier block":
                condition is not None and not 0 <= condition.block <= min(self.directions, default=0),
        })  # fmt: skip

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        if self.form == "add":
            meaning, default = ("of the vector", 1.0) if self.scale == "raw" else ("of the state's norm", 0.2)
            strength = ControlSetting("strength", f"multiple {meaning} that is added; 0: none", default, low=0.0)
        else:
            what = "of the direction that is removed" if self.form == "ablate" else "of the way to the angle"
            strength = ControlSetting("strength", f"share {what}; 0: none", 1.0, low=0.0, high=1.0)
        angle = ControlSetting("angle", "degrees from the direction of the class", 0.0, low=-360.0, high=360.0)
        return (strength, *([angle] if self.form == "rotate" else []), *class_settings(self.classes))

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        count, most = sum(1 for _ in blocks(model)), max(self.directions)
        if most >= count:
            raise UserError(
                f"control {self.name} changes block {most}, this model has blocks 0 to {count - 1}: "
                "use the model it was made for"
            )

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        parts, strength_B1 = [part for _, part in blocks(model)], values["strength"].unsqueeze(1)
        share_BC, off_B, condition = class_shares(self.classes, values), self.off(values), self.condition
        fired: Tensor | None = None

        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            nonlocal fired
            assert condition is not None
            fired = condition.fires(output[0] if isinstance(output, tuple) else output)

        def move(state: Tensor, *given: Tensor) -> Tensor:
            new = self._move(state, *given)
            return new if fired is None else torch.where(fired.to(state.device), new, state)

        handles = []
        if condition is not None:
            handles.append(parts[condition.block].register_forward_hook(note))
        for block, direction_CD in self.directions.items():
            vector_BD = share_BC @ direction_CD.double().cpu()
            given = self._values(vector_BD, share_BC, strength_B1, values)
            hook = StateHook(move, given, off_B, prefix, tokens=self.tokens, wide=True)
            handles.append(parts[block].register_forward_hook(hook))
            if self.form == "ablate" and condition is None:  # nor may a part of the block read or write it
                handles += [mixer.register_forward_hook(hook) for mixer in _mixers(parts[block])]
                if block - 1 not in self.directions:
                    handles.append(parts[block].register_forward_pre_hook(hook.before))
        return handles

    def _values(self, vector_BD: Tensor, share_BC: Tensor, strength_B1: Tensor, values: Values) -> list[Tensor]:
        """Return what ``_move`` takes, a row a prompt."""
        unit_BD = nn.functional.normalize(vector_BD, dim=1)
        if self.form == "add" and self.scale == "raw":
            return [strength_B1 * vector_BD]
        if self.form == "add":
            return [unit_BD, strength_B1 / len(self.directions)]
        if self.form == "ablate":
            return [unit_BD, strength_B1]
        assert self.plane_CD is not None
        other_BD = share_BC @ self.plane_CD.double().cpu()
        second_BD = other_BD - (other_BD * unit_BD).sum(1, keepdim=True) * unit_BD
        return [unit_BD, nn.functional.normalize(second_BD, dim=1), values["angle"].deg2rad().unsqueeze(1), strength_B1]

    @property
    def _move(self) -> Any:
        if self.form == "add":
            return torch.add if self.scale == "raw" else added
        return ablated if self.form == "ablate" else turned

    def shape(self) -> dict[str, int]:
        return {"hidden_size": next(iter(self.directions.values())).shape[1]}

    def config(self) -> dict[str, Any]:
        at = None if self.condition is None else {"block": self.condition.block, "bias": self.condition.bias}
        own = {"classes": list(self.classes), "blocks": list(self.directions), "form": self.form}
        return {**own, "tokens": self.tokens, "scale": self.scale, "condition": at}

    def tensors(self) -> dict[str, Tensor]:
        found = {f"direction.{block}": direction_CD for block, direction_CD in self.directions.items()}
        if self.plane_CD is not None:
            found["plane"] = self.plane_CD
        return found if self.condition is None else {**found, "condition": self.condition.weight_D}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> ActivationVector:
        at = config["condition"]
        return cls(
            config["classes"],
            {block: tensors[f"direction.{block}"] for block in config["blocks"]},
            **{key: config[key] for key in ("form", "tokens", "scale")},
            plane_CD=tensors.get("plane"),
            condition=None if at is None else Condition(at["block"], tensors["condition"], float(at["bias"])),
        )


def _mixers(block: nn.Module) -> list[nn.Module]:
    """Return the parts of a block that mix positions: what they write is read before the block ends."""
    return [part for part in block.children() if any(word in type(part).__name__.lower() for word in MIXERS)]


# made of texts --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def states(
    model: Any, tokenizer: Any, texts: Texts, *, read: Read = "mean", normed: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the states of texts after each block [X, L, D], and their norms [X, L], in float32.

    Args:
        texts: or lists of ids, such as conversations of a chat; at most ``LONGEST`` tokens of each are read.
        read: the mean over a text's tokens after the first (whose states are far larger), or the ``last`` token's.
        normed: divide each state by its norm first.

    Raises:
        UserError: a text without a token.
    """
    front, back = added_ids(tokenizer)
    rows = [_ids(tokenizer, text, back)[:LONGEST] for text in texts]
    refuse({"a text has no token: remove it": not all(len(row) > len(front) for row in rows)})
    parts, found, heard = [part for _, part in blocks(model)], dict[int, Tensor](), list[Tensor]()

    def hear(_module: nn.Module, _inputs: Any, output: Any) -> None:
        state_NTD = (output[0] if isinstance(output, tuple) else output).float()
        norm_NT1 = state_NTD.norm(dim=2, keepdim=True)
        own_NTD = state_NTD / norm_NT1 if normed else state_NTD
        heard.append(torch.cat([own_NTD, norm_NT1], dim=2))

    handles = [part.register_forward_hook(hear) for part in parts]
    try:
        # texts of like lengths together
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        for first in range(0, len(order), TOGETHER):
            places = order[first : first + TOGETHER]
            longest = len(rows[places[-1]])
            ids_NT = torch.tensor([[*rows[place], *[0] * (longest - len(rows[place]))] for place in places])
            mask_NT = torch.tensor([[1] * len(rows[place]) + [0] * (longest - len(rows[place])) for place in places])
            where = like_inputs(model).device
            heard.clear()
            model(input_ids=ids_NT.to(where), attention_mask=mask_NT.to(where), use_cache=False)
            for row, place in enumerate(places):
                length = len(rows[place])
                start = length - 1 if read == "last" else min(1, length - 1)
                found[place] = torch.stack([each[row, start:length].mean(0) for each in heard]).cpu()
    finally:
        for handle in handles:
            handle.remove()
    both_XLE = torch.stack([found[place] for place in range(len(rows))])
    return both_XLE[..., :-1], both_XLE[..., -1]


def _ids(tokenizer: Any, text: str | Sequence[int], back: Sequence[int]) -> list[int]:
    """Return the ids of a text as a prompt has them: without what ends it."""
    if not isinstance(text, str):
        return list(text)
    ids = list(tokenizer(text).input_ids)
    return ids[: len(ids) - len(back)] if back and ids[-len(back) :] == list(back) else ids


def direction(states_XLD: Sequence[Tensor], chosen: int, method: Method) -> Tensor:
    """Return the direction [L, D] from the other classes to the ``chosen`` one, in float64.

    Args:
        states_XLD: of the texts of each class. For a principal component, the texts of one number are a pair; of
            several others, each in turn gives one.
    """
    own_XLD = states_XLD[chosen].double()
    others = [each.double() for place, each in enumerate(states_XLD) if place != chosen]
    if method == "means":
        return own_XLD.mean(0) - torch.stack([each.mean(0) for each in others]).mean(0)
    count = min(map(len, states_XLD))
    rest_XLD = torch.stack([others[number % len(others)][number] for number in range(count)])
    apart_LXD = (own_XLD[:count] - rest_XLD).transpose(0, 1)
    about_LXD = apart_LXD - apart_LXD.mean(1, keepdim=True) if method == "pca_centred" else apart_LXD
    component_LD = torch.linalg.svd(about_LXD, full_matrices=False).Vh[:, 0]
    # towards the class in most pairs, or on the mean
    along_LX = (apart_LXD @ component_LD.unsqueeze(2)).squeeze(2)
    votes_L = along_LX.sign().sum(1) + 0.5 * along_LX.mean(1).sign()
    return component_LD * torch.where(votes_L < 0, -1.0, 1.0).unsqueeze(1)


def separation(states_XLD: Sequence[Tensor], directions_CLD: Tensor) -> Tensor:
    """Return [L], by how many standard deviations a direction parts its class from the others, the classes' mean."""
    found = []
    for place, direction_LD in enumerate(directions_CLD):
        along = [(each.double() * direction_LD).sum(2) for each in states_XLD]
        own_XL, rest_XL = along[place], torch.cat([each for other, each in enumerate(along) if other != place])
        spread_L = ((own_XL.var(0, unbiased=False) + rest_XL.var(0, unbiased=False)) / 2).sqrt()
        found.append((own_XL.mean(0) - rest_XL.mean(0)) / spread_L.clamp(min=1e-12))
    return torch.stack(found).mean(0)


def of_texts(
    model: Any,
    tokenizer: Any,
    texts: Mapping[str, Texts],
    *,
    method: Method = "means",
    form: Form = "add",
    layers: Literal["middle", "all", "best"] | Sequence[int] | None = None,
    tokens: Tokens = "all",
    scale: Scale = "norm",
    read: Read = "mean",
    condition: tuple[Texts, Texts] | None = None,
    name: str | None = None,
) -> ActivationVector:
    """Return the vectors of classes of texts in the states of a model.

    With ``scale="norm"`` a direction is stored as long as the states after its block usually are (their median), shared
    equally by the blocks.

    Args:
        texts: class -> its texts. For a principal component those of one number are a pair.
        layers: blocks that are changed, from 0: the ``middle`` third (of ``add`` and ``rotate`` by default), ``all``
            (of ``ablate``), or the ``best``, which parts held-out texts (each fourth) most clearly.
        condition: texts where it shall act, and texts where it shall not.

    Raises:
        UserError: fewer than two texts of a class, or a block that the model does not have.
    """
    classes = check_classes(list(texts))
    refuse({f"texts of {each}: give two or more, better fifty": len(own) < 2 for each, own in texts.items()})
    pairs = [states(model, tokenizer, own, read=read) for own in texts.values()]
    found = [state_XLD for state_XLD, _ in pairs]
    norm_L = torch.cat([norm_XL for _, norm_XL in pairs]).median(0).values.double()
    count = len(norm_L)
    directions_CLD = torch.stack([direction(found, place, method) for place in range(len(classes))])
    plane_CD = None
    at: Sequence[int]
    if isinstance(layers, str) or layers is None:
        middle = range(count // 3, max(count // 3 + 1, 2 * count // 3))
        whole = layers == "all" or (layers is None and form == "ablate")
        at = range(count) if whole else [_best(found, method)] if layers == "best" else middle
    else:
        at = sorted(set(layers))
    refuse({f"layers={list(at)}: the model has blocks 0 to {count - 1}": not at or not set(at) <= set(range(count))})
    unit_CLD = nn.functional.normalize(directions_CLD, dim=2)
    if form == "rotate":
        # the direction most like the others, and the axis along which they vary most
        like_L = torch.einsum("cld,cmd->l", unit_CLD, unit_CLD)
        directions_CLD = unit_CLD[:, int(like_L.argmax())].unsqueeze(1).expand_as(unit_CLD)
        about_CLD = unit_CLD - unit_CLD.mean(1, keepdim=True)
        plane_CD = torch.linalg.svd(about_CLD if count > 1 else unit_CLD, full_matrices=False).Vh[:, 0]
    elif form == "ablate":
        directions_CLD = unit_CLD[:, _best(found, method)].unsqueeze(1).expand_as(unit_CLD)
    elif scale == "norm":
        directions_CLD = unit_CLD * norm_L.view(1, -1, 1) / len(at)
    return ActivationVector(
        classes,
        {block: directions_CLD[:, block] for block in at},
        form=form,
        tokens=tokens,
        scale=scale,
        plane_CD=plane_CD,
        condition=None if condition is None else condition_of(model, tokenizer, *condition, most=min(at)),
        name=name,
    )


def _best(states_XLD: Sequence[Tensor], method: Method) -> int:
    """Return the block whose direction, of three texts of four, parts the others best; of all, if there are few."""
    kept = [[place % 4 < 3 or len(each) < 8 for place in range(len(each))] for each in states_XLD]
    held = [[place % 4 == 3 or len(each) < 8 for place in range(len(each))] for each in states_XLD]
    train, test = (
        [each[torch.tensor(own)] for each, own in zip(states_XLD, part, strict=True)] for part in (kept, held)
    )
    directions_CLD = torch.stack([direction(train, place, method) for place in range(len(states_XLD))])
    return int(separation(test, nn.functional.normalize(directions_CLD, dim=2)).argmax())


def condition_of(model: Any, tokenizer: Any, fires: Texts, rest: Texts, *, most: int) -> Condition:
    """Return the condition that parts the states of two sets of texts, at the best block up to ``most``."""
    both = [states(model, tokenizer, own, normed=True)[0][:, : most + 1] for own in (fires, rest)]
    apart_LD = nn.functional.normalize(direction(both, 0, "means"), dim=1)
    block = int(separation(both, torch.stack([apart_LD, -apart_LD])).argmax())
    middle = sum(float((each[:, block].double() @ apart_LD[block]).mean()) for each in both) / 2
    return Condition(block, apart_LD[block].float(), -middle)


# files of llama.cpp and repeng ----------------------------------------------------------------------------------------


def read_gguf(path: str | Path) -> ActivationVector:
    """Return the vectors of llama.cpp's file: ``direction.<k>`` is added to the states after block k, counted from 0.

    ``to_positive`` adds a vector, ``to_negative`` subtracts it.

    Raises:
        UserError: no such file, or not a control vector (repeng's pickle: its ``export_gguf`` writes this format).
    """
    from lit_ctg.network.pretrained import gguf_reader

    file = Path(path)
    with reading(file, "a GGUF control vector", "export it again, repeng by vector.export_gguf(path)", Exception):
        check_regular(file)
        reader = gguf_reader(file)
        kind = reader.get_field("general.architecture")
        if kind is None or kind.contents() != ARCHITECTURE:
            raise ValueError(f"its architecture is not {ARCHITECTURE}")
        found = {}
        for tensor in reader.tensors:
            block = re.fullmatch(r"direction\.(0|[1-9]\d{0,3})", tensor.name)
            if block is None or tensor.data.ndim != 1 or tensor.tensor_type.name not in ("F32", "F16", "F64"):
                raise ValueError(f"{tensor.name[:40]} is not a direction of real numbers")
            vector_D = torch.tensor(tensor.data).float()
            found[int(block[1])] = torch.stack([vector_D, -vector_D])
        check_weights({f"direction.{block}": each for block, each in found.items()})
        return ActivationVector(["positive", "negative"], found, scale="raw")


def write_gguf(control: Control, path: str | Path, model: Any = None) -> None:
    """Write vectors for llama.cpp (``--control-vector-scaled``) and repeng (``ControlVector.import_gguf``).

    They add a multiple of the stored vector. With ``scale="norm"`` that is a share of the usual norm after each block,
    not of each state's own.

    Raises:
        UserError: not vectors of two classes that are added everywhere, or one at block 0, where llama.cpp has none.
    """
    from gguf import GGUFWriter

    adds = isinstance(control, ActivationVector) and (control.form, control.tokens) == ("add", "all")
    refuse({
        f"control {control.name}: a GGUF file holds vectors of two classes that are added at all tokens": not (
            adds and len(control.classes) == 2 and control.condition is None),  # type: ignore[attr-defined]
        f"control {control.name}: llama.cpp has no vector at block 0: make it with other layers":
            adds and 0 in control.directions,  # type: ignore[attr-defined]
    })  # fmt: skip
    assert isinstance(control, ActivationVector)
    with replacing(Path(path)) as temporary:
        writer = GGUFWriter(str(temporary), ARCHITECTURE)
        hint = str(getattr(getattr(model, "config", None), "model_type", "") or "unknown")
        writer.add_string(f"{ARCHITECTURE}.model_hint", hint)
        writer.add_uint32(f"{ARCHITECTURE}.layer_count", len(control.directions))
        for block, direction_CD in control.directions.items():
            writer.add_tensor(f"direction.{block}", direction_CD[0].contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
