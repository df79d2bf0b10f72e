from __future__ import annotations

import pytest
import torch

from lit_ctg.run import threads
from lit_ctg.run.jobs import SIDE_BY_SIDE
from lit_ctg.run.threads import MANY, set_threads


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch):
    """No choice made by the environment, eight cores; the number of threads is put back."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def model(size: int, trained: bool = True) -> torch.nn.Module:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.empty(size, device="meta"), requires_grad=trained)
    return module


def test_the_size_of_the_model_decides(trainer_of, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    assert set_threads(None, model(MANY - 1), trainer_of()) == torch.get_num_threads() == 1
    assert set_threads(None, model(MANY), trainer_of()) == torch.get_num_threads() == 8
    assert set_threads(None, model(MANY, trained=False), trainer_of()) == 1
    monkeypatch.setenv(SIDE_BY_SIDE, "4")
    assert set_threads(None, model(MANY), trainer_of()) == 2
    monkeypatch.setenv(SIDE_BY_SIDE, "100")
    assert set_threads(None, model(MANY), trainer_of()) == 1


def test_a_choice_is_respected(trainer_of, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_threads(2, model(10), trainer_of()) == torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert set_threads(None, model(MANY), trainer_of()) == 2
    assert set_threads(1, model(MANY), trainer_of()) == 1
