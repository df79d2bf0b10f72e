"""`pip install .`: the wheel holds the package, its configuration, its tables and its records, and nothing else."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

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
    assert {"lit_ctg/results/report.css", "lit_ctg/results/report.html"} <= set(names)
    sample = {path.name for path in (ROOT / "lit_ctg" / "data" / "sample").iterdir()}
    assert sample and {f"lit_ctg/data/sample/{name}" for name in sample} <= names
    zoo = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "lit_ctg" / "zoo").glob("*/*") if path.suffix != ".pyc"
    }
    assert zoo and zoo <= names
    assert not [name for name in names if name.startswith(("tests/", "outputs/", "conf/"))]


@pytest.mark.long
def test_the_wheel_is_small_and_prints_every_table(tmp_path: Path) -> None:
    """Records of hundreds of runs travel with it; it finds them anywhere. It may grow with the evidence, each run by
    less than 10 kB (8.5 now, with its texts). Sample text and bundles are at most 2 MB each."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        packed = [member for member in archive.infolist() if member.filename.endswith(".tar.xz")]
        sample = sum(each.compress_size for each in archive.infolist() if each.filename.endswith(".jsonl.xz"))
        zoo = sum(each.compress_size for each in archive.infolist() if each.filename.startswith("lit_ctg/zoo/"))
        archive.extractall(site)
    records = 0
    for member in packed:
        with tarfile.open(site / member.filename) as results:
            records += sum(name.endswith(".json") for name in results.getnames())
    size = sum(member.compress_size for member in packed)
    assert size < 10_000 * records, f"{size} bytes for {records} records with their texts"
    assert 0 < sample < 2_000_000 and 0 < zoo < 2_000_000
    assert wheel.stat().st_size - size - sample - zoo < 1_400_000, "without records, sample text and bundles"
    words = [sys.executable, "-m", "lit_ctg.cli", "table", "paper=all", "format=csv"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # not in the checkout, whose outputs/ are the user's
    checkout = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = subprocess.run(words, cwd=tmp_path, env=checkout, capture_output=True, text=True)
    assert done.stdout == whole.stdout, "the wheel lacks something that a table shows"
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    for paper in papers(ROOT / "experiments"):
        rows = [row for spec in load_specs(ROOT / "experiments", paper) for row in spec.rows]
        assert len([line for line in lines if line["paper"] == paper]) == len(rows), paper


def test_no_test_reads_what_a_users_runs_left() -> None:
    """``conftest.py`` watches over it, other processes start in scratch folders."""
    for read in (lambda: os.listdir(ROOT / "outputs"), lambda: (ROOT / "outputs" / "run.json").read_text()):
        with pytest.raises(AssertionError, match="outputs"):
            read()


# extras that `make venv` leaves out
UNLOCKED = {"docs", "notebook", "tensorboard", "mlflow"}
LOCKS = {name: f"requirements-{name}.lock" for name in ("cpu", "cuda")}


def pins(name: str) -> dict[str, str]:
    """Return the version of each package of a lock and of the locks that it reads."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            head, *checksums = line.split(" --hash=")
            assert checksums, f"{name}: {head} has no hash"
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", checksum.strip()) for checksum in checksums), head
            package, version = re.split("={2,3}", head.partition(";")[0].strip())
            assert package not in found, f"{name}: {package} twice"
            found[package] = version
    return found


def for_cuda(package: str) -> bool:
    return package.startswith(("nvidia-", "cuda-")) or package == "triton"


def test_both_locks_have_hashes_and_differ_in_torch_alone() -> None:
    cpu, cuda = (pins(name) for name in LOCKS.values())
    assert cpu.pop("torch") == cuda.pop("torch") + "+cpu"
    assert any(map(for_cuda, cuda)) and not any(map(for_cuda, cpu))
    assert cpu == {package: version for package, version in cuda.items() if not for_cuda(package)}


def test_locks_and_pyproject_agree() -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    docs = {**pins("requirements.lock"), **pins("requirements-docs.lock")}
    assert {**docs, **pins("requirements.lock")} == docs, "the docs need another version of a package"
    asked = [
        *project["dependencies"],
        *(text for name, texts in extras.items() if name not in UNLOCKED for text in texts),
    ]
    for locked, texts in ((docs, extras["docs"]), *((pins(name), asked) for name in LOCKS.values())):
        for requirement in map(Requirement, texts):
            if requirement.name == "lit-ctg":
                assert set(requirement.extras) <= set(extras)
            else:
                assert requirement.specifier.contains(locked[requirement.name.lower().replace("_", "-")]), requirement


def test_every_step_of_an_installation_asks_for_hashes() -> None:
    """The package itself has none; its step reads no index."""
    lines = re.findall(r".*(?:\$\(PIP[):]|pip install|pip download).*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    steps = [line for line in lines if "--dry-run" not in line and not line.startswith("PIP :=")]
    assert len(steps) == 5
    for line in steps:
        assert "--no-deps" in line and ("--require-hashes" in line or "--no-index" in line), line


def test_no_cuda_library_is_installed_where_a_cpu_wheel_is_offered() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        if not torch.cuda.is_available():
            pin = f"torch=={pins(LOCKS['cpu'])['torch']}"
            command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", pin]
            offered = subprocess.run(command, capture_output=True, text=True)
            assert offered.returncode, "pip offers the CPU wheel and there is no GPU: make clean venv"
        pytest.skip("torch is built for CUDA")
    packages = [each.metadata["Name"].lower().replace("_", "-") for each in distributions()]
    assert not list(filter(for_cuda, packages))


@pytest.mark.long
def test_the_environment_takes_at_most_four_gigabytes() -> None:
    if not (Path(sys.prefix) / ".locks").exists() or any(each.metadata["Name"] == "triton" for each in distributions()):
        pytest.skip("not what `make venv` builds for a CPU")
    assert sum(path.lstat().st_size for path in Path(sys.prefix).rglob("*")) < 4e9


def write_wheel(folder: Path, name: str, version: str, text: str = "") -> str:
    """Write a wheel with one module; return its checksum."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Install:
    """A project with the Makefile of this one, and locks of three small packages that lie in a folder."""

    def __init__(self, folder: Path, gpu: bool = False) -> None:
        self.folder, self.wheels, bin_folder = folder, folder / "wheels", folder / "bin"
        self.wheels.mkdir()
        bin_folder.mkdir()
        (bin_folder / "nvidia-smi").write_text(f"#!/bin/sh\nexit {0 if gpu else 9}\n", encoding="utf-8")
        (bin_folder / "nvidia-smi").chmod(0o755)
        shutil.copy(ROOT / "Makefile", folder)
        packages = {"requirements": {"other": "1"}, "requirements-cpu": {"torch": "2+cpu"}}
        packages["requirements-cuda"] = {"torch": "2", "nvidia_x": "1"}
        for lock, versions in packages.items():
            lines = [] if lock == "requirements" else ["-r requirements.lock"]
            for name, version in versions.items():
                lines.append(f"{name}==={version} --hash=sha256:{write_wheel(self.wheels, name, version)}")
            (folder / f"{lock}.lock").write_text("\n".join(lines), encoding="utf-8")
        write_wheel(folder, "own", "1")
        backend = "import shutil\ndef build_editable(to, *rest):\n    shutil.copy(NAME, to)\n    return NAME\n"
        backend += "NAME = 'own-1-py3-none-any.whl'\n"
        (folder / "backend.py").write_text(backend, encoding="utf-8")
        build = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        (folder / "pyproject.toml").write_text(build + "[project]\nname = 'own'\nversion = '1'\n", encoding="utf-8")
        self.environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
        self.environment |= {"PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "venv", f"PYTHON={sys.executable}", *words]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def installed(self) -> set[str]:
        (site,) = self.folder.glob(".venv/lib/python*/site-packages")
        found = {each.metadata["Name"]: each.version for each in distributions(path=[str(site)])}
        return {f"{name} {version}" for name, version in found.items() if name not in ("pip", "setuptools")}


@pytest.mark.long
@pytest.mark.parametrize("gpu", [True, False])
def test_the_cuda_lock_is_for_machines_with_a_gpu_or_without_a_cpu_wheel(tmp_path: Path, gpu: bool) -> None:
    install = Install(tmp_path, gpu=gpu)
    if not gpu:
        (install.wheels / "torch-2+cpu-py3-none-any.whl").unlink()
    done = install.make()
    assert done.returncode == 0, done.stderr
    assert install.installed() == {"own 1", "other 1", "torch 2", "nvidia_x 1"}


@pytest.mark.long
def test_a_changed_lock_makes_a_new_environment_and_a_tampered_package_none(tmp_path: Path) -> None:
    install = Install(tmp_path)
    assert install.make().returncode == 0
    assert install.installed() == {"own 1", "other 1", "torch 2+cpu"}
    (site,) = tmp_path.glob(".venv/lib/python*/site-packages")
    (site / "other.py").write_text("tampered = True", encoding="utf-8")
    assert install.make().returncode == 0 and (site / "other.py").read_text() == "tampered = True", "no lock changed"
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"# changed\n{lock.read_text()}", encoding="utf-8")
    assert install.make().returncode == 0
    assert (site / "other.py").read_text() == "", "it had the version of the lock, but another file"

    write_wheel(install.wheels, "other", "1", "tampered = True")
    lock.write_text(f"# changed again\n{lock.read_text()}", encoding="utf-8")
    done = install.make()
    assert done.returncode and "hash" in done.stderr.lower()
    assert install.installed() == set() and not (tmp_path / ".venv" / ".locks").exists(), "the next make starts anew"


@pytest.mark.parametrize("name", ["notes", "link"])
def test_an_environment_takes_the_place_of_no_other_folder(tmp_path: Path, name: str) -> None:
    install = Install(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "pyvenv.cfg" if name == "link" else tmp_path / "notes" / "mine").write_text("", "utf-8")
    (tmp_path / "link").symlink_to("notes")
    before = list((tmp_path / "notes").iterdir())
    done = install.make(f"VENV={name}")
    assert done.returncode and name in done.stderr and list((tmp_path / "notes").iterdir()) == before


def test_nothing_names_a_package_registry_or_a_machine() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in files if (ROOT / name).is_file()
    }
    assert "README.md" in texts
    for name, text in texts.items():
        if not name.startswith("tests/"):
            assert "/opt/" + "pypi" not in text and "index" + "-url" not in text, name
