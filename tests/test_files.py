"""Files are whole or not there, what a rename must not put away is refused, a lock is held by one."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lit_ctg import files
from lit_ctg.errors import UserError
from lit_ctg.files import (
    bring_back,
    leftovers,
    locked,
    named_floats,
    plain_name,
    replacing,
    try_lock,
    write_atomic,
    writing,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_atomic(path, "one")
    write_atomic(path, "zwei ö\r\n")
    assert path.read_bytes() == "zwei ö\r\n".encode()
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff" and names(path.parent) == ["page.html"]


def test_a_folder_appears_in_one_step(tmp_path: Path) -> None:
    with replacing(tmp_path / "corpus") as partial:
        (partial / "deep").mkdir(parents=True)
        (partial / "deep" / "a").write_text("text")
        assert names(tmp_path) == [partial.name] and leftovers(tmp_path / "corpus") == [partial]
    assert (tmp_path / "corpus" / "deep" / "a").read_text() == "text" and names(tmp_path) == ["corpus"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("folder", [False, True])
def test_a_failure_leaves_what_stood_there(tmp_path: Path, error: BaseException, folder: bool) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    expected = UserError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised, replacing(path, remedy="free the disk") as temporary:
        if folder:
            temporary.mkdir()
            (temporary / "half").write_text("half")
        else:
            temporary.write_text("half")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["a"]
    if isinstance(error, OSError):
        assert str(raised.value) == f"cannot write {path}: No space left; free the disk"


@pytest.mark.parametrize("where", ["_sync", "_swap", "replace"])
def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Also where the disk is full at the very end, or the new folder cannot take its place."""
    target = tmp_path / "made"
    for content in ("old", "new"):
        with replacing(target, whole=True) as temporary:
            temporary.mkdir()
            (temporary / "a").write_text(content)
    assert (target / "a").read_text() == "new" and [path.name for path in tmp_path.iterdir()] == ["made"]
    rename = os.replace

    def full(*names: object) -> None:
        if where != "replace":
            raise OSError(errno.ENOSPC, "No space left on device")
        if str(names[0]).endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        rename(*names)

    monkeypatch.setattr(os if where == "replace" else files, where, full)
    told = r"made: (No space left|Input/output error)"
    with pytest.raises(UserError, match=told), replacing(target, whole=True) as temporary:
        temporary.mkdir()
        (temporary / "b").write_text("newer")
    assert (target / "a").read_text() == "new" and [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_folder_whose_replacement_was_killed_is_there_or_brought_back(tmp_path: Path, killed_at: int) -> None:
    """Before each of the renames; the next reader has the whole old or the whole new one."""
    script = """
import os, sys
from pathlib import Path
from lit_ctg.files import replacing
rename, count = os.replace, 0
def killed(*names):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os._exit(9)
    rename(*names)
os.replace = killed
with replacing(sys.argv[1], whole=True) as temporary:
    temporary.mkdir()
    (temporary / "new").touch()
"""
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    done = subprocess.run([sys.executable, "-c", script, str(target), str(killed_at)])
    assert done.returncode == 9
    bring_back(target)
    assert names(target) == (["new"] if killed_at == 3 else ["old"])
    with replacing(target, whole=True) as temporary:
        temporary.mkdir()
        (temporary / "newer").touch()
    assert names(target) == ["newer"]


def test_a_folder_that_a_reader_brings_back_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    rename = os.replace

    def read_between(*paths: Any) -> None:
        if Path(paths[1]) == target:
            bring_back(target)
            monkeypatch.undo()
        rename(*paths)

    monkeypatch.setattr(os, "replace", read_between)
    with replacing(target, whole=True) as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    assert names(target) == ["new"] and names(tmp_path) == ["made"]


@pytest.mark.parametrize(
    "code", [errno.ENAMETOOLONG, errno.ENOSPC, errno.EACCES, errno.ELOOP, errno.EROFS, errno.EDQUOT]
)
def test_any_failure_of_the_file_system_is_one_line_that_names_the_file(tmp_path: Path, code: int) -> None:
    for raised in (
        OSError(code, os.strerror(code)),
        type("SafetensorError", (Exception,), {})(f"I/O (os error {code})"),
    ):
        for manager in (writing, replacing):
            with pytest.raises(UserError, match=re.escape(f"cannot write {tmp_path / 'a'}: ")), manager(tmp_path / "a"):
                raise raised
    assert names(tmp_path) == []
    long = tmp_path / ("a" * 300)
    for write in (lambda: write_atomic(long, "x"), lambda: write_atomic(long / "b", "x"), lambda: try_lock(long / "c")):
        with pytest.raises(UserError, match="File name too long"):
            write()


def test_a_name_from_a_file_is_plain_or_refused() -> None:
    for name in ("a", "C++", "5 stars", "sci-fi", "a.b", "größe", "x" * 200):
        assert plain_name(name, "its name", "fix it") == name
    leading_away = ("", ".", "..", ".a", "a/b", "a\\b", "/a", "C:")
    unprintable = (" a", "a ", "a\nb", "a\x00", "\u202ea", "\ud800")
    for wrong in (*leading_away, *unprintable, "x" * 201, "ö" * 101, 7, None, ["a"]):
        with pytest.raises(UserError, match=r"^its name is .{1,80}, not a plain name for a file or folder: fix it$"):
            plain_name(wrong, "its name", "fix it")


def test_a_folder_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").touch()
    (tmp_path / "link").symlink_to("there")
    with replacing(tmp_path / "link", whole=True) as temporary:
        temporary.mkdir()
        (temporary / "b").touch()
    assert (tmp_path / "link").is_symlink() and [path.name for path in (tmp_path / "there").iterdir()] == ["b"]


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (done.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (done.append("renamed"), replace(a, b)))
    write_atomic(tmp_path / "a", "text")
    assert done == [(tmp_path / "a").stat().st_ino, "renamed", tmp_path.stat().st_ino]
    done.clear()
    with replacing(tmp_path / "folder") as partial:
        partial.mkdir()
        (partial / "inner").write_text("text")
    assert done[0] == (tmp_path / "folder" / "inner").stat().st_ino and done[2] == "renamed"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "new").symlink_to(tmp_path / "not yet")
    write_atomic(tmp_path / "link", "text")
    write_atomic(tmp_path / "new", "more")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "text"
    assert (tmp_path / "new").is_symlink() and (tmp_path / "not yet").read_text() == "more"


