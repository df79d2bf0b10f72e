"""`make test` runs the numerical tests again as other processors would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NUMERICAL

ROOT = Path(__file__).resolve().parents[1]


def test_every_numerical_file_is_there() -> None:
    assert [name for name in NUMERICAL if not (ROOT / "tests" / name).is_file()] == []


def test_make_test_names_the_settings() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntest: venv\n")[2].partition("\n\n")[0]
    assert recipe.count("-m pytest") == 3 and recipe.count('-m "numerical and not long and not slow and not gpu"') == 2
    for setting in ("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "LIT_CTG_TEST_HIDE_NUMBA=1"):
        assert setting in recipe


@pytest.mark.long
def test_torch_takes_the_capability_from_the_environment() -> None:
    script = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("DEFAULT", "NO AVX")
