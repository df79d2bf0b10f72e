"""The training loop: it learns, and one that was stopped ends where it would have ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.field.tune import Stream, make_gpt2, make_tokenizer, next_token_loss, optimise, train_model

TEXTS = ["the cat sat on the mat and the dog sat on the log"] * 8


def model_of(tokenizer: object) -> torch.nn.Module:
    return make_gpt2(len(tokenizer), layers=1, dim=8, heads=1, positions=16, end=0, seed=0)  # type: ignore[arg-type]


def test_training_lowers_the_loss_and_draws_by_step() -> None:
    tokenizer = make_tokenizer(TEXTS, 280)
    stream = Stream(tokenizer, TEXTS, 8)
    model, again = model_of(tokenizer), model_of(tokenizer)
    told = train_model(model, stream, steps=30, batch=4, learning_rate=1e-2, seed=3)
    same = train_model(again, stream, steps=30, batch=4, learning_rate=1e-2, seed=3)
    windows_BT = stream.windows(np.random.default_rng(0), 3)
    assert windows_BT.shape == (3, 9)
    with torch.no_grad():
        assert next_token_loss(model, windows_BT) < next_token_loss(model_of(tokenizer), windows_BT) - 0.5
    assert told["loss"] == same["loss"] and told["seconds"] > 0


def test_a_training_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_ctg.field.tune.EVERY", 4)

    def run(checkpoint: Path | None, stop: int | None) -> torch.Tensor:
        weight, steps = torch.nn.Parameter(torch.zeros(3)), []

        def loss_of(generator: np.random.Generator) -> torch.Tensor:
            steps.append(None)
            if stop is not None and len(steps) > stop:
                raise KeyboardInterrupt
            return ((weight - torch.from_numpy(generator.random(3))) ** 2).sum()

        optimise([weight], loss_of, steps=12, learning_rate=0.1, seed=1, checkpoint=checkpoint)
        return weight.detach()

    whole, file = run(None, None), tmp_path / "ckpt"
    with pytest.raises(KeyboardInterrupt):
        run(file, 7)
    assert file.is_file()
    assert torch.equal(run(file, 8), whole), "four steps were kept, eight are left"
    assert not file.exists()


def test_what_cannot_be_trained_is_one_line() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(UserError, match="diverged at step 0 of 2: lower the learning rate"):
        optimise([weight], lambda generator: (weight / 0).sum(), steps=2, learning_rate=0.1, seed=0)
    with pytest.raises(UserError, match="tokens of text for windows of 800: give more text"):
        Stream(make_tokenizer(TEXTS, 280), TEXTS, 800)
