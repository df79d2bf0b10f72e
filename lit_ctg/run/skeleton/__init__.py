"""`lit-ctg new paper=<name>`: the files of a new paper, small but complete, in their proper places.

The templates beside this file mirror the layout of the new files, with ``PAPER`` in names and ``$paper``, ``$Class``,
``$title`` and ``$title_yaml`` in texts. They hold a placeholder method that trains, is tested and has a control, so
that the author changes a working paper instead of starting from nothing; no existing file has to be touched.
"""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from string import Template
from typing import Annotated

from lit_ctg.errors import UserError
from lit_ctg.files import config_folder, write_atomic
from lit_ctg.limits import Matches, checked

HERE = Path(__file__).parent
MARK = "PAPER"


Name = Annotated[
    str,
    Matches(rf"(?!(?:{'|'.join(keyword.kwlist)})$)[a-z][a-z0-9_]*"),
    "a name of small letters, digits and _, such as topic_prefix",
]
Title = Annotated[
    str,
    Matches(r"[^\"\\\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f]*"),
    "a line of text without quotation marks and backslashes",
]


@checked
def new(paper: Name, title: Title = "", root: Path | None = None) -> list[Path]:
    """Write the skeleton of a paper and return its files.

    Args:
        paper: name of its folders, such as ``semantic_fusion``.
        title: its name in tables and on pages; by default the name with spaces.
        root: the checkout; the one this package runs from by default.

    Raises:
        UserError: not a name for a package, a title of several lines, a paper or file that exists already, no checkout
            to write to.
    """
    root = config_folder().parent if root is None else root
    if not (root / "pyproject.toml").is_file():
        raise UserError(f"{root} is not a checkout of lit_ctg: clone the repository and run lit-ctg new there")
    words = {
        "paper": paper,
        "Class": "".join(part.capitalize() for part in paper.split("_")),
        "title": title or paper.replace("_", " "),
    }
    words["title_yaml"] = json.dumps(words["title"], ensure_ascii=False)
    texts = {
        root / template.relative_to(HERE).as_posix().replace(MARK, paper).removesuffix(".template"): Template(
            template.read_text(encoding="utf-8")
        ).substitute(words)
        for template in sorted(HERE.rglob("*.template"))
    }
    there = next((path for path in texts if path.exists()), None)
    if there is not None:
        raise UserError(f"{there} exists already: choose another name, or delete the paper first")
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)