def test_what_a_rename_would_put_away_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    before = names(tmp_path)
    cases = {
        "pipe": "a pipe",
        "null": "a device",
        "one": "a loop",
        "folder": "directory",
        "file/a": "file is not a folder",
    }
    for name, reason in cases.items():
        with pytest.raises(UserError, match=reason) as error:
            write_atomic(tmp_path / name, "text")
        assert str(error.value).startswith(f"cannot write {tmp_path / name}: ") and "\n" not in str(error.value)
    assert names(tmp_path) == before and (tmp_path / "pipe").is_fifo() and (tmp_path / "null").is_symlink()


def test_text_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="surrogates not allowed"):
        write_atomic(tmp_path / "a", "half \ud800 pair")
    assert names(tmp_path) == []


def test_leftovers_are_those_of_this_name_only(tmp_path: Path) -> None:
    for name in (".a.12-ff.tmp", ".ab.12-ff.tmp", ".a.tmp", "a.12.tmp", ".[x].1-2.tmp"):
        (tmp_path / name).write_text("")
    assert [path.name for path in leftovers(tmp_path / "a")] == [".a.12-ff.tmp"]
    assert [path.name for path in leftovers(tmp_path / "[x]")] == [".[x].1-2.tmp"]


def _count(folder: str, times: int) -> None:
    number = Path(folder) / "number"
    for _ in range(times):
        with locked(Path(folder) / "number.lock"):
            number.write_text(str(int(number.read_text()) + 1))


def test_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_count, args=(str(tmp_path), 40)) for _ in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert (tmp_path / "number").read_text() == "120"


