"""Text that no model of 2024 has read: entries of Debian's changelogs, as a folder in WikiText's format.

    python benchmarks/younger_text.py out=local/younger [year=2025]
    lit-ctg train experiment=nslm/pretrained backbone=smollm2 data.source=local data.root=local/younger

A document holds the entries of one package. Packages are split between validation and test text by their place in the
alphabet; both have entries from ``year`` on only. Training text has older entries, of the packages in neither.
It reads what is installed (``/usr/share/doc``), so another machine has other text; a record names its digest.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import defaultdict
from pathlib import Path

from lit_ctg.data.wikitext import wikitext_tokens

ENTRY = re.compile(r"(?m)^(?=[a-z0-9][a-z0-9+.-]* \([^)\n]+\) [^\n]*;)")
HEAD = re.compile(r"(\S+) \(([^)\n]+)\)")
DATE = re.compile(r"(?m)^ -- .*>\s+\w{3}, +\d{1,2} \w{3} (\d{4}) ")


def entries(folder: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Return source package -> version -> year and text; packages of one source share their entries."""
    found: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for path in sorted(folder.glob("*/changelog*.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
        for entry in ENTRY.split(text):
            head, date = HEAD.match(entry), DATE.search(entry)
            if head and date:
                found[head[1]].setdefault(head[2], (int(date[1]), entry))
    return found


def write(out: Path, year: int, folder: Path = Path("/usr/share/doc")) -> dict[str, int]:
    """Write train.txt, valid.txt and test.txt; return the number of documents of each."""
    texts: dict[str, dict[str, str]] = {"train": {}, "valid": {}, "test": {}}
    young = 0
    for package, versions in sorted(entries(folder).items()):
        recent = [text for date, text in versions.values() if date >= year]
        split = "train" if not recent else ("valid", "test")[young % 2]
        young += bool(recent)
        texts[split][package] = "\n".join(recent or (text for _, text in versions.values()))
    out.mkdir(parents=True)
    for split, documents in texts.items():
        written = (f" \n = {package} = \n \n{wikitext_tokens(text)}" for package, text in documents.items())
        (out / f"{split}.txt").write_text("".join(written), encoding="utf-8")
    return {split: len(documents) for split, documents in texts.items()}


if __name__ == "__main__":
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print(write(Path(options["out"]), int(options.get("year", "2025"))))
