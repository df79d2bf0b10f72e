"""What a machine's arithmetic allows: what is asked for, what is used, what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.accelerators import MPSAccelerator

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.results.record import load_record
from lit_ctg.run import precision
from lit_ctg.run.build import build
from lit_ctg.run.precision import MIXED, has_bfloat16, set_precision, usable_accelerator


def trainer(asked: str) -> Trainer:
    return Trainer(accelerator="cpu", precision=asked, logger=False, enable_checkpointing=False)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch):
    """Say what a processor can do, and what oneDNN may use of it."""

    def chosen(found: dict[str, bool], cap: str = "", onednn: bool = True) -> bool:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", cap)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
        return has_bfloat16()

    return chosen


def test_units_are_those_of_the_processor_that_onednn_may_use(units) -> None:
    assert not units({"avx2": True, "avx512_f": True, "avx512_bf16": False})
    assert units({"avx512_bf16": True}) and units({"amx_bf16": True}) and units({"neon": True, "bf16": True})
    for cap in ("SSE41", "AVX", "avx2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"):
        assert not units({"avx512_bf16": True}, cap), cap
    for cap in ("DEFAULT", "AVX512_CORE_BF16", "AVX10_1_512", "AVX512_CORE_AMX"):
        assert units({"avx512_bf16": True}, cap), cap


def test_units_that_torch_does_not_use_are_none(units) -> None:
    """torch's builds for macOS have no oneDNN."""
    assert not units({"neon": True, "bf16": True}, onednn=False)


def test_without_units_products_are_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, used in ((False, "32-true"), (True, MIXED)):
        monkeypatch.setattr(precision, "has_bfloat16", lambda there=there: there)
        own = trainer(MIXED)
        assert set_precision(own) == own.precision == used
        with own.precision_plugin.forward_context():
            assert torch.is_autocast_enabled("cpu") == there
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (torch.bfloat16 if there else torch.float32)


@pytest.mark.parametrize("asked", ["32-true", "64-true", "bf16-true"])
def test_another_precision_is_left_alone(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    own = trainer(asked)
    assert set_precision(own) == own.precision == asked


def test_a_run_uses_float32_says_so_and_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The LSTM is what oneDNN refuses in bfloat16; the run directory is that of the setting, whatever the machine."""
    from lit_ctg.cli import main

    words = ["train", "experiment=nslm/numbers", "size=smoke", "trainer.precision=bf16-mixed", "trainer.max_steps=2"]
    words += ["trainer.limit_val_batches=1", "model.character_dim=0"]
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    assert main([*words, f"output_root={tmp_path}"]) == 0
    (place,) = tmp_path.glob("nslm/*/*/run.json")
    record = load_record(place)
    assert record.precision == "32-true" and record.config["trainer"]["precision"] == MIXED
    assert "no units for bfloat16" in capsys.readouterr().out
    monkeypatch.setattr(precision, "has_bfloat16", lambda: True)
    assert main([*words, f"output_root={tmp_path}", "skip_completed=true"]) == 0
    assert "done already" in capsys.readouterr().out


def test_auto_does_not_choose_a_device_without_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an Apple laptop ``auto`` is its GPU for Lightning; metrics sum in float64."""
    cfg = compose(["experiment=semantic_fusion/main", "size=smoke"])
    assert cfg.trainer.accelerator == "auto"
    assert [usable_accelerator(asked) for asked in ("auto", "gpu", "mps", "cpu")] == ["auto", "gpu", "mps", "cpu"]
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    assert [usable_accelerator(asked) for asked in ("auto", "cpu", "cuda")] == ["cpu", "cpu", "cuda"]
    assert build(cfg, tmp_path, loggers=False).trainer.strategy.root_device.type == "cpu"
    for asked in ("mps", "gpu"):
        cfg.trainer.accelerator = asked
        with pytest.raises(UserError, match=f"trainer.accelerator={asked}: Apple's GPU has no float64"):
            build(cfg, tmp_path, loggers=False)
