"""Files that are written whole or not at all, and locks: the only place for both (no torch import).

Content is written under a temporary name beside its target, synced to disk and renamed, so that no reader sees, and no
power failure leaves, half a file. Temporary names are ``.<name>.<process>-<random>.tmp``; ``leftovers`` finds what a
killed process left.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lit_ctg.errors import UserError, check_unicode, refuse
from lit_ctg.terminal import printable

if TYPE_CHECKING:
    from filelock import BaseFileLock

ELSEWHERE = "choose another folder"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
# suffix of a folder that another is about to replace
PUT_ASIDE = ".old"


@contextlib.contextmanager
def writing(path: str | Path, *, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Turn any failure of the file system in the body into one line that names ``path``.

    Args:
        remedy: what to do when it cannot be written, the end of the error message.

    Raises:
        UserError: for an ``OSError`` (a full disk, a name that is too long, a folder that is read-only, ...), and for
            one that torch or safetensors report as another error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None  # torch's writer, closed by it, complains that it is not done
        if (reason := _disk_failure(error)) is None:
            raise
        raise UserError(f"cannot write {path}: {reason}; {remedy}") from error


@contextlib.contextmanager
def reading(what: str | Path, kind: str, remedy: str, *others: type[Exception]) -> Iterator[None]:
    """Turn any failure to read a file, or to understand it, in the body into one line that names it.

    Args:
        what: the file, or a line of it.
        kind: what it should be, such as "a run record".
        remedy: what to do, the end of the message.
        others: more classes of errors than those of files, values and recursion.
    """
    try:
        yield
    except (OSError, ValueError, RecursionError, *others) as error:  # type: ignore[misc]  # a tuple of classes
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise UserError(f"{what}: cannot be read as {kind}: {reason}; {remedy}") from error


def _disk_failure(error: Exception) -> str | None:
    """Return what the file system refused, None for an error of another kind."""
    cause = error.__context__ if isinstance(error, RuntimeError) else error
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    if "inline_container" in str(error):
        return "torch could not write all of it; is the disk full?"
    # libraries in Rust (safetensors, tokenizers) have one class for all of their errors
    return str(error) if "(os error " in str(error) and not isinstance(error, UserError) else None


@contextlib.contextmanager
def replacing(path: str | Path, *, remedy: str = ELSEWHERE, whole: bool = False) -> Iterator[Path]:
    """Yield a temporary path; the file or folder that the body makes there becomes ``path`` in one step.

    After any failure the old ``path`` is unchanged, and nothing else is left. A symbolic link is followed:
    the file behind it is replaced, the link stays. A folder can only take the place of nothing (or of an empty folder),
    except with ``whole``.

    Args:
        path: a file or folder that may exist; its parent folder is created.
        remedy: what to do when it cannot be written, the end of the error message.
        whole: a folder takes the place of one with all it holds, which the caller has looked at. If the process is
            killed in the middle, ``bring_back`` restores the old one.

    Raises:
        UserError: see ``writing``; ``path`` is a device, a pipe or a loop of links.
    """
    path = Path(path)
    with writing(path, remedy=remedy):
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if target.name in ("", ".."):
            raise OSError(None, "it names no file")
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            if target.is_symlink():
                raise OSError(None, "its symbolic links form a loop")
            if target.exists() and not target.is_file() and not target.is_dir():
                raise OSError(None, "it is a device, a pipe or a socket")
            _make_folder(target.parent)
            yield temporary
            _to_disk(temporary)
            if whole and target.is_dir():
                _swap(temporary, target)
            else:
                os.replace(temporary, target)
            with contextlib.suppress(OSError):  # some file systems cannot sync folders; the content is already safe
                _sync(target.parent)
        finally:
            with contextlib.suppress(OSError):  # renamed (the usual case), never created, or in no folder
                temporary.unlink() if not temporary.is_dir() else shutil.rmtree(temporary)


def _swap(new: Path, target: Path) -> None:
    """Put a folder in the place of another, which then has the name of the new one."""
    aside = new.with_suffix(PUT_ASIDE)
    while True:
        os.replace(target, aside)
        try:
            os.replace(new, target)
            break
        except OSError as error:
            with contextlib.suppress(OSError):  # a reader may have put it back: try again
                os.replace(aside, target)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    with contextlib.suppress(OSError):  # the new one is there: what remains of the old one is only in the way
        os.replace(aside, new)


def bring_back(folder: str | Path) -> None:
    """Restore a folder that a killed process put aside and did not replace; call it before reading or replacing one."""
    target = Path(os.path.realpath(folder))
    with contextlib.suppress(OSError):  # whoever reads or writes the folder says what is wrong with it
        for aside in target.parent.glob(f".{glob.escape(target.name)}.*{PUT_ASIDE}"):
            if not target.exists():
                aside.rename(target)


# separators, what Windows reserves, line ends; a hidden name; blanks at either end
_NOT_IN_A_NAME = re.compile(r'^[.\s]|[/\\:*?"<>|\t\n]|\s$')
# file systems allow 255 bytes; temporary names and suffixes need some
MAX_NAME_BYTES = 200


def plain_name(name: object, what: str, remedy: str) -> str:
    """Return a name that a file supplies, if a file or folder may be named after it: it leads to no other folder.

    Raises:
        UserError: it cannot; begins with ``what``, ends with ``remedy``.
    """
    known = isinstance(name, str) and printable(name) == name and not _NOT_IN_A_NAME.search(name)
    if isinstance(name, str) and known and 0 < len(name.encode()) <= MAX_NAME_BYTES:
        return name
    shown = repr(name) if len(repr(name)) <= 60 else f"{repr(name)[:60]}..."
    raise UserError(f"{what} is {shown}, not a plain name for a file or folder: {remedy}")


def files_in(folder: Path) -> list[str]:
    """Return the files of a folder and its subfolders, relative to it, sorted; compiled Python does not count."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return sorted(path.as_posix() for path in found if "__pycache__" not in path.parts)


