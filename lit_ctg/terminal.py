"""What a terminal is given: text of files that cannot steer it, in an encoding that it has."""

from __future__ import annotations

import io
import logging
import re
import sys

# C0 and C1 controls except tab and line feed, marks that change the direction of a line, separators that some terminals
# take for line ends, halves of surrogate pairs
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return ``text`` with control characters written out (``\\x1b``), so that none of them reaches a terminal."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def prepare_output() -> None:
    """Make standard output and error of a command take any text.

    Characters that their encoding lacks are written out (``\\u2014``), and warnings that quote a file are printable.
    Streams that are not files, such as a notebook's, stay as they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())
