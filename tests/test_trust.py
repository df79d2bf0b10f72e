"""Which classes a file may name, and which the user may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lit_ctg import trust
from lit_ctg.config import compose, config_folder
from lit_ctg.errors import UserError

MINE = "class Mine:\n    pass\n\n\ndef make():\n    pass\n\n\nimport os\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a package of the user's that can be imported; trust ends with the test."""
    (tmp_path / "users_package.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    # set and removed, so that whatever the test sets is undone
    monkeypatch.setenv(trust.TRUSTED, "")
    monkeypatch.setattr(trust, "_named_by_user", set())
    yield "users_package"
    sys.modules.pop("users_package", None)


@pytest.mark.parametrize(
    "name",
    [
        "sympy.sympify",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "hydra.utils.get_method",
        "torch.hub.load",
        "torch.optim.Optimizer",
        "lightning.pytorch.callbacks.LambdaCallback",
        "lightning.pytorch.callbacks.ModelCheckpoint",
        "lightning.pytorch.profilers.AdvancedProfiler",
        "lit_ctg.cli.main",
        "lit_ctg.run.jobs.Jobs",
        "lit_ctg.control.bundle.Origin",
        "lit_ctg.data.hub.Path",
        "lit_ctg.data.source.re.compile",
        "lit_ctg.core.model.torch.nn.Linear",
        "lit_ctg.papers",
        "lit_ctg",
        "lit_ctg.data.nothing.Nothing",
        "lit_ctg..data.Path",
        "",
        "a b.c",
        None,
        7,
        ["os.system"],
    ],
)
def test_names_that_a_file_may_not_choose(name: object, package: str) -> None:
    with pytest.raises(UserError, match="model"):
        trust.resolve(name, "model")


def test_nothing_is_imported_before_the_name_is_checked(package: str) -> None:
    with pytest.raises(UserError, match=f"trust={package}"):
        trust.resolve(f"{package}.Mine", "model")
    assert package not in sys.modules


def test_all_classes_of_the_configuration_may_be_named() -> None:
    names = trust._in_conf()
    assert len(names) > 90
    for name in sorted(names - {"..."}):  # of a comment
        assert isinstance(trust.resolve(name, name), type)


def test_all_listed_classes_of_libraries_exist() -> None:
    for module, names in trust.LIBRARIES.items():
        for name in names:
            assert trust.resolve(f"{module}.{name}", name).__name__ == name


def test_a_trusted_package_may_be_named_but_not_what_it_imports(package: str) -> None:
    assert trust.without_trust(["a=1", f"trust={package}"]) == ["a=1"]
    assert trust.resolve(f"{package}.Mine", "model").__name__ == "Mine"
    for other in ("make", "os.system", "os"):
        with pytest.raises(UserError):
            trust.resolve(f"{package}.{other}", "model")


def test_jobs_inherit_both(package: str, tmp_path: Path) -> None:
    script = f"from lit_ctg import trust; print(trust.from_file(), trust.resolve('{package}.Mine', 'x').__name__)"
    command = [sys.executable, "-c", script]
    inherited = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    trust.trust(package)
    with trust.words_from_file():
        told = subprocess.run(command, env={**os.environ, **inherited}, capture_output=True, text=True)
    assert told.stdout == "True Mine\n", told.stderr


@pytest.mark.parametrize("word", ["trust=../x", "trust=a.b", "trust=a b", "trust="])
def test_trust_takes_names_of_packages(word: str, package: str) -> None:
    with pytest.raises(UserError, match="trust="):
        trust.without_trust([word])


def test_what_the_user_types_is_trusted_and_what_a_file_says_is_not(package: str) -> None:
    words = ["experiment=semantic_fusion/main", f"+callback.mine._target_={package}.make"]
    with trust.words_from_file():
        compose(words)
        with pytest.raises(UserError, match=package):
            trust.resolve(f"{package}.make", "callback.mine")
        # a file cannot extend the trust in files
        assert trust.without_trust([f"trust={package}"]) == [f"trust={package}"]
    assert os.environ[trust.TRUSTED] == ""
    compose(words)
    assert trust.resolve(f"{package}.make", "callback.mine")


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a${b}", {"x": ["${y}"]}, {"${y}": 1}])
def test_stored_configurations_are_plain(value: object) -> None:
    with pytest.raises(UserError, match=r"last\.ckpt"):
        trust.stored({"model": value}, "last.ckpt")


def test_targets_are_found_wherever_they_hide() -> None:
    node = OmegaConf.create({"a": [{"_target_": "x.Y"}], "b": {"c": "${d}"}, "d": {"_target_": "z.W"}})
    assert set(trust.targets(node)) == {"x.Y", "z.W"}
    assert config_folder().is_dir()