def check_places(data: str, out: str) -> None:
    """Check that ``data`` is there, and that ``out`` is an empty or new folder.

    Raises:
        UserError: one of them is not.
    """
    folder = Path(out).expanduser()
    held = next(folder.iterdir(), None) if folder.is_dir() else None
    refuse({
        f"out={out} is a file: give a folder": folder.exists() and not folder.is_dir(),
        f"out={out} holds {held and held.name}: give another folder, or delete it": held is not None,
        f"data={data}: no such file or folder": not Path(data).expanduser().exists(),
    })  # fmt: skip


def write_atomic(path: str | Path, content: str | bytes, *, remedy: str = ELSEWHERE) -> None:
    """Write ``content`` to ``path`` in one step; text as UTF-8 with its line ends as they are.

    Raises:
        UserError: see ``replacing``; text that UTF-8 cannot encode (a lone surrogate).
    """
    data = _encoded(content, path) if isinstance(content, str) else content
    with replacing(path, remedy=remedy) as temporary:
        temporary.write_bytes(data)


def _encoded(text: str, path: str | Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"cannot write {path}: its text is not valid Unicode ({error.reason}): clean the input"
        ) from error


def leftovers(path: str | Path) -> list[Path]:
    """Return the temporary files of ``path`` that killed processes left; whoever holds its lock may remove them."""
    path = Path(path)
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


