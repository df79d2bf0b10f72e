"""Limits of settings: declared in annotations, checked for configurations and for Python alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import yaml
from annotated_types import Ge, Interval, Le, MinLen
from hydra.utils import get_object
from torch import Tensor, tensor

from lit_ctg.errors import UserError
from lit_ctg.limits import (
    Checked,
    Choice,
    Count,
    Fields,
    Fraction,
    Positive,
    _kind,
    _options,
    check_settings,
    check_value,
    checked,
    grouped,
    hints_of,
)
from lit_ctg.trust import TRUSTED

CONF = Path(__file__).resolve().parents[1] / "conf"
KINDS = ("one", "two")
BAD = (math.nan, math.inf, -math.inf, 10**400, True, 2.5, "x", "inf")


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configurations name the classes of this file."""
    monkeypatch.setenv(TRUSTED, __name__.partition(".")[0])


class Base(Checked):
    def __init__(self, *, size: Count = 3, **others: Any) -> None:
        self.size = size


class Made(Base):
    def __init__(
        self,
        *,
        share: Fraction = 0.5,
        factor: Positive = 1.0,
        any_number: float = 0.0,
        unlimited: Annotated[float, Interval(ge=0, le=math.inf)] = math.inf,
        flag: bool = False,
        text: str = "",
        kind: Annotated[str, Choice(KINDS)] = "one",
        sign: Literal[1, -1] = 1,
        optional: Annotated[int, Ge(2), Le(4)] | None = None,
        grades: Mapping[str, Fraction] | None = None,
        layers: Annotated[Sequence[int | str], MinLen(1)] = (1,),
        column: Tensor | float = 0.0,
        other: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.share = share


@checked
@dataclass(frozen=True)
class Settings:
    share: Fraction = 0.5


REFUSED = [
    ("share", -0.1),
    ("share", 1.5),
    ("share", None),
    ("share", [0.5]),
    ("factor", 0),
    ("any_number", "1"),
    ("unlimited", math.nan),
    ("flag", 7),
    ("flag", "yes"),
    ("flag", None),
    ("text", 3),
    ("kind", "oen"),
    ("kind", 1),
    ("sign", 0),
    ("sign", True),
    ("optional", 1),
    ("optional", 5),
    ("optional", 2.0),
    ("grades", 0.5),
    ("grades", [0.5]),
    ("layers", []),
    ("layers", "1"),
    ("column", math.nan),
    ("column", True),
    ("size", 0),
    ("size", True),
    ("size", 2.5),
    *[(name, value) for name in ("share", "factor", "any_number") for value in BAD if value != 2.5 or name == "share"],
]
TAKEN = [
    ("share", 1),
    ("share", np.float32(0.5)),
    ("factor", 1e9),
    ("any_number", -3),
    ("unlimited", math.inf),
    ("flag", np.bool_(True)),
    ("text", Path("a")),
    ("sign", -1),
    ("optional", None),
    ("optional", np.int64(4)),
    ("grades", {"a": 0.5}),
    ("layers", ("output", 2)),
    ("column", tensor([1.0, math.nan])),
    ("other", math.nan),
    ("size", 7),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_does_not_fit_is_refused_by_its_key(name: str, value: Any) -> None:
    cls = Base if name == "size" else Made
    with pytest.raises(UserError, match=rf"^{cls.__name__}\.{name}=.*: pass ") as caught:
        cls(**{name: value})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    with pytest.raises(UserError, match=rf"^model\.parts\[0\]\.{name}=.*: pass "):
        check_settings({"parts": [{"_target_": f"{__name__}.Made", name: value}]}, "model")


@pytest.fixture(autouse=True)
def _found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are no package that a configuration could name."""
    own = {f"{__name__}.{cls.__name__}": cls for cls in (Made, Base)}
    monkeypatch.setattr("lit_ctg.limits.resolve", lambda name, where: own.get(name) or get_object(name))


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_what_fits_is_taken(name: str, value: Any) -> None:
    Made(**{name: value})
    check_settings({"_target_": f"{__name__}.Made", name: value}, "model")


def test_elements_are_named_by_their_place() -> None:
    with pytest.raises(UserError, match=r"^Made\.grades\.b=2: pass a number from 0 to 1$"):
        Made(grades={"a": 0.5, "b": 2})
    with pytest.raises(UserError, match=r"^Made\.layers\[1\]=2\.5"):
        Made(layers=[1, 2.5])
    with pytest.raises(UserError, match=r"did you mean 'one'"):
        Made(kind="oen")
    with pytest.raises(UserError, match=r"^Settings\.share=2"):
        Settings(share=2)


def test_a_value_of_a_file_is_not_named_elsewhere() -> None:
    for value in ("???", {"_target_": "x"}):
        check_value("size", value, Count)
        with pytest.raises(UserError, match=r"^size="):
            check_value("size", value, Count, composed=False)


@checked
class Flat:
    """Takes the fields of ``Settings`` one by one."""

    def __init__(self, *, flag: bool = False, **settings: Annotated[Any, Fields(Settings)]) -> None:
        (self.settings,) = grouped(settings, Settings)


def test_arguments_of_a_group_keep_their_limits_and_names() -> None:
    assert Flat(share=0.25).settings == Settings(share=0.25) and {"share", "flag"} <= hints_of(Flat).keys()
    with pytest.raises(UserError, match=r"^part\.share=2: pass a"):
        check_settings({"_target_": f"{__name__}.Flat", "share": 2}, "part")
    with pytest.raises(TypeError, match="'sise'"):
        Flat(sise=2)


def test_a_wrong_call_is_left_to_the_constructor() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        Settings(sise=2)  # type: ignore[call-arg]


def targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [node["_target_"]] if "_target_" in node else []
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from targets(value)


TARGETS = sorted({name for path in CONF.rglob("*.yaml") for name in targets(yaml.safe_load(path.read_text("utf-8")))})


@pytest.mark.parametrize("target", [name for name in TARGETS if ".loggers." not in name])
def test_every_number_of_every_class_is_checked(target: str) -> None:
    """NaN, infinity, true, a word and, for counts, 2.5 end in one line that names the key, before anything is built."""
    for name, hint in hints_of(get_object(target)).items():
        kinds = {_kind(option) for option, _ in _options(hint)}
        if not kinds & {int, float} or object in kinds:
            continue
        bad = [math.nan, *[math.inf] * (not takes_infinity(hint)), *[True] * (bool not in kinds)]
        bad += [2.5] * (float not in kinds) + ["x"] * (str not in kinds)
        for value in bad:
            with pytest.raises(UserError, match=rf"^part\.{name}=[^\n]*: pass [^\n]*$"):
                check_settings({"_target_": target, name: value}, "part")


def takes_infinity(hint: Any) -> bool:
    return any(
        math.inf in (getattr(mark, "le", 0), getattr(mark, "ge", 0)) for _, marks in _options(hint) for mark in marks
    )
