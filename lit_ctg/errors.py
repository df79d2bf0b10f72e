"""Errors a user can mend: one line that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input (config, file, prompt, checkpoint). The command line prints its one line and exits with code 2."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the option closest to ``word``, or ``""`` when none is close."""
    close = difflib.get_close_matches(word, list(options), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def one_line(error: BaseException) -> str:
    """Return an error in one line; of other kinds than ours with its kind before it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
