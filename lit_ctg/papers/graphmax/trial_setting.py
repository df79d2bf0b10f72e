"""Checks of what the graphmax callbacks are given, made when they are built: a mistake must not cost a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.graphmax.variant import checked_name

Methods = Mapping[str, Mapping[str, Any]]


def check_whole(where: str, least: int, **given: Any) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        UserError: names the setting as ``where.name=value``.
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{where}.{name}={value}: give a whole number of at least {least}")


def check_real(where: str, *, above: float, most: float = math.inf, **given: Any) -> None:
    """Refuse what is no finite number above ``above`` and at most ``most``.

    Raises:
        UserError: names the setting as ``where.name=value``.
    """
    for name, value in given.items():
        if not _is_number(value) or not above < value <= most:
            upper = "" if most == math.inf else f" and at most {most:g}"
            raise UserError(f"{where}.{name}={value}: give a number above {above:g}{upper}")


def checked_methods(where: str, given: Methods, *, strengths: str = "strength") -> dict[str, Mapping[str, Any]]:
    """Return the methods that have a variant; a null variant leaves one out.

    Args:
        where: how the setting is called in the configuration.
        given: name -> ``{variant: ..., <strengths>: ...}``.
        strengths: ``strength`` for one number, ``strengths`` for a list.

    Raises:
        UserError: an unknown variant or key, a strength that is no number >= 0, or no method at all.
    """
    for name, setting in given.items():
        place = f"{where}.{name}"
        if not isinstance(setting, Mapping) or "variant" not in setting:
            raise UserError(f"{place}={setting}: give {{variant: <name>, {strengths}: ...}}")
        for key in setting:
            if key not in ("variant", strengths):
                hint = did_you_mean(str(key), ["variant", strengths])
                raise UserError(f"{place} has no setting '{key}'{hint}: give variant and {strengths}")
        if setting["variant"] is not None:
            checked_name(setting["variant"], f"{place}.variant")
        values = setting.get(strengths)
        for value in (values or []) if strengths == "strengths" else [1.0 if values is None else values]:
            check_strength(f"{place}.{strengths}", value)
    kept = {name: setting for name, setting in given.items() if setting["variant"] is not None}
    if not kept:
        raise UserError(f"{where} has no method: give one as <name>: {{variant: softmax}}")
    return kept


def check_strength(where: str, value: Any) -> None:
    """Refuse what is no strength; ``UserError`` names the setting."""
    if not _is_number(value) or value < 0:
        raise UserError(f"{where}={value}: the strength of graphmax is a number >= 0")


def check_softmax(where: str, methods: Methods) -> None:
    """Refuse methods without softmax, which every other one is compared with; ``UserError`` names the setting."""
    if methods.get("softmax", {}).get("variant") != "softmax":
        raise UserError(f"{where}: the others are compared with softmax, add softmax: {{variant: softmax}}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
