from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lit_ctg.decoding.filters import Nucleus, RepetitionPenalty, Temperature, row_noise
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError

SIZE, BOS, EOS = 9, 1, 2


class Recurrent(nn.Module):
    """A cached model whose scores depend on the whole prefix; float64 so that batch and single rows agree exactly."""

    def __init__(self, size: int = SIZE):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(size, 8)
        self.cell = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, size)
        self.double()
        self.steps = 0
        self.channel = None

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def start(self, batch_size: int, controls) -> torch.Tensor:
        self.channel = controls
        return torch.zeros(batch_size, 8, dtype=torch.float64, device=self.device)

    def step(self, ids_B1: torch.Tensor, state: torch.Tensor):
        self.steps += 1
        assert ids_B1.shape == (len(state), 1)
        state = self.cell(self.embedding(ids_B1[:, 0]), state)
        return 3 * self.head(state), state


def settings(**changes) -> dict:
    return {"seed": 4, "max_new_tokens": 10, "eos_id": EOS, **changes}


RULES = RuleList([RepetitionPenalty(1.5, window=3), Temperature(1.3), Nucleus(0.95, keep_crossing=True)])
PROMPTS = [[BOS], [BOS, 4, 5, 6], [BOS, 3], [BOS, 3], [BOS, 7, 8, 3, 4, 5, 6], [BOS]]


def test_a_batch_equals_its_rows_one_by_one():
    model = Recurrent()
    together = generate(model, PROMPTS, RULES, **settings())
    alone = [generate(model, [p], RULES, rows=[r], **settings())[0] for r, p in enumerate(PROMPTS)]
    assert together == alone
    some = generate(model, [PROMPTS[4], PROMPTS[1]], RULES, rows=[4, 1], **settings())
    assert some == [together[4], together[1]]


def test_rows_draw_differently_and_seeds_too():
    model = Recurrent()
    rows = generate(model, [[BOS]] * 20, RULES, **settings())
    assert len({tuple(r) for r in rows}) > 10
    assert rows == generate(model, [[BOS]] * 20, RULES, **settings())
    assert rows != generate(model, [[BOS]] * 20, RULES, **settings(seed=5))


def test_outputs_start_with_the_prompt_and_end_at_eos_or_at_the_limit():
    rows = generate(Recurrent(), PROMPTS * 10, RULES, **settings())
    ended = 0
    for prompt, row in zip(PROMPTS * 10, rows, strict=True):
        assert row[: len(prompt)] == prompt and len(row) > len(prompt)
        assert EOS not in row[:-1] and len(row) <= len(prompt) + 10
        assert row[-1] == EOS or len(row) == len(prompt) + 10
        ended += row[-1] == EOS
    assert 0 < ended < len(rows)


def slow_greedy(model: Recurrent, prompt: list[int], rules: ScoreRule, new: int) -> list[int]:
    """One row, the whole prefix recomputed for each token."""
    ids = list(prompt)
    for _ in range(new):
        state = model.start(1, None)
        for token in ids:
            scores, state = model.step(torch.tensor([[token]]), state)
        ids.append(int(rules(torch.tensor([ids]), scores).argmax()))
        if ids[-1] == EOS:
            break
    return ids


def test_greedy_equals_full_recomputation_one_at_a_time():
    model = Recurrent()
    with torch.no_grad():
        expected = [slow_greedy(model, p, RULES, 10) for p in PROMPTS]
    assert generate(model, PROMPTS, RULES, **settings(seed=None)) == expected
    assert len({tuple(row) for row in expected}) > 3


def test_generation_leaves_gradients_and_random_state_alone():
    model = Recurrent()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    generate(model, [[BOS]] * 3, RULES, **settings())
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled() and all(p.grad is None for p in model.parameters())


class Record(ScoreRule):
    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append((input_ids.clone(), scores.clone()))
        return scores


def test_finished_rows_are_padded():
    record = Record()
    rows = generate(Recurrent(), [[BOS]] * 30, record, **settings(max_new_tokens=25))
    last_ids = record.seen[-1][0]
    for row, ids in zip(rows, last_ids.tolist(), strict=True):
        if row[-1] == EOS and len(row) < len(ids):
            assert ids == row + [0] * (len(ids) - len(row))
    assert any(len(row) < last_ids.shape[1] for row in rows)


def test_a_start_token_equal_to_the_end_token_ends_nothing():
    rows = generate(Recurrent(), [[EOS]] * 4, RULES, **settings())
    assert all(len(row) > 1 for row in rows)


def test_a_finished_prompt_is_returned_as_it_is():
    assert generate(Recurrent(), [[BOS, 5, EOS], [BOS]], RULES, **settings())[0] == [BOS, 5, EOS]
    assert generate(Recurrent(), [[BOS, 5]], RULES, **settings(max_new_tokens=0)) == [[BOS, 5]]
    assert generate(Recurrent(), [], RULES, **settings()) == []


class Only(ScoreRule):
    """Forbid every token, or make scores NaN, from a prefix length on."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, self.value) if input_ids.shape[1] > 2 else scores


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("seed", [4, None])
def test_a_row_without_a_distribution_is_an_error_in_one_line(value, seed):
    with pytest.raises(UserError, match=r"row 0 has no token to draw at column 3") as error:
        generate(Recurrent(), [[BOS, 5, 6]], Only(value), **settings(seed=seed))
    assert "\n" not in str(error.value)


class Even:
    """Finds every token equally likely, and counts its steps."""

    device, size = torch.device("cpu"), 50

    def start(self, batch_size, controls):
        self.steps = 0

    def step(self, ids_B1, state):
        self.steps += 1
        return torch.zeros(len(ids_B1), self.size), None


def test_every_column_has_its_own_draw():
    made = generate(Even(), [[1], [1, 2]], RuleList(), seed=4, max_new_tokens=6, eos_id=Even.size)
    noise = row_noise(4, range(2), 8)
    assert made[0][1:] == [int(u * Even.size) for u in noise[0, 1:7]]
    assert made[1][2:] == [int(u * Even.size) for u in noise[1, 2:]]


def test_only_rows_that_draw_need_a_token_and_the_last_end_stops():
    """A rule that leaves nothing where the prompt says what comes, and nothing behind the end of a row."""

    class Strict(ScoreRule):
        def __call__(self, input_ids, scores):
            only = torch.full_like(scores, -math.inf)
            for row, column, token in ((0, 1, 9), (1, 3, 8), (1, 4, 9)):
                if input_ids.shape[1] == column:
                    only[row, token] = 0.0
            return only

    model = Even()
    made = generate(model, [[1], [1, 2, 3]], Strict(), seed=None, max_new_tokens=30, eos_id=9)
    assert made == [[1, 9], [1, 2, 3, 8, 9]] and model.steps == 4
    with pytest.raises(UserError, match="row 1 has no token to draw at column 1"):
        generate(Even(), [[1], [1]], Strict(), seed=None, max_new_tokens=3, eos_id=9)
