"""The training loop: it learns, and one that was stopped ends where it would have ended."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.field.tune import Stream, next_token_loss, optimise
from tests.tiny import make_gpt2, make_tokenizer

TEXTS = ["the cat sat on the mat and the dog sat on the log"] * 8


def test_training_lowers_the_loss_and_draws_by_step() -> None:
    tokenizer = make_tokenizer(TEXTS, 280)
    stream = Stream(tokenizer, TEXTS, 8)
    assert stream.windows(np.random.default_rng(0), 3).shape == (3, 9)

    def run(steps: int) -> tuple[dict[str, float], float]:
        model = make_gpt2(len(tokenizer), layers=1, dim=8, heads=1, positions=16, end=0, seed=0)
        told = optimise(
            model.parameters(),
            lambda generator: next_token_loss(model, stream.windows(generator, 4)),
            steps=steps,
            learning_rate=1e-2,
            seed=3,
        )
        return told, float(next_token_loss(model, stream.windows(np.random.default_rng(0), 3)).detach())

    assert (told := run(20)) == run(20) and told[1] < run(1)[1] - 0.3


def test_the_loop_is_adamw_restated() -> None:
    """Warm-up, cosine, the gradient's norm cut to 1, weight decay, draws of each step's own, the mean of the last."""
    steps, peak = 40, 0.3

    def run(seed: int) -> tuple[list[np.ndarray], torch.Tensor, float]:
        weight, drawn = torch.nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64)), []

        def loss_of(generator: np.random.Generator) -> torch.Tensor:
            aim = torch.from_numpy(generator.normal(size=2)) + torch.rand(2, dtype=torch.float64)
            drawn.append(aim.numpy())
            return 3 * ((weight - aim) ** 2).sum()

        told = optimise([weight], loss_of, steps=steps, learning_rate=peak, seed=seed)
        return drawn, weight.detach(), told["loss"]

    aims, weight, told = run(5)
    w, first, second, costs = np.array([3.0, -2.0]), np.zeros(2), np.zeros(2), []
    for step, aim in enumerate(aims):
        costs.append(3 * ((w - aim) ** 2).sum())
        gradient = 6 * (w - aim)
        gradient /= max(1.0, np.linalg.norm(gradient))
        rate = peak * min(1.0, (step + 1) / 2) * (1 + math.cos(math.pi * step / steps)) / 2  # two of 40 steps warm up
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        t = step + 1
        w = w * (1 - 0.01 * rate) - rate * first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(weight, w, rtol=1e-4)
    assert told == pytest.approx(np.mean(costs[-4:]), rel=1e-4)
    assert len({aim[0] for aim in aims}) == steps
    other = run(6)[0]
    # numpy's draws, which choose batches, and torch's, which drop out, hang on the seed
    rest = [aim - np.random.default_rng([seed, 0]).normal(size=2) for seed, aim in ((5, aims[0]), (6, other[0]))]
    assert all(((part > 0) & (part < 1)).all() for part in rest) and (rest[0] != rest[1]).all()


def test_the_parameters_of_the_least_held_out_loss_are_kept(tmp_path: Path) -> None:
    """The weight rises towards 9; the data held out like it best at 2. A run that is stopped keeps the same."""
    seen: list[float] = []

    def run(stop: int | None = None, steps: int = 530, **options: Any) -> tuple[float, dict[str, float]]:
        weight, done = torch.nn.Parameter(torch.tensor([0.0])), [0]

        def loss_of(generator: np.random.Generator) -> torch.Tensor:
            done[0] += 1
            if done[0] == stop:
                raise KeyboardInterrupt
            return (weight - 9).square().sum()

        def held_out() -> float:
            assert not torch.is_grad_enabled()
            seen.append(float(weight))
            return abs(seen[-1] - 2)

        told = optimise([weight], loss_of, steps=steps, learning_rate=0.02, seed=0, held_out=held_out, **options)
        return float(weight.detach()), told

    weight, told = run()
    best = min(seen, key=lambda value: abs(value - 2))
    assert len(seen) == 11 and seen == sorted(seen) and best != seen[-1], "every 50 steps, and after the last"
    assert weight == best and told["held_out_loss"] == abs(best - 2)
    assert told["kept_step"] == 50 * (seen.index(best) + 1)
    with pytest.raises(KeyboardInterrupt):
        run(stop=430, checkpoint=tmp_path / "kept")
    again, same = run(checkpoint=tmp_path / "kept")
    assert again == weight and {**same, "seconds_before": 0.0} == told
    with pytest.raises(UserError, match="diverged within 2 steps"):
        optimise([torch.nn.Parameter(torch.ones(1))], lambda _: torch.ones(1, requires_grad=True).sum(), steps=2,
                 learning_rate=0.1, seed=0, held_out=lambda: math.nan)  # fmt: skip


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_weight_decay_is_the_one_asked_for(decay: float) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimise([weight], lambda _: 0 * weight.sum(), steps=1, learning_rate=0.1, seed=0, weight_decay=decay)
    assert weight.tolist() == pytest.approx([1 - 0.1 * decay] * 2)


@pytest.mark.parametrize(
    "damage",
    [b"", {}, {"parameters": [torch.zeros(4)]}, {"parameters": [torch.full((3,), torch.nan)]}, {"losses": ["x"]},
     {"optimizer": {}}, {"best": 3}, {"step": "x"}],
)  # fmt: skip
def test_a_damaged_checkpoint_is_named(damage: bytes | dict[str, Any], tmp_path: Path) -> None:
    weight, checkpoint = torch.nn.Parameter(torch.zeros(3)), tmp_path / ".head.ckpt"
    optimizer = torch.optim.AdamW([weight], lr=0.1).state_dict()
    whole = {"parameters": [torch.ones(3)], "optimizer": optimizer, "step": 2, "losses": [1.0, 1.0],
             "best": {"loss": math.inf, "step": 0, "parameters": []}}  # fmt: skip
    if isinstance(damage, bytes):
        checkpoint.write_bytes(damage)
    else:
        torch.save({**whole, **damage} if damage else damage, checkpoint)
    with pytest.raises(UserError, match=re.escape(str(checkpoint))):
        optimise([weight], lambda _: weight.sum(), steps=3, learning_rate=0.1, seed=0, checkpoint=checkpoint)


def test_a_training_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_ctg.field.tune.EVERY", 19)

    def run(checkpoint: Path | None, stop: int | None) -> tuple[list[float], float]:
        weight, steps = torch.nn.Parameter(torch.zeros(3)), []

        def loss_of(generator: np.random.Generator) -> torch.Tensor:
            steps.append(None)
            if stop is not None and len(steps) > stop:
                raise KeyboardInterrupt
            return ((weight - torch.from_numpy(generator.random(3))) ** 2).sum()

        told = optimise([weight], loss_of, steps=40, learning_rate=0.1, seed=1, checkpoint=checkpoint)
        return weight.tolist(), told["loss"]

    whole, file = run(None, None), tmp_path / "ckpt"
    with pytest.raises(KeyboardInterrupt):
        run(file, 39)
    assert file.is_file()
    assert run(file, 2) == whole, "38 steps were kept with their losses, of which the mean needs two; two are left"
    assert not file.exists()


def test_a_stream_has_an_end_after_each_text_and_its_windows_begin_anywhere() -> None:
    class Numbers:
        eos_token_id = 9
        all_special_tokens: ClassVar[list[str]] = []
        bos_token = eos_token = pad_token = unk_token = None

        def __call__(self, texts: list[str], **options: bool) -> dict[str, list[list[int]]]:
            assert options["add_special_tokens"] is False
            return {"input_ids": [[int(letter) for letter in text] for text in texts]}

    stream = Stream(Numbers(), ["12", "3", "4"], 2)
    assert stream.ids.tolist() == [9, 1, 2, 9, 3, 9, 4, 9]
    found = {tuple(row) for row in stream.windows(np.random.default_rng(0), 200).tolist()}
    assert found == {tuple(stream.ids[start : start + 3].tolist()) for start in range(6)}
    assert Stream(Numbers(), ["12", "3", "4"], 6).length == 6
    with pytest.raises(UserError, match="8 tokens of text for windows of 7"):
        Stream(Numbers(), ["12", "3", "4"], 7)


def test_what_cannot_be_trained_is_one_line() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(UserError, match="diverged at step 0 of 2: lower the learning rate"):
        optimise([weight], lambda generator: (weight / 0).sum(), steps=2, learning_rate=0.1, seed=0)
    with pytest.raises(UserError, match="tokens of text for windows of 800: give more text"):
        Stream(make_tokenizer(TEXTS, 280), TEXTS, 800)