@contextlib.contextmanager
def locked(lock_file: str | Path, *, timeout_s: float = 3600.0, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Hold ``lock_file``; others wait. The operating system releases it if the process dies; the empty file stays.

    Args:
        lock_file: created with its folder if missing.
        timeout_s: seconds to wait for whoever holds it.
        remedy: what to do when its folder cannot be written.

    Raises:
        UserError: the folder cannot be written, or the lock is not free after ``timeout_s`` seconds.
    """
    lock = _lock(lock_file, timeout_s, remedy)
    if lock is None:
        raise UserError(f"{lock_file} is held by another process for over {timeout_s:.0f} s: end it or wait")
    try:
        yield
    finally:
        lock.release()


def try_lock(lock_file: str | Path, *, remedy: str = ELSEWHERE) -> BaseFileLock | None:
    """Take ``lock_file`` and return it, held until ``release()`` or the end of the process; None if it is taken."""
    return _lock(lock_file, 0.0, remedy)


def wait_lock(lock_file: str | Path, *, remedy: str = ELSEWHERE) -> BaseFileLock:
    """Take ``lock_file`` as soon as it is free, however long that takes, and return it as `try_lock` does."""
    lock = _lock(lock_file, -1.0, remedy)
    assert lock is not None, "a lock without a time limit does not time out"
    return lock


def _lock(lock_file: str | Path, timeout_s: float, remedy: str) -> BaseFileLock | None:
    from filelock import FileLock, Timeout

    path = Path(lock_file)
    # it may be released from another thread
    lock = FileLock(path, timeout=timeout_s, thread_local=False)
    with writing(path, remedy=remedy):
        _make_folder(path.parent)
        try:
            lock.acquire()
        except Timeout:
            return None
    return lock


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(None, f"{error.filename} is not a folder") from error


def _to_disk(path: Path) -> None:
    """Sync a file, or a folder with all it holds."""
    if path.is_dir():
        for inner in path.iterdir():
            _to_disk(inner)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_regular(path: str | Path, what: str = "") -> None:
    """Refuse what is there but is neither a file nor a link to one: reading a pipe may never end.

    Args:
        what: its name in the message; by default its path.

    Raises:
        UserError: a folder, a pipe, a device or a socket.
        OSError: nothing is there, or it cannot be looked at.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise UserError(f"{what or path} is {kind}, not a file: give a file")


def write_samples(samples: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write generated texts, one JSON object per line, whole or not at all (``UserError``: see ``write_atomic``)."""
    write_atomic(path, sample_lines(samples, path))


def sample_lines(samples: Iterable[Mapping[str, Any]], path: Path) -> bytes:
    """Return generated texts (plain values by name) as a file at ``path`` is to hold them.

    Raises:
        UserError: text that UTF-8 cannot encode.
    """
    return _encoded("".join(json.dumps(named_floats(each), ensure_ascii=False) + "\n" for each in samples), path)


# a compressed file may unpack to this many bytes, or to this many times its size: text packs to a tenth or so
UNPACKED_BYTES, UNPACKED_RATIO = 2**26, 200


class Unpacked(io.RawIOBase):
    """What a compressed file holds, as a stream that refuses to become much larger than text would.

    Args:
        stream: the unpacked bytes, from the beginning; closed with this one.
        most: bytes that are accepted at any ratio.

    Raises:
        UserError: while it is read, once it is larger than ``UNPACKED_BYTES`` and ``UNPACKED_RATIO`` allow.
    """

    def __init__(self, stream: IO[bytes], path: str | Path, *, most: float = math.inf) -> None:
        self._stream, self._path, self._read = stream, path, 0
        self._most = min(most, max(UNPACKED_BYTES, UNPACKED_RATIO * os.stat(path).st_size))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(min(len(buffer), 2**20))
        self._read += len(block)
        if self._read > self._most:
            raise UserError(
                f"{self._path} unpacks to more than {self._most / 2**20:,.0f} MiB, which is not text: delete the file"
            )
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._stream.close()
        super().close()


def named_floats(value: Any) -> Any:
    """Return ``value`` with non-finite floats replaced by their names."""
    if isinstance(value, Mapping):
        return {str(key): named_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [named_floats(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# larger files are not settings, nor are deeper ones, or those whose aliases expand to more values than this
MAX_YAML_BYTES, MAX_YAML_DEPTH, MAX_YAML_VALUES = 2**24, 100, 100_000


def read_yaml(path: str | Path, what: str = "", *, aliases: bool = False) -> Any:
    """Return the plain value in a YAML file that a user gives.

    Args:
        what: its name in messages; by default its path.
        aliases: allow them (``*name``), up to ``MAX_YAML_VALUES`` values if all were written out.

    Raises:
        UserError: no such file, a pipe or a device (reading might never end), not UTF-8, not YAML, nested too deep,
            or an alias: a few lines of aliases can expand beyond the memory.
    """
    import yaml

    # the same language, several times as fast where libyaml is installed
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = Path(path)
    with reading(what or path, "YAML", "correct the file", yaml.YAMLError):
        mode = path.stat()
        if not stat.S_ISREG(mode.st_mode):
            raise ValueError("it is not a file (a folder, a pipe or a device)")
        if mode.st_size > MAX_YAML_BYTES:
            raise ValueError(f"it is larger than {MAX_YAML_BYTES // 2**20} MiB")
        text = path.read_text(encoding="utf-8")
        _check_events(yaml.parse(text, Loader=loader), aliases)
        return yaml.load(text, Loader=loader)


def _check_events(events: Iterable[Any], aliases: bool) -> None:
    """Refuse YAML that would overflow the stack or the memory, before anything is built."""
    import yaml

    sizes: dict[str, int] = {}  # by anchor: values, all aliases in it written out
    started: list[str | None] = [None]
    counts = [0]
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            started.append(event.anchor)
            counts.append(0)
            if len(started) > MAX_YAML_DEPTH:
                raise yaml.YAMLError(f"line {line} is nested too deep")
            continue
        anchor, size = None, 1
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = started.pop(), 1 + counts.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor = event.anchor
        elif not isinstance(event, yaml.AliasEvent):
            continue
        elif not aliases:
            raise yaml.YAMLError(f"line {line} has an alias (*): write it out")
        elif event.anchor not in sizes:
            raise yaml.YAMLError(f"line {line}: *{event.anchor} has no anchor that ends before it")
        else:
            size = sizes[event.anchor]
        if anchor is not None:
            sizes[anchor] = size
        counts[-1] += size
        if counts[-1] > MAX_YAML_VALUES:
            raise yaml.YAMLError(f"line {line}: more than {MAX_YAML_VALUES:,} values, aliases (*) written out")


def cache_root(given: str | Path | None) -> Path:
    """Return the folder for downloads and packed corpora: the given one, else LIT_CTG_CACHE, else ~/.cache/lit_ctg."""
    folder = str(given or os.environ.get("LIT_CTG_CACHE") or "~/.cache/lit_ctg")
    return Path(check_unicode(folder, "the cache folder")).expanduser()


def offline() -> str:
    """Return the name of the environment variable that forbids the network, or ``""``."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return name
    return ""


def config_folder() -> Path:
    """Return the folder of YAML files: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
