from __future__ import annotations

import io
import re
import sys

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from lit_ctg.terminal import Console, prepare_output, printable


def test_printable_writes_out_what_steers_a_terminal() -> None:
    for code in (0, 7, 8, 13, 27, 127, 0x9B, 0x200F, 0x2028, 0x202E, 0x2067, 0xD800):
        text = printable(f"a{chr(code)}b")
        assert text.isascii() and text.isprintable() and text[0] + text[-1] == "ab"


def test_printable_keeps_text_of_any_language() -> None:
    text = "tab\t, line\n, \u00e4, \u4e2d, \u05d0, e\u0301, \U0001f469\u200d\U0001f52c"
    assert printable(text) == text


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_terminal_of_any_encoding_takes_any_text(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    prepare_output()
    for stream in (sys.stdout, sys.stderr):
        print("\u2264 \u4e2d \ud800", file=stream, flush=True)
    Console().print(Table("a column"))
    lines = sys.stdout.buffer.getvalue().decode(encoding)
    assert "a column" in lines and "\\u25" not in lines


def test_a_console_writes_codes_for_its_styles_only() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=60)
    table = Table("name")
    table.add_row("in a table \x1b[2J")
    console.print("\x1b]0;a title\x07", Text("text \x1b[1A", style="red"), table, markup=False, highlight=False)
    with Progress(console=console) as bars:
        bars.add_task("bar \x1b[8m\u202e")
    written = console.file.getvalue()
    for code in ("\x1b]0", "\x07", "\x1b[2J", "\x1b[8m", "\u202e"):
        assert code not in written
    assert "\\x1b]0;a title\\x07 text \\x1b[1A" in re.sub(r"\x1b\[\d*m", "", written)
    assert "\x1b[31m" in written
