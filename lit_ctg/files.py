"""Writing files so that no reader ever sees half of one, and numbers so that the JSON is strict."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lit_ctg.errors import UserError


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old file or the whole new one.

    A device, a named pipe or a link is not replaced: the file that ``path`` names must be a plain one or not be there.

    Raises:
        UserError: the folder cannot be written, or something else than a plain file stands there.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"
        raise UserError(f"cannot write {path}: it is {kind}; choose another name")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another folder") from error
    finally:
        with contextlib.suppress(OSError):  # gone already (the usual case), or its folder cannot be one
            temporary.unlink()


def write_samples(samples: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write generated texts, one JSON object a line, whole or not at all."""
    write_atomic(path, "".join(json.dumps(named_floats(s), ensure_ascii=False) + "\n" for s in samples))


def named_floats(value: Any) -> Any:
    """Return ``value`` with floats that are not finite replaced by their names."""
    if isinstance(value, Mapping):
        return {str(key): named_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [named_floats(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
