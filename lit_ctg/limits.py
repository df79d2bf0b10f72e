"""Limits of settings: constructors declare them in annotations, and what does not fit is refused.

``top_p: Nucleus`` or ``steps: Annotated[int, Interval(ge=1, le=9)]``. Without limits ``int``, ``float``, ``bool``,
``str``, ``Literal`` and ``None`` are checked by type, and so are the elements of lists and mappings. A float is finite
unless a limit is infinite. Arguments of other classes are not looked at. A text among the marks of an annotation says
what to pass: ``Annotated[str, "a folder or a hub name"]``.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Interval, MinLen
from omegaconf import DictConfig, OmegaConf

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.trust import resolve

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Nucleus = Annotated[float, Interval(gt=0, le=1)]
Dropout = Annotated[float, Interval(ge=0, lt=1)]
# beyond it half precision overflows
Gain = Annotated[float, Interval(ge=-10000, le=10000)]
Weight = Annotated[float, Interval(ge=0, le=10000)]
Count = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]
Pretrained = Annotated[str, "a folder that save_pretrained wrote, a name of lit-ctg model list, or a hub name"]
# no sample text is larger
SampleSize = Annotated[int, Interval(ge=1, le=10**9)]
Source = Literal["sample", "local", "hub"]
Seed = Annotated[int, Interval(ge=0, lt=2**32)]

# what other packages do not declare; Lightning takes -1 for "no limit", and 0 would leave nothing to run or to measure
FOREIGN: dict[str, dict[str, Any]] = {
    "lightning.pytorch.trainer.trainer.Trainer": {
        "max_epochs": Count | Literal[-1] | None,
        "max_steps": Count | Literal[-1],
        "accumulate_grad_batches": Count,
        "check_val_every_n_epoch": Count | None,
        "log_every_n_steps": Count | None,
        "gradient_clip_val": NonNegative | None,
        "limit_train_batches": Whole | Fraction | None,
        "limit_val_batches": Count | Nucleus | None,
        "val_check_interval": Count | Nucleus | str | None,
        "num_nodes": Count,
    }
}

# choices that a message names
MOST_NAMED = 60
_COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_WORDS = {type(None): "null", bool: "true or false", str: "a text", Mapping: "{name: value}", Sequence: "a list"}
Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Choice:
    """Marks a text that is one of ``options``, read when the value is checked; ``aliases`` lead to the closest one."""

    options: Collection[str]
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Matches:
    """Marks a text that a regular expression matches as a whole; a text beside it says what that is."""

    pattern: str


@dataclass(frozen=True)
class Fields:
    """Marks a mapping, or ``**options``, that holds arguments of a class or function, which declares their limits."""

    of: Callable[..., Any]


def grouped(settings: Mapping[str, Any], *groups: type[Any]) -> list[Any]:
    """Build dataclasses, each from the settings that are its fields.

    Raises:
        TypeError: no dataclass has a setting, as in a call with an unknown argument.
    """
    names = [{one.name for one in fields(group)} for group in groups]
    if unknown := settings.keys() - set().union(*names):
        raise TypeError(f"got an unexpected keyword argument '{min(unknown)}'")
    pairs = zip(groups, names, strict=True)
    return [group(**{name: value for name, value in settings.items() if name in own}) for group, own in pairs]


def checked(thing: Target) -> Target:
    """Make a function, or the constructor of a class, check its arguments; for classes without a base that does."""
    if isinstance(thing, type) and "__init__" not in vars(thing):
        return thing
    build: Any = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    signature = inspect.signature(build)

    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}  # what is called says which argument is missing or unknown
        _check(_hints(build), given, type(args[0]).__name__ if isinstance(thing, type) else build.__name__)
        built = build(*args, **kwargs)
        # of the class itself, not of its bases
        if isinstance(thing, type) and type(args[0]).__init__ is call and hasattr(thing, "note_arguments"):
            args[0].note_arguments(_flat(signature, given))
        return built

    if not isinstance(thing, type):
        return call  # type: ignore[return-value]
    thing.__init__ = call  # type: ignore[misc]
    return thing


def _flat(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return bound arguments without the object itself, ``**options`` one by one."""
    named = dict(list(given.items())[1:])
    spread = [name for name, one in signature.parameters.items() if one.kind == one.VAR_KEYWORD and name in named]
    return named | {name: value for option in spread for name, value in named.pop(option).items()}


