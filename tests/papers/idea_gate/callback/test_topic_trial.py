"""Topic trials with a generator that writes what it is told to: places, arms, pairing, records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.topic.domain import load_domain
from lit_ctg.papers.idea_gate.topic_trial import TopicTrial

FUNCTION_WORDS = ("the", "of", "and")
DOMAINS = ("chemistry", "war")


@dataclass
class Text:
    ids: Sequence[int]
    prompt_length: int


@pytest.fixture(scope="module")
def vocabulary():
    """A byte-level tokenizer of the prompts and continuations used here."""
    tokenizer = TrainedBPETokenizer(size=400)
    prompts = [prompt for name in DOMAINS for prompt in load_domain(name).prompts]
    tokenizer.train([*prompts, " acid army king river" * 20])
    return tokenizer


class Author:
    """Continues prompts with ``continuation(control, row)``, remembering how it was called."""

    def __init__(self, vocabulary, continuation):
        self.vocabulary, self.continuation, self.calls = vocabulary, continuation, []

    def generator(self, module, datamodule):
        return self

    def generate(self, n, prompt, control, *, seed, rows, max_new_tokens):
        assert len(prompt) == len(rows) == n
        self.calls.append((list(prompt), dict(control), seed, list(rows), max_new_tokens))
        texts = []
        for start, row in zip(map(self.vocabulary.encode, prompt), rows, strict=True):
            new = self.vocabulary.encode(self.continuation(control, row))
            texts.append(Text((*start, *new[:max_new_tokens]), len(start)))
        return texts


def trial(author, **options):
    settings = {
        "domains": DOMAINS,
        "samples": 4,
        "prompts": 2,
        "scored_tokens": 10,
        "spans": [[1, 5], [6, 10], [11, 20]],
        "function_words": FUNCTION_WORDS,
        "arms": {"gated": {}, "gate_off": {"alpha": 0.0}},
        "decoding": author,
        "seed": 3,
    }
    return TopicTrial(**{**settings, **options})


def run(author, gated=True, **options):
    callback = trial(author, **options)
    callback.run(SimpleNamespace(gated=gated), SimpleNamespace(vocabulary=author.vocabulary))
    return callback


def on_topic(control, row):
    """Acid with the gate, kings without."""
    return (" king" if control else " acid") * 30


def test_stickiness_of_each_arm_and_the_gain(vocabulary) -> None:
    results = run(Author(vocabulary, on_topic)).results
    assert results["topic/gated/chemistry/short/stickiness"]["value"] == 1.0
    assert results["topic/gate_off/chemistry/short/stickiness"]["value"] == 0.0
    # acid is no term of war
    assert results["topic/gated/war/long/stickiness"]["value"] == 0.0
    assert results["topic/gated/all/short/stickiness"]["value"] == 0.5
    gain = results["topic/gate_gain/chemistry/short/stickiness"]
    assert gain["value"] == 1.0 and gain["ci95"] == [1.0, 1.0] and gain["n"] == 4
    assert results["topic/gate_gain/war/short/stickiness"]["value"] == 0.0
    assert results["topic/gated/chemistry/short/stickiness"]["n"] == 4
    assert results["topic/gated/all/short/stickiness"]["n"] == 8


def test_the_prompt_is_left_out_and_its_own_reading_kept(vocabulary) -> None:
    results = run(Author(vocabulary, lambda *_: " king" * 30)).results
    assert results["topic/gated/chemistry/long/stickiness"]["value"] == 0.0
    assert results["topic/gated/chemistry/long/stickiness_with_prompt"]["value"] > 0.1
    assert results["topic/gated/chemistry/long/density"]["value"] == 0.0
    assert results["topic/gated/chemistry/long/density_with_prompt"]["value"] > 0.0


def test_only_scored_tokens_count_and_spans_see_where_words_stand(vocabulary) -> None:
    acid, king = (vocabulary.encode(word) for word in (" acid", " king"))
    assert len(acid) == len(king) == 1, "one token a word makes places plain"
    results = run(Author(vocabulary, lambda *_: " acid" * 5 + " king" * 5 + " acid" * 10)).results
    name = "topic/gated/chemistry/short"
    drift = {span: results[f"{name}/drift/{span}"]["value"] for span in ("1-5", "6-10", "11-20", "fall")}
    assert drift == {"1-5": 1.0, "6-10": 0.0, "11-20": 1.0, "fall": 0.0}
    assert results[f"{name}/stickiness"]["value"] == 0.5
    # one different term in ten tokens
    assert results[f"{name}/density"]["value"] == pytest.approx(10.0)
    # ten words, two of nine pairs new each time: (a a), (a k), (k k)
    assert results["topic/gated/chemistry/distinct_2"]["value"] == pytest.approx(3 / 9)


def test_spans_are_counted_from_the_first_new_token_to_the_last_named(vocabulary) -> None:
    """Terms at the edges of spans alone: a span that begins or ends a token too early or too late has another share."""
    names = ["king"] * 20
    for place in (1, 5, 6, 20):
        names[place - 1] = "acid"
    results = run(Author(vocabulary, lambda *_: " " + " ".join(names))).results
    name = "topic/gated/chemistry/short/drift"
    assert [results[f"{name}/{span}"]["value"] for span in ("1-5", "6-10", "11-20")] == [2 / 5, 1 / 5, 1 / 10]


def test_a_word_across_the_edge_of_a_span_belongs_to_the_span_it_begins_in(vocabulary) -> None:
    long = vocabulary.encode(" acids")
    assert 2 <= len(long) <= 5 and "acids" in load_domain("chemistry").terms["long"]
    # its first token is the fifth new one
    results = run(Author(vocabulary, lambda *_: " king" * 4 + " acids" + " king" * 20)).results
    name = "topic/gated/chemistry/long/drift"
    assert results[f"{name}/1-5"]["value"] == 1 / 5
    assert results[f"{name}/6-10"]["value"] == 0.0


def test_a_word_that_the_prompt_began_is_no_word_of_the_continuation(vocabulary) -> None:
    results = run(Author(vocabulary, lambda *_: "xyz acid")).results
    assert results["topic/gated/chemistry/short/stickiness"]["value"] == 1.0


def test_a_short_text_has_its_own_number_of_tokens_and_no_far_span(vocabulary) -> None:
    results = run(Author(vocabulary, lambda *_: " acid")).results
    name = "topic/gated/chemistry/short"
    assert results[f"{name}/density"]["value"] == pytest.approx(100.0)
    assert results[f"{name}/drift/11-20"]["n"] == 0


def test_prompts_and_arms_share_out_and_pair(vocabulary) -> None:
    author = Author(vocabulary, on_topic)
    run(author)
    gated, off = author.calls[:2], author.calls[2:]
    # the same prompts, seeds and rows in both arms: the same draws
    assert [call[:1] + call[2:] for call in gated] == [call[:1] + call[2:] for call in off]
    assert [call[1] for call in author.calls] == [{}, {}, {"alpha": 0.0}, {"alpha": 0.0}]
    # every row of every domain has draws of its own
    rows = [row for call in gated for row in call[3]]
    assert rows == list(range(8))
    first, second = load_domain("chemistry").prompts[:2]
    assert gated[0][0] == [first, first, second, second]
    assert all(call[2] == 3 and call[4] == 20 for call in author.calls)


def test_a_model_without_a_gate_runs_one_arm(vocabulary) -> None:
    callback = run(Author(vocabulary, on_topic), gated=False)
    assert {key.split("/")[1] for key in callback.results} == {"gated"}
    assert {sample["path"] for sample in callback.samples} == {"gated"}


def test_samples_are_kept_of_every_prompt(vocabulary) -> None:
    callback = run(Author(vocabulary, on_topic), samples_kept=1)
    assert len(callback.samples) == 2 * 2 * 2
    assert all(sample["text"].startswith(sample["prompt"]) for sample in callback.samples)


def test_runs_in_validation_alone(vocabulary, tiny, trainer_of) -> None:
    callback = trial(Author(vocabulary, on_topic))
    module, data = tiny()
    data.vocabulary, module.gated = vocabulary, True
    trainer = trainer_of(callback)
    trainer.fit(module, data)
    assert not callback.results
    trainer.validate(module, data, verbose=False)
    assert callback.results and callback.samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": {"gate_off": {"alpha": 0.0}}}, "needs 'gated' without control"),
        ({"arms": {"gated": {"alpha": 1.0}}}, "needs 'gated' without control"),
        ({"samples": 5}, "5 samples cannot be shared by 2 prompts"),
        ({"prompts": 40, "samples": 40}, r"chemistry has 6 prompts.*callback\.topic_trial\.prompts=6"),
        ({"spans": [[0, 5]]}, "first and last token"),
        ({"domains": ["alchemy"]}, "no domain 'alchemy'"),
    ],
)
def test_bad_settings_are_named(vocabulary, options, message) -> None:
    with pytest.raises(UserError, match=message):
        trial(Author(vocabulary, on_topic), **options)
