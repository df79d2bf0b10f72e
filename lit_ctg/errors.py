"""Errors a user can mend: one line that says what, where and what to do."""

from __future__ import annotations

import difflib
import re
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
    return f"; did you mean '{' '.join(close[0].split())}'?" if close else ""


def one_line(error: BaseException) -> str:
    """Return an error in one line; of other kinds than ours with its kind before it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def blame(error: BaseException, words: Iterable[str]) -> str:
    """Return ``"; check <key>=<value>"`` for the settings of a command line that an error may come from, or ``""``.

    Those whose key or value the error's text has; where there is none, all of them. For errors of libraries, which know
    nothing of our keys.
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
