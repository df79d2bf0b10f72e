"""Numbers as text, the same in tables, pages and pictures."""

from __future__ import annotations

import math


def needs_exponent(value: float | None, digits: int) -> bool:
    """Say whether fixed decimals would hide a number (0.00000) or make it unreadably long."""
    if value is None or not math.isfinite(value):
        return False
    # below 1e-12 it is a zero with rounding error
    return 1e-12 < abs(value) < 0.5 * 10.0**-digits or abs(value) >= 1e9


def format_value(value: float | None, digits: int, signed: bool = False, exponent: bool | None = None) -> str:
    """Return a number with fixed decimals, thousands separators, a true minus sign, and no sign before zero.

    ``exponent`` says whether it is written as ``1.2e-7``; None: only where necessary.
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and (needs_exponent(value, digits) if exponent is None else exponent or abs(value) >= 1e9):
        size, _, power = f"{value:{'+' if signed else ''}.1e}".partition("e")
        return f"{size}e{int(power)}".replace("-", "\N{MINUS SIGN}")
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    text = text.lstrip("+-") if float(text.replace(",", "")) == 0 else text
    return text.replace("-", "\N{MINUS SIGN}")


def format_number(value: float | None) -> str:
    """Return a number with four significant digits and thousands separators."""
    if value is None or not math.isfinite(value):
        return str(value)
    digits = 0 if abs(value) >= 1000 else max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return format_value(value, min(digits, 6))