def test_a_lock_that_is_taken_is_told(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    held = try_lock(path)
    assert held is not None
    assert try_lock(path) is None
    with pytest.raises(UserError, match=r"\.lock is held by another process for over 0 s"), locked(path, timeout_s=0.1):
        pass
    held.release()
    with locked(path, timeout_s=0.1):
        assert try_lock(path) is None


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    script = "import os, sys; from lit_ctg.files import try_lock; held = try_lock(sys.argv[1]); print(held is not None)"
    for end in ("", "; sys.stdout.flush(); os.kill(os.getpid(), 9)"):
        job = subprocess.run([sys.executable, "-c", script + end, str(tmp_path / "a")], capture_output=True, text=True)
        assert job.stdout == "True\n"
    assert try_lock(tmp_path / "a") is not None


def test_a_lock_in_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    waiting = contextlib.ExitStack()
    with pytest.raises(UserError, match=r"^cannot write .*; go away$"):
        try_lock(tmp_path / "file" / "lock", remedy="go away")
    with pytest.raises(UserError, match=r"^cannot write .*; go away$"):
        waiting.enter_context(locked(tmp_path / "file" / "lock", remedy="go away"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: &x [1, 2]\nb: [*x, *x]\n", r"line 2 has an alias \(\*\): write it out"),
        (b"[" * 10_000, "line 1 is nested too deep"),
        (b"- " * 100_000, "line 1 is nested too deep"),
        (b"a: [1, 2", "expected ',' or ']'"),
        (b"a: caf\xe9", "codec can't decode"),
        (b"!!python/object/apply:os.system [id]", "could not determine a constructor"),
    ],
)
def test_yaml_that_would_harm_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^my file: cannot be read as YAML: .*{reason}") as error:
        files.read_yaml(path, "my file")
    assert "\n" not in str(error.value)


def test_aliases_are_allowed_up_to_what_they_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &x {b: &y 1, c: [2, *y]}\nd: *x\ne: {<<: *x, b: 3}\n")
    whole = {"b": 1, "c": [2, 1]}
    assert files.read_yaml(path, aliases=True) == {"a": whole, "d": whole, "e": {**whole, "b": 3}}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    for content, reason in (
        (bomb, "line 5: more than 100,000 values"),
        ("a: &x [1, *x]\n", r"line 1: \*x has no anchor that ends"),
        ("a: *y\n", r"line 1: \*y has no anchor"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=rf"a\.yaml: cannot be read as YAML: {reason}"):
            files.read_yaml(path, aliases=True)
    # the mapping, its two keys, and a list of two numbers twice
    path.write_text("a: &x [1, 2]\nb: *x\n")
    for most, fits in ((9, True), (8, False)):
        monkeypatch.setattr(files, "MAX_YAML_VALUES", most)
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match="more than 8 values"):
            assert files.read_yaml(path, aliases=True) == {"a": [1, 2], "b": [1, 2]}


def test_yaml_from_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.yaml").write_text("a: [1, ü]\n")
    assert files.read_yaml(tmp_path / "good.yaml") == {"a": [1, "ü"]}
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name, reason in (("pipe", "it is not a file"), ("loop", "Too many levels"), ("none", "No such file")):
        with pytest.raises(UserError, match=rf"{name}\.yaml: cannot be read as YAML: {reason}"):
            files.read_yaml(tmp_path / f"{name}.yaml")
    monkeypatch.setattr(files, "MAX_YAML_BYTES", 4)
    with pytest.raises(UserError, match="larger than"):
        files.read_yaml(tmp_path / "good.yaml")


def test_no_torch_is_needed() -> None:
    script = "import sys, lit_ctg.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_named_floats_reaches_everywhere() -> None:
    assert named_floats({"a": [1.5, float("inf")], 2: (float("nan"),)}) == {"a": [1.5, "inf"], "2": ["nan"]}


def test_an_interrupt_within_torchs_writer_is_no_full_disk(tmp_path: Path) -> None:
    def write() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("[enforce fail at inline_container.cc:1] . unexpected pos")  # as torch does

    with pytest.raises(KeyboardInterrupt), files.replacing(tmp_path / "last.ckpt"):
        write()
    assert list(tmp_path.iterdir()) == []
