from __future__ import annotations

from pathlib import Path

import torch

from lit_ctg.callback.checkpoint import FORMAT, AtomicCheckpointIO, RunCheckpoint


def test_one_plain_checkpoint_with_the_configuration_inside(tiny, trainer_of, tmp_path: Path) -> None:
    module, data = tiny()
    config = {"paper": "x", "seed": 0, "model": {"dim": 4, "names": ["a"], "rate": 0.1, "none": None}}
    callback = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
    callback.settings = config
    trainer = trainer_of(callback, max_epochs=3, enable_checkpointing=True, plugins=[AtomicCheckpointIO()])
    trainer.fit(module, data)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    content = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["lit_ctg"] == {"format": FORMAT, "config": config}
    assert content["epoch"] == 2
    torch.testing.assert_close(content["state_dict"]["embedding.weight"], module.embedding.weight.detach())


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch) -> None:
    io = AtomicCheckpointIO()
    target = tmp_path / "last.ckpt"
    io.save_checkpoint({"epoch": 1}, target)

    def broken(self, checkpoint, path, storage_options=None):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning.fabric.plugins.io.torch_io.TorchCheckpointIO.save_checkpoint", broken)
    try:
        io.save_checkpoint({"epoch": 2}, target)
        raised = False
    except OSError:
        raised = True
    assert raised
    assert torch.load(target, weights_only=True) == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
