"""What of ``experiments/`` travels in the wheel: manifests, printed numbers, tables and records, so that it prints all
tables anywhere, and the texts that a table quotes: those of the lowest seed, or of all seeds where the table counts
them. Records and texts of a paper travel as one archive, ``results.tar.xz``: they are alike, so that together they take
a third of what they take one by one. Figures and tables.md are made of them again; pages for reading (README.md) and
the field stay in the checkout.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_TEXTS = re.compile(r"\.samples\.jsonl(\.xz)?$")


class Experiments(BuildHookInterface):
    """Adds the files to a wheel; an editable install finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling's ``BuildHookInterface.initialize``."""
        if version == "editable":
            return
        self.archives = Path(tempfile.mkdtemp())
        for paper in sorted((Path(self.root) / "experiments").iterdir()):
            if not paper.is_dir() or paper.name == "field":
                continue
            target = f"lit_ctg/experiments/{paper.name}"
            for path in [*paper.glob("*"), *paper.glob("tables/*")]:
                if path.is_file() and path.suffix != ".md":
                    build_data["force_include"][str(path)] = f"{target}/{path.relative_to(paper).as_posix()}"
            build_data["force_include"][str(self._archive(paper))] = f"{target}/results.tar.xz"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See hatchling's ``BuildHookInterface.finalize``."""
        if version != "editable":
            shutil.rmtree(self.archives)

    def _archive(self, paper: Path) -> Path:
        """Write the archive of a paper's records, the same bytes for the same records."""
        path, results = self.archives / f"{paper.name}.tar.xz", paper / "results"
        texts = _texts(paper)
        with tarfile.open(path, "w:xz", format=tarfile.PAX_FORMAT) as archive:
            for file in sorted(file for file in results.rglob("*") if file.is_file()):
                if not _TEXTS.search(file.name) or file in texts:
                    # packed files are unpacked: packed together, they take less
                    content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
                    member = tarfile.TarInfo(file.relative_to(results).as_posix().removesuffix(".xz"))
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return path


def _texts(paper: Path) -> set[Path]:
    """Return the files of texts that some row of a table needs (``samples:``)."""
    found: set[Path] = set()
    for path in sorted(paper.glob("tables/*.yaml")):
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        default = table.get("defaults", {}).get("experiment", "main")
        for row in table["rows"]:
            if "samples" in row:
                names = re.compile(_names(row.get("experiment", default), row.get("for", {})))
                for folder in (paper / "results").iterdir():
                    if names.fullmatch(folder.name):
                        found |= _of_seeds(folder, every="expect" in row["samples"])
    return found


def _of_seeds(folder: Path, *, every: bool) -> set[Path]:
    """Return the files of texts of every seed, or of the lowest one of each regime and size: the one that is shown."""
    lowest: dict[str, tuple[int, Path]] = {}
    found = {path for path in folder.iterdir() if _TEXTS.search(path.name)}
    for path in found:
        group, seed = _TEXTS.sub("", path.name).split("-seed")
        lowest[group] = min(lowest.get(group, (int(seed), path)), (int(seed), path))
    return found if every else {path for _, path in lowest.values()}


def _names(experiment: str, variables: dict[str, Any]) -> str:
    """Return a pattern of the names that a row's experiment stands for, such as ``{model}``; others may be anything."""

    def one(found: re.Match[str]) -> str:
        return f"({'|'.join(map(str, variables[found[1]]))})" if found[1] in variables else r"\w+"

    return re.sub(r"\{(\w+)\}", one, experiment)
