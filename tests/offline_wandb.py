"""Offline W&B runs, read back from their files."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an offline run file: LevelDB's log format behind a header of 7 bytes."""
    block = 32768
    assert data[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # the rest of a block too short for a header is filling
            place += block - place % block
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def finished(folder: Path, seconds: float = 120) -> list[Any]:
    """Return the records of the one offline run below ``folder``, once the last of them says that the run has ended.

    Another process writes the file, on a busy machine long after ``wandb.finish`` has returned.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.rglob("*.wandb")
    end = time.monotonic() + seconds
    while True:
        try:
            found = [Record.FromString(data) for data in records(path.read_bytes())]
            if any(entry.WhichOneof("record_type") == "exit" for entry in found):
                return found
        except DecodeError:
            pass  # a record is only half written
        assert time.monotonic() < end, f"{path}: no end after {seconds} s"
        time.sleep(0.2)