class Checked:
    """A base whose subclasses all check the arguments of their constructors."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checked(cls)


def check_settings(node: Any, where: str) -> None:
    """Check what a configuration node gives to the classes that it names, before they are built."""
    if isinstance(node, DictConfig):
        node = OmegaConf.to_container(node, resolve=True)
    if isinstance(node, list):
        for place, item in enumerate(node):
            check_settings(item, f"{where}[{place}]")
    elif isinstance(node, dict):
        if "_target_" in node:
            _check(hints_of(resolve(node["_target_"], where)), node, where)
        for name, value in node.items():
            check_settings(value, f"{where}.{name}")


@functools.cache
def hints_of(target: Any) -> Mapping[str, Any]:
    """Return the annotations of the arguments that a class or function takes, ``**options`` of its bases included."""
    if not isinstance(target, type):
        return _hints(target)
    found: dict[str, Any] = {}
    for cls in (cls for cls in target.__mro__[:-1] if "__init__" in vars(cls)):
        build = vars(cls)["__init__"]
        spread = [name for name, one in inspect.signature(build).parameters.items() if one.kind == one.VAR_KEYWORD]
        marks = [mark for name in spread for _, marks in _options(_hints(build).get(name)) for mark in marks]
        found = {
            **{name: hint for mark in marks if isinstance(mark, Fields) for name, hint in hints_of(mark.of).items()},
            **_hints(build),
            **FOREIGN.get(f"{cls.__module__}.{cls.__qualname__}", {}),
            **found,
        }
        if all(one.kind != one.VAR_KEYWORD for one in inspect.signature(build).parameters.values()):
            break
    return found


@functools.cache
def _hints(build: Callable[..., Any]) -> Mapping[str, Any]:
    build = inspect.unwrap(build)
    found: dict[str, Any] = {}
    for name, hint in getattr(build, "__annotations__", {}).items():
        if name == "return":
            continue
        one = SimpleNamespace(__annotations__={name: hint})
        try:
            found |= typing.get_type_hints(one, getattr(build, "__globals__", {}), include_extras=True)
        except NameError:  # imported for type checkers only: an object
            continue
    return found


def check_arguments(target: Any, given: Mapping[str, Any], where: str) -> None:
    """Refuse arguments that a class or function does not take; ``UserError`` names them below ``where``."""
    _check(hints_of(target), given, where)


def check_mapping(where: str, data: Any, hints: Mapping[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a file holds if it is a mapping with the ``required`` keys, all known, and values that fit them.

    Raises:
        UserError: begins with ``where`` and names the key.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where}: give a mapping with {', '.join(hints)}")
    for key in (*data, *required):
        if key not in hints or key not in data:
            unknown = f"unknown key '{key}'{did_you_mean(str(key), hints)}"
            raise UserError(f"{where}: " + (f"'{key}' is missing" if key in hints else unknown))
        check_value(f"{where}, {key}", data[key], hints[key])
    return data


def _check(hints: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name in hints:
            check_value(f"{where}.{name}", value, hints[name])


def kinds_of(hint: Any) -> set[Any]:
    """Return which of the types that are checked an annotation allows: ``Sequence`` for any list, ``object`` else."""
    return {_kind(option) for option, _ in _options(hint)}


def check_value(key: str, value: Any, hint: Any, *, composed: bool = True) -> None:
    """Refuse a value, or an element of it, that an annotation excludes; ``UserError`` names the key.

    A value that is ``composed`` may be named or built elsewhere (``???``, ``_target_``), one of a file may not.
    """
    options = [(option, marks, _kind(option)) for option, marks in _options(hint)]
    kinds = {kind for *_, kind in options}
    built = composed and isinstance(value, Mapping) and "_target_" in value  # its own class refuses it
    missing = composed and isinstance(value, str) and value == "???"  # named elsewhere
    if built or missing or (object in kinds and not (isinstance(value, Real) and kinds & {int, float})):
        return
    for option, marks, kind in options:
        if kind is not object and _fits(value, option, marks, kind):
            for place, item, inner in _elements(value, option, marks, kind):
                check_value(key + place, item, inner, composed=composed)
            return
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    expected = dict.fromkeys(_expected(*one) for one in options if one[2] is not object)
    choices = [str(choice) for option, marks, _ in options for choice in _choices(option, marks)]
    aliases = [mark.aliases for _, marks, _ in options for mark in marks if isinstance(mark, Choice)]
    closest = did_you_mean(next((one[shown] for one in aliases if shown in one), shown), choices)
    raise UserError(f"{key}={' '.join(shown.split())[:80]}: pass {' or '.join(expected)}{closest}")


def _options(hint: Any, marks: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the types of a union, each with its limits."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _options(parts[0], (*marks, *parts[1:]))
    elif origin in (Union, types.UnionType):
        for part in parts:
            yield from _options(part, marks)
    else:
        yield hint, marks


def _kind(option: Any) -> Any:
    """Return which of the types that are checked it is, ``object`` for all others."""
    origin = get_origin(option) or option
    if origin in (bool, int, float, str, Literal, types.NoneType):
        return origin
    if origin in (dict, Mapping):
        return Mapping
    return Sequence if origin in (list, tuple, set, Sequence, Collection, Iterable) else object


def _choices(option: Any, marks: Iterable[Any]) -> list[Any]:
    named = [choice for mark in marks if isinstance(mark, Choice) for choice in mark.options]
    return [*get_args(option)] if get_origin(option) is Literal else named


def _fits(value: Any, option: Any, marks: Iterable[Any], kind: Any) -> bool:
    if (choices := _choices(option, marks)) or any(isinstance(mark, Choice) for mark in marks):
        return any(type(value) is type(choice) and value == choice for choice in choices)
    least = max((mark.min_length for mark in marks if isinstance(mark, MinLen)), default=0)
    if kind in (Mapping, Sequence):
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        return several and isinstance(value, Mapping) == (kind is Mapping) and (not least or len(value) >= least)
    if kind is str:
        patterns = [mark.pattern for mark in marks if isinstance(mark, Matches)]
        fits = isinstance(value, str | os.PathLike) and len(os.fspath(value)) >= least
        return fits and all(re.fullmatch(pattern, os.fspath(value)) for pattern in patterns)
    if kind not in (int, float):
        return isinstance(value, bool | np.bool_ if kind is bool else kind)
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral if kind is int else Real):
        return False
    limits, number = _limits(marks), int(value) if isinstance(value, Integral) else float(value)
    finite = kind is int or abs(number) <= sys.float_info.max or number in limits.values()
    return finite and all(_COMPARE[name](number, limit) for name, limit in limits.items())


def _limits(marks: Iterable[Any]) -> dict[str, Any]:
    return {name: limit for mark in marks for name in _COMPARE if (limit := getattr(mark, name, None)) is not None}


def _elements(value: Any, option: Any, marks: Iterable[Any], kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the elements of a list or mapping, each with its place and annotation."""
    parts, classes = get_args(option), [mark.of for mark in marks if isinstance(mark, Fields)]
    if kind is Mapping and classes:
        hints = hints_of(classes[0])
        yield from ((f".{name}", item, hints.get(name, Any)) for name, item in value.items())
    elif kind is Mapping and parts:
        yield from ((f".{name}", item, parts[1]) for name, item in value.items())
    elif kind is Sequence and isinstance(value, list | tuple) and (len(parts) == 1 or parts[1:] == (...,)):
        yield from ((f"[{place}]", item, parts[0]) for place, item in enumerate(value))


def _expected(option: Any, marks: Iterable[Any], kind: Any) -> str:
    """Return what to pass, in words."""
    if named := [mark for mark in marks if isinstance(mark, str)] or _choices(option, marks):
        more = [f"... ({len(named)} in all)"] * (len(named) > MOST_NAMED)
        return f"one of {', '.join([*map(str, named[:MOST_NAMED]), *more])}" if len(named) > 1 else str(named[0])
    if any(isinstance(mark, Choice) for mark in marks):
        return "nothing, as there is none to choose from"
    if kind not in (int, float):
        return _WORDS[kind] + " that is not empty" * any(isinstance(mark, MinLen) for mark in marks)
    limits = {name: limit for name, limit in _limits(marks).items() if abs(limit) < math.inf}
    words = {"ge": "from", "gt": "above", "le": "to" if "ge" in limits else "at most", "lt": "below"}
    bounds = [f"{words[name]} {limits[name]}" for name in words if name in limits]
    what = "whole" if kind is int else "finite" if not {"le", "lt"} & limits.keys() else ""
    number = " ".join(filter(None, ("a", what, "number")))
    return f"{number} {(' ' if 'to' in words.values() else ', ').join(bounds)}".rstrip()
