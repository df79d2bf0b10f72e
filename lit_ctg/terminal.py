"""What a terminal is given: text of files that cannot steer it, in an encoding that it has."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

import rich.console
import rich.progress
from rich.segment import Segment
from rich.text import Text

# C0 and C1 controls except tab and line feed, marks that change the direction of a line, separators that some terminals
# take for line ends, halves of surrogate pairs
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return ``text`` with control characters written out (``\\x1b``), so that none of them reaches a terminal."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class Console(rich.console.Console):
    """A console of rich whose text is printable, whatever file it is from; only styles are written as codes."""

    @property
    def encoding(self) -> str:
        """The encoding of the stream, also of standard output, which decides how tables are drawn."""
        return (getattr(self.file, "encoding", None) or "utf-8").lower()

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of ``renderable``."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text; before rich drops some control characters."""
        return super().render_str(printable(text), **options)


# seconds between two lines of progress where there is no terminal
EVERY = 30.0


class Bars(rich.progress.Progress):
    """rich's bars on a terminal; elsewhere a line every ``EVERY`` seconds with what is done and the time left."""

    def __init__(self, *columns: rich.progress.ProgressColumn, console: rich.console.Console) -> None:
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._told = time.monotonic()

    def update(self, task_id: rich.progress.TaskID, **changes: Any) -> None:
        """Change a task; see rich."""
        super().update(task_id, **changes)
        self._tell(task_id)

    def advance(self, task_id: rich.progress.TaskID, advance: float = 1) -> None:
        """Count a task further; see rich."""
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: rich.progress.TaskID) -> None:
        if not self.disable or time.monotonic() - self._told < EVERY:
            return
        self._told = time.monotonic()
        task = self._tasks[task_id]
        words = f"{task.description}: {task.completed:,.0f}"
        if task.total:
            seconds = (task.elapsed or 0.0) / max(task.completed, 1e-9) * (task.total - task.completed)
            words += f" of {task.total:,.0f}, about {max(1, round(seconds / 60))} min left"
        self.console.print(words, markup=False, highlight=False, soft_wrap=True)


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
