"""Errors a user can fix: one line that says what, where and what to do."""

from __future__ import annotations

import contextlib
import difflib
import errno
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real

# numbers of a write that failed, which does not know its file
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Bad input (config, file, prompt, checkpoint). The command line prints it as one line and exits with code 2."""


def refuse(cases: Mapping[str, object] | Iterable[str], where: str = "") -> None:
    """Refuse the first case: of a mapping, text (what is wrong and what to give) -> whether it holds, else of texts."""
    for text in (text for text, holds in cases.items() if holds) if isinstance(cases, Mapping) else cases:
        raise UserError(where + text)


def check_known(what: str, name: object, options: Iterable[str], remedy: str = "") -> None:
    """Refuse a name that is not among the options; ``what`` says of what kind it is.

    Raises:
        UserError: names the closest option and all of them, or the remedy.
    """
    known = list(options)
    if name not in known:
        there_are = remedy or f"there are: {', '.join(known) or 'none'}"
        raise UserError(f"no {what} '{' '.join(str(name).split())[:80]}'{did_you_mean(str(name), known)}; {there_are}")


@contextlib.contextmanager
def within(where: object = "", remedy: str = "") -> Iterator[None]:
    """Put ``where`` before the line of an error in the body, and what to do behind it."""
    try:
        yield
    except UserError as error:
        raise UserError(": ".join(filter(None, [str(where), "; ".join(filter(None, [str(error), remedy]))]))) from error


@contextlib.contextmanager
def only_errors_of(logger: str) -> Iterator[None]:
    """Mute what a library logs below an error, while our own line says what matters; its level is then put back."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)


def as_float(value: object) -> float:
    """Return a number as a float, NaN for anything else and for an integer that is too large for one."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        return math.nan


def check_whole(name: str, value: object, least: int, unit: str = "", *, most: float = math.inf) -> None:
    """Refuse anything but a whole number (Python's or numpy's) from ``least`` to ``most``.

    Raises:
        UserError: names the setting as ``name=value``, and what it counts if ``unit`` is given.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        note = f" to {most}" * (most < math.inf) + f" ({unit})" * bool(unit)
        raise _wrong(name, value, f"a whole number from {least}{note}")


def _wrong(name: str, value: object, wanted: str) -> UserError:
    return UserError(f"{name}={f'{value!r}'[:80]}: give {wanted}".rstrip())


def check_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Refuse anything but a finite number of at least ``least`` and at most ``most``, between ``above`` and ``below``.

    Raises:
        UserError: names the setting as ``name=value`` and what it may be.
    """
    number = as_float(value)
    if not (math.isfinite(number) and least <= number <= most and above < number < below):
        limits = {"from": least, "above": above, "at most": most, "below": below}
        bounds = ", ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise _wrong(name, value, f"a number {bounds}")


def check_unicode(text: str, what: str) -> str:
    """Return ``text`` if UTF-8 can encode it; a path of other bytes could not be written into a record after the run.

    Raises:
        UserError: names ``what`` it is and shows its bytes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()
        raise UserError(f"{what} '{shown}' is not UTF-8: rename the file or folder") from None
    return text


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the option closest to ``word``, or ``""`` when none is close."""
    close = difflib.get_close_matches(word, list(options), n=1)
    return f"; did you mean '{' '.join(close[0].split())}'?" if close else ""


def one_line(error: BaseException) -> str:
    """Return an error in one line, preceded by its type unless it is ours; one of the file system names its file."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror and (error.filename is not None or error.errno in FULL):
        where = "a file or standard output" if error.filename is None else os.fsdecode(error.filename)
        return f"{where}: {error.strerror}"
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def blame(error: BaseException, words: Iterable[str]) -> str:
    """Return ``"; check <key>=<value>"`` for the settings of a command line that may have caused an error, or ``""``.

    These are the settings whose key or value occurs in the error's text; if there is none, all of them. For errors of
    libraries, which know nothing of our keys.
    """
    text = " ".join(str(error).lower().replace("_", " ").split())
    given = [word for word in words if "=" in word]
    likely = []
    for word in given:
        key, _, value = word.partition("=")
        name = key.lstrip("+~").rpartition(".")[2].replace("_", " ")
        parts = [re.escape(part.lower()) for part in (name, value) if len(part) > 1]
        if parts and re.search(rf"(?<!\w)({'|'.join(parts)})(?!\w)", text):
            likely.append(word)
    return f"; check {', '.join(likely or given)}" if given else ""
