from __future__ import annotations

import subprocess
import sys

from lit_ctg.results.record import HASH_IGNORED, config_hash, environment


def nested(dotted: str, value: object) -> dict:
    """Return ``{"a": {"b": value}}`` for ``a.b``."""
    first, _, rest = dotted.partition(".")
    return {first: nested(rest, value) if rest else value}


def test_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert config_hash({"a": 1, "b": {"c": 2, "d": 3}}) == config_hash({"b": {"d": 3, "c": 2}, "a": 1})


def test_hash_sees_every_other_change() -> None:
    base = {"seed": 0, "model": {"lr": 3e-4, "heads": 4}, "data": {"words": ["a", "b"]}}
    changed = [
        {**base, "seed": 1},
        {**base, "model": {"lr": 3e-4, "heads": 5}},
        {**base, "model": {"lr": 3e-4}},
        {**base, "data": {"words": ["b", "a"]}},
        {**base, "model": {"lr": float("inf"), "heads": 4}},
    ]
    assert len({config_hash(config) for config in [base, *changed]}) == len(changed) + 1


def test_hash_ignores_what_changes_no_result() -> None:
    for dotted in HASH_IGNORED:
        assert config_hash({"seed": 0, **nested(dotted, 1)}) == config_hash({"seed": 0, **nested(dotted, 2)}), dotted
    assert config_hash({"trainer": {"max_epochs": 1}}) != config_hash({"trainer": {"max_epochs": 2}})
    assert config_hash({"model": {"n": 1}}) != config_hash({"model": {"n": 2}}), "only the root's n is ignored"


def test_environment_reads_versions_without_importing() -> None:
    code = (
        "import sys; from lit_ctg.results.record import environment; e = environment(); "
        "assert 'torch' not in sys.modules; print(e['versions']['torch'], e['versions']['python'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    torch_version, python_version = done.stdout.split()
    assert torch_version[0].isdigit()
    assert python_version == sys.version.split()[0]


def test_commit_is_that_of_the_checkout_that_tracks_the_package(tmp_path, monkeypatch) -> None:
    from lit_ctg.results import provenance

    package = tmp_path / "lit_ctg"
    (package / "results").mkdir(parents=True)
    (package / "__init__.py").write_text("")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    monkeypatch.setattr(provenance, "__file__", str(package / "results" / "provenance.py"))
    assert environment()["git"] == {"commit": None, "dirty": None}, "an untracked package is not that checkout's code"
    git("add", "lit_ctg/__init__.py")
    git("commit", "-q", "-m", "one")
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (package / "__init__.py").write_text("x = 1\n")
    assert environment()["git"]["dirty"] is True
