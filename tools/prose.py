"""How easily the pages read: words, words a sentence and long sentences of Markdown files.

    make prose           (or: python tools/prose.py [FILE ...])

Without files: all tracked Markdown but ``tables.md``. Code, tables, headings and HTML are left out. A list item or an
empty line ends a sentence. ``words`` counts the whole file, as ``wc -w`` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LONG = 35
FENCE = re.compile(r"^(```|~~~).*?^\1.*?$", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(r"\A---\n.*?\n---\n|<!--.*?-->", re.DOTALL)
NO_TEXT = re.compile(r"#|\||<|!?\[!\[|!\[|[-=*_]{3,}$")
ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf|sec|fig|eq|al|no)\.", re.IGNORECASE)
END = re.compile(r"(?<=[.!?:])[\"')]*\s+(?=[\"'(]?[A-Z0-9`])")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the text of each paragraph and list item on one line."""
    own: list[str] = []
    for line in [*FENCE.sub("\n", HIDDEN.sub("\n", text)).splitlines(), ""]:
        bare = line.strip()
        item = ITEM.match(bare)
        if not bare or item or NO_TEXT.match(bare):
            if own:
                yield " ".join(own)
            own = []
        if bare and not NO_TEXT.match(bare):
            own.append(bare[item.end() :] if item else bare)


def sentences(text: str) -> Iterator[list[str]]:
    """Yield the words of each sentence; four at least, since fewer are a label."""
    for paragraph in paragraphs(text):
        plain = re.sub(r"\]\([^)]*\)", "]", paragraph)  # where a link leads
        plain = re.sub(r"`[^`]*`", "`code`", plain)
        plain = ABBREVIATION.sub(r"\1", re.sub(r"[*_\[\]]", "", plain))
        for sentence in END.split(plain):
            if len(found := sentence.split()) > 3:
                yield found


def line(name: str, words: int, lengths: list[int]) -> str:
    """Return a row of the table."""
    share = sum(length > LONG for length in lengths) / len(lengths)
    return f"{name[-52:]:52} {words:7,} {sum(lengths) / len(lengths):10.1f} {share:8.0%} {max(lengths):8}"


def main(names: list[str]) -> int:
    """Print a row a file and one for all."""
    if not names:
        from size import ROOT, tracked

        names = [str(path.relative_to(ROOT)) for path in tracked("*.md") if path.name != "tables.md"]
    total, everything = 0, []
    print(f"{'file':52} {'words':>7} {'a sentence':>10} {f'over {LONG}':>8} {'longest':>8}")
    for name in names:
        text = Path(name).read_text(encoding="utf-8")
        lengths = [len(words) for words in sentences(text)]
        total += len(text.split())
        everything += lengths
        if lengths:
            print(line(name, len(text.split()), lengths))
    if len(names) > 1 and everything:
        print(line("all", total, everything))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
