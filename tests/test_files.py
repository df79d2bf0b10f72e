from __future__ import annotations

import os
from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.files import named_floats, write_atomic


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_atomic(path, "one")
    write_atomic(path, "two\r\n")
    assert path.read_bytes() == b"two\r\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_atomic(tmp_path / "file" / "page.html", "text")


def test_named_floats_reaches_everywhere() -> None:
    assert named_floats({"a": [1.5, float("inf")], 2: (float("nan"),)}) == {"a": [1.5, "inf"], "2": ["nan"]}


def test_only_plain_files_are_replaced(tmp_path: Path) -> None:
    """As root a device would be replaced by a file, and a link would no longer lead where it led."""
    target, link, folder, pipe = (tmp_path / name for name in ("target", "link", "folder", "pipe"))
    target.write_text("old")
    link.symlink_to(target)
    folder.mkdir()
    os.mkfifo(pipe)
    for path, word in (
        (link, "a link"),
        (folder, "a folder"),
        (pipe, "no plain file"),
        (Path("/dev/null"), "no plain file"),
    ):
        with pytest.raises(UserError, match=word):
            write_atomic(path, "new")
    assert target.read_text() == "old" and link.is_symlink() and Path("/dev/null").is_char_device()
    write_atomic(target, "new")
    assert target.read_text() == "new"
