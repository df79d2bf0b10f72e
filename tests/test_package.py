"""`pip install .`: the wheel holds the package, its configuration, its tables and its records, and nothing else."""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lit_ctg.files import write_samples
from lit_ctg.results.spec import load_specs, papers

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "lit-ctg = lit_ctg.cli:main" in archive.read(entry_points).decode()
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"lit_ctg/conf/{path.relative_to(ROOT / 'conf').as_posix()}" in names
    for path in (ROOT / "experiments").rglob("*.yaml"):
        assert f"lit_ctg/experiments/{path.relative_to(ROOT / 'experiments').as_posix()}" in names
    assert "lit_ctg/experiments/semantic_fusion/numbers.csv" in names
    assert {"lit_ctg/results/report.css", "lit_ctg/figure.css"} <= names
    assert not [name for name in names if name.startswith(("tests/", "outputs/", "conf/"))]


def test_packed_texts_travel_as_if_they_were_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    hook = importlib.import_module("hatch_build").Experiments
    builder = hook.__new__(hook)  # its own arguments are hatchling's
    builder.archives, results = tmp_path, tmp_path / "paper" / "results" / "main"
    (tmp_path / "paper" / "tables").mkdir(parents=True)
    (tmp_path / "paper" / "tables" / "one.yaml").write_text("rows: [{samples: {show: 1}}]")
    for seed, packed_from in ((0, 0), (1, math.inf)):
        texts = results / f"corrected-small-seed{seed}.samples.jsonl"
        write_samples([{"text": f"of seed {seed}"}], texts, packed_from=packed_from)
    with tarfile.open(builder._archive(tmp_path / "paper")) as archive:
        (name,) = archive.getnames()  # the lowest seed's is shown
        member = archive.extractfile(name)
        assert name == "main/corrected-small-seed0.samples.jsonl"
        assert member is not None and member.read() == b'{"text": "of seed 0"}\n'


@pytest.mark.long
def test_the_wheel_is_small_and_prints_every_table(tmp_path: Path) -> None:
    """Records of hundreds of runs travel with it; unpacked anywhere it finds them. It may grow with the evidence, each
    run by less than 6 kB (4.3 now): a record has 46 on average, and packed by itself 7.6."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        packed = [member for member in archive.infolist() if member.filename.endswith("results.tar.xz")]
        archive.extractall(site)
    records = 0
    for member in packed:
        with tarfile.open(site / member.filename) as results:
            records += sum(name.endswith(".json") for name in results.getnames())
    size = sum(member.compress_size for member in packed)
    assert size < 6_000 * records, f"{size} bytes for {records} records with their texts"
    assert wheel.stat().st_size - size < 1_400_000, "without records"
    words = [sys.executable, "-m", "lit_ctg.cli", "table", "paper=all", "format=csv"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == whole.stdout, "the wheel lacks something that a table shows"
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    for paper in papers(ROOT / "experiments"):
        rows = [row for spec in load_specs(ROOT / "experiments", paper) for row in spec.rows]
        assert len([line for line in lines if line["paper"] == paper]) == len(rows), paper


def test_lock_and_pyproject_agree() -> None:
    import tomllib

    from packaging.requirements import Requirement

    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    locked = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    for pin, *checksums in locked:
        assert checksums and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", checksum) for checksum in checksums), pin
    pins = dict(pin.lower().replace("_", "-").split("==") for pin, *_ in locked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # the extra docs is not locked: only `make docs` needs it, and no test runs that
    extras = [text for name, texts in project["optional-dependencies"].items() if name != "docs" for text in texts]
    for text in [*project["dependencies"], *extras]:
        requirement = Requirement(text)
        if requirement.name == "lit-ctg":
            assert set(requirement.extras) <= set(project["optional-dependencies"])
            continue
        assert requirement.specifier.contains(pins[requirement.name.lower().replace("_", "-")]), text


def test_nothing_names_a_package_registry_or_a_machine() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in files if (ROOT / name).is_file()
    }
    assert "README.md" in texts
    for name, text in texts.items():
        if not name.startswith("tests/"):
            assert "/opt/" + "pypi" not in text and "index" + "-url" not in text, name
