"""Errors a user can mend: one line that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input (config, file, prompt, checkpoint). The command line prints its one line and exits with code 2."""


def check_unicode(text: str, what: str) -> str:
    """Return ``text`` when UTF-8 can say it; a path of other bytes could not be written into a record after the run.

    Raises:
        UserError: ``what`` it is and how its bytes read.
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
    return f"; did you mean '{close[0]}'?" if close else ""
