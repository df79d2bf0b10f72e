"""Several controls on one model: order, rows, beams, padding, options, against a slow reference."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.control import Control, Stage, Steered
from lit_ctg.control import steered as steering
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.filters import row_noise
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.control import SoftPrompt
from tests.conftest import make_tokenizer

V, D = 14, 16
PROMPTS = ("the war began in 1914", "a good acid", "in", "1918 bad metal .")


# settings under which each control changes something
ON: dict[str, dict[str, Any]] = {
    "idea_gate": {"alpha": 1.5},
    "graphmax": {"strength": 3},
    "micro_models": {"strength": 1},
    "lexicon": {"strength": 8, "to_polarity": -1},
    "grammar": {"strength": 1},
    "feature_channel": {"strength": 1, "pos": 1},
    "neuron_codes": {"strength": 2, "news": 1, "blog": 0.5},
    "memory": {"strength": 4},
    "token_bias": {"strength": 2, "to_good": 1},
    "experts": {"strength": 0.5, "to_good": 1},
    "generative_classifier": {"strength": 8, "to_bad": 1},
    "future": {"strength": 2, "to_good": 1},
    "gradient": {"strength": 0.5, "to_bad": 1},
    "activation_vector": {"strength": 1, "to_bad": 1},
    "lora": {"strength": 1},
}
STRENGTH = {"idea_gate": "alpha"}


@pytest.fixture(scope="module")
def all_controls(carried_controls: Any) -> dict[str, Control]:
    return carried_controls()


def slow(steered: Steered, prompt: str, settings: dict[str, Any], new: int) -> list[int]:
    """Greedy decoding, one prompt, no cache, no generate: the network and the rules once a token, in order."""
    ids = steered.tokenizer(prompt).input_ids
    with steered.attached(settings, 1) as rules:
        for _ in range(new):
            ids_1T = torch.tensor([ids])
            with torch.no_grad():
                scores = steered.model(input_ids=ids_1T, use_cache=False).logits[:, -1].float()
            for rule in rules:
                scores = rule(ids_1T, scores)
            ids.append(int(scores.argmax()))
            if ids[-1] == 0:
                break
    return ids


def flat(chosen: list[str], scale: float = 1.0) -> dict[str, Any]:
    """Settings of some controls, strengths times a number."""
    return {
        f"{name}.{key}": value * scale if key == STRENGTH.get(name, "strength") else value
        for name in chosen
        for key, value in ON[name].items()
    }


def test_every_control_alone_changes_texts_and_strength_0_does_not(
    model: Any, tokenizer: Any, all_controls: dict[str, Control]
) -> None:
    bare = model.generate(**tokenizer(PROMPTS[0], return_tensors="pt", return_token_type_ids=False),
                          max_new_tokens=6, do_sample=False, pad_token_id=0, output_scores=True,
                          return_dict_in_generate=True)  # fmt: skip
    for name, control in all_controls.items():
        steered = Steered(model, [control], tokenizer=tokenizer)
        options = {"max_new_tokens": 6, "output_scores": True, "return_dict_in_generate": True}
        on = steered.generate(PROMPTS[0], flat([name]), **options)
        off = steered.generate(PROMPTS[0], flat([name], 0.0), **options)
        assert all(torch.equal(a, b) for a, b in zip(off.scores, bare.scores, strict=True)), name
        assert not torch.allclose(on.scores[0], bare.scores[0], atol=1e-3), name
        # a row that is off beside one that is on
        strength = f"{name}.{STRENGTH.get(name, 'strength')}"
        mixed = steered.generate([PROMPTS[0]] * 2, {**flat([name]), strength: [0, flat([name])[strength]]}, **options)
        both = steered.generate([PROMPTS[0]] * 2, flat([name], 0.0), **options)
        assert all(torch.equal(a[0], b[0]) for a, b in zip(mixed.scores, both.scores, strict=False)), name
        assert torch.allclose(mixed.scores[0][1], on.scores[0][0], atol=1e-4), name


def test_all_together_alone_and_in_a_batch_cached_and_not(
    model: Any, tokenizer: Any, all_controls: dict[str, Control]
) -> None:
    steered = Steered(model, list(all_controls.values()), tokenizer=tokenizer)
    chosen = [name for name in all_controls if name != "grammar"]
    settings = {**flat(chosen), "grammar.strength": 0, "idea_gate.alpha": [0, 1, 2, 3]}
    expected = []
    for row, prompt in enumerate(PROMPTS):
        own = {**settings, "idea_gate.alpha": row}
        expected.append(slow(steered, prompt, own, 7))
    for cached in (True, False):
        made = steered.generate(list(PROMPTS), settings, max_new_tokens=7, use_cache=cached)
        longest = max(len(tokenizer(prompt).input_ids) for prompt in PROMPTS)
        for row, (ids, prompt) in enumerate(zip(expected, PROMPTS, strict=True)):
            new = ids[len(tokenizer(prompt).input_ids) :]
            assert made[row, longest : longest + len(new)].tolist() == new, (cached, prompt)


def test_beams_and_sequences_take_their_prompt_s_settings(
    model: Any, tokenizer: Any, all_controls: dict[str, Control]
) -> None:
    chosen = ["idea_gate", "graphmax", "micro_models", "lexicon", "feature_channel", "neuron_codes", "memory",
              "token_bias", "experts", "generative_classifier", "future", "gradient",
              "activation_vector", "lora"]  # fmt: skip
    steered = Steered(model, [all_controls[name] for name in chosen], tokenizer=tokenizer)
    settings = {**flat(chosen), "idea_gate.alpha": [0, 2], "lexicon.to_polarity": [1, -1]}
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 5, "length_penalty": 0.0}
    together = steered.write(list(PROMPTS[:2]), settings, **options)
    for row in range(2):
        own = {**settings, "idea_gate.alpha": [0, 2][row], "lexicon.to_polarity": [1, -1][row]}
        assert steered.write(PROMPTS[row], own, **options) == together[3 * row : 3 * row + 3]
    drawn = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 5, "seed": 4}
    together = steered.write(list(PROMPTS[:2]), settings, **drawn)
    alone = steered.write(
        PROMPTS[1], {**settings, "idea_gate.alpha": 2, "lexicon.to_polarity": -1}, rows=[2, 3], **drawn
    )
    assert together[2:] == alone


@pytest.mark.parametrize(
    "option", [{"no_repeat_ngram_size": 1}, {"repetition_penalty": 1.3}, {"renormalize_logits": True}]
)
def test_a_row_without_control_has_the_bare_model_s_beams(
    model: Any, tokenizer: Any, all_controls: dict[str, Control], option: dict[str, Any]
) -> None:
    """Beside one under a control: what ``generate`` itself forbids leaves other sums of log-probabilities."""
    steered = Steered(model, [all_controls["token_bias"]], tokenizer=tokenizer)
    prompts = [[2, 5], [2, 9], [3, 1], [7, 7]]
    options = {"num_beams": 3, "max_new_tokens": 6, "pad_token_id": 0, **option}
    made = steered.generate(prompts * 2, {"token_bias.to_good": [3, 3, 3, 3, 0, 0, 0, 0]}, **options)
    bare = model.generate(torch.tensor(prompts), attention_mask=torch.ones(4, 2, dtype=torch.long), **options)
    width = bare.shape[1]
    assert torch.equal(made[4:, :width], bare) and not torch.equal(made[:4, :width], bare)


def test_a_prompt_and_its_text_read_as_one(model: Any, tokenizer: Any) -> None:
    """Also behind padding; a tokenizer of whole words writes no space before the first of a text."""
    steered = Steered(model, [], tokenizer=tokenizer)
    ids = steered.generate(list(PROMPTS), max_new_tokens=4)
    whole = [tokenizer.decode(row, skip_special_tokens=True).split() for row in ids]
    for prompt, text, words in zip(PROMPTS, steered.write(list(PROMPTS), max_new_tokens=4), whole, strict=True):
        assert (prompt + text).split() == words[-len((prompt + text).split()) :] and text[0] == " "
        assert len((prompt + text).split()) == len(prompt.split()) + 4


def test_static_cache_and_streaming(model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    chosen = ["idea_gate", "feature_channel", "neuron_codes", "graphmax", "lora"]
    steered = Steered(model, [all_controls[name] for name in chosen], tokenizer=tokenizer)
    expected = steered.generate(list(PROMPTS), flat(chosen), max_new_tokens=5)
    static = steered.generate(list(PROMPTS), flat(chosen), max_new_tokens=5, cache_implementation="static")
    assert torch.equal(static, expected)

    class Streamer(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.ids += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer = Streamer()
    made = steered.generate(PROMPTS[0], flat(chosen), max_new_tokens=5, streamer=streamer)
    assert streamer.ids == made[0].tolist() and streamer.ended


def test_controls_act_by_stage(model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    given = [
        all_controls[name] for name in ("grammar", "micro_models", "graphmax", "lexicon", "idea_gate", "neuron_codes")
    ]
    for order in itertools.islice(itertools.permutations(given), 0, 720, 97):
        stages = [control.stage for control in Steered(model, order, tokenizer=tokenizer).controls]
        assert stages == sorted(stages) and stages[0] is Stage.NETWORK and stages[-1] is Stage.MASK
    assert [c.name for c in Steered(model, [given[3], given[4]], tokenizer=tokenizer).controls] == [
        "lexicon",
        "idea_gate",
    ]
    forward = Steered(model, given, tokenizer=tokenizer)
    backward = Steered(model, given[::-1], tokenizer=tokenizer)
    settings = {**flat(["micro_models", "graphmax", "neuron_codes"]), "idea_gate.alpha": 0, "lexicon.strength": 0}
    one, other = (s.generate(PROMPTS[0], settings, max_new_tokens=5) for s in (forward, backward))
    assert torch.equal(one, other)


def test_the_grammar_is_kept(model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    steered = Steered(model, [all_controls["grammar"], all_controls["lexicon"]], tokenizer=tokenizer)
    texts = steered.write(
        ["the war", "<end> a"], flat(["grammar", "lexicon"]), max_new_tokens=8, do_sample=True, seed=0
    )
    assert texts[0].split()[0] in ("began", ".") and "1939" not in " ".join(texts)
    with pytest.raises(UserError, match="does not fit the grammar"):
        steered.write("1939", flat(["grammar"]), max_new_tokens=2)


def test_a_soft_prompt_equals_embeddings_in_front(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(2)
    soft = SoftPrompt(["news", "blog"], 5 * torch.randn(2, 3, D))
    steered = Steered(model, [soft], tokenizer=tokenizer)
    settings = {"soft_prompt.news": [1, 1], "soft_prompt.blog": [0, 3]}
    told = {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
    made = steered.generate(list(PROMPTS[:2]), settings, **told)
    longest = len(tokenizer(PROMPTS[0]).input_ids)
    assert made.sequences.shape[1] == longest + 6
    assert torch.equal(steered.generate(list(PROMPTS[:2]), settings, max_new_tokens=6), made.sequences)
    for row, shares in enumerate(([1.0, 0.0], [0.25, 0.75])):
        ids = tokenizer(PROMPTS[row]).input_ids
        front = torch.einsum("s,spd->pd", torch.tensor(shares), soft.prompts_SPD)
        for place in range(6):
            embedded = torch.cat([front, model.get_input_embeddings()(torch.tensor(ids))]).unsqueeze(0)
            with torch.no_grad():
                scores = model(inputs_embeds=embedded).logits[0, -1]
            torch.testing.assert_close(made.logits[place][row], scores, atol=1e-3, rtol=1e-4)
            ids.append(int(scores.argmax()))
            assert made.sequences[row, longest + place] == ids[-1]
    with pytest.raises(UserError, match="66 tokens together, the model has 64 positions"):
        steered.generate([[1] * 60], {"soft_prompt.news": 1}, max_new_tokens=3)
    with pytest.raises(UserError, match="all have a code in front or none"):
        steered.generate(list(PROMPTS[:2]), {"soft_prompt.news": [1, 0]}, max_new_tokens=2)
    with pytest.raises(UserError, match="needs places before the prompts"), soft.attach(model, {"news": 1}):
        pass
    bare = Steered(model, [], tokenizer=tokenizer).generate(PROMPTS[0], max_new_tokens=4)
    assert torch.equal(steered.generate(PROMPTS[0], max_new_tokens=4), bare)


def test_a_generation_config_says_the_same_as_single_options(
    model: Any, tokenizer: Any, all_controls: dict[str, Control]
) -> None:
    steered = Steered(model, [all_controls["idea_gate"]], tokenizer=tokenizer)
    chosen: dict[str, Any] = {"max_new_tokens": 5, "do_sample": True, "top_k": 3, "num_return_sequences": 2}
    config = transformers.GenerationConfig(**chosen)
    settings = {"idea_gate.alpha": [0, 2]}
    made = steered.write(list(PROMPTS[:2]), settings, seed=3, generation_config=config)
    assert made == steered.write(list(PROMPTS[:2]), settings, seed=3, **chosen) and config.pad_token_id is None
    assert steered._options({"stop_strings": ["."]})["tokenizer"] is tokenizer


def test_without_sampling_nothing_is_drawn(model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    steered = Steered(model, [all_controls["idea_gate"]], tokenizer=tokenizer)
    greedy = steered.write(list(PROMPTS), max_new_tokens=6)
    assert all(steered.write(list(PROMPTS), max_new_tokens=6, seed=seed) == greedy for seed in range(3))


def test_controls_that_exclude_each_other(model: Any, all_controls: dict[str, Control], carried_controls: Any) -> None:
    with pytest.raises(UserError, match="two controls are called 'idea_gate'"):
        Steered(model, [all_controls["idea_gate"]] * 2)
    again = carried_controls()["graphmax"]
    again.name = "other"
    with pytest.raises(UserError, match=r"other \(graphmax\) cannot be composed with a second one"):
        Steered(model, [all_controls["graphmax"], again])


class Only(Control):
    """Allows, at every place after the prompt, the tokens of a list."""

    kind, stage = "only", Stage.MASK

    def __init__(self, start: int, allowed: list[list[int]], name: str) -> None:
        super().__init__(name=name)
        self.start, self.allowed = start, allowed

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (ControlSetting("strength", "1: as listed", 1.0, low=0.0),)

    def rule(self, values: Any, prefix: Any) -> Any:
        def keep(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            kept_V = torch.full((V,), -torch.inf)
            kept_V[self.allowed[min(input_ids.shape[1] - self.start, len(self.allowed) - 1)]] = 0.0
            return scores + kept_V

        return keep


@pytest.mark.parametrize("beams", [1, 3])
def test_beams_end_in_the_same_line_where_no_token_is_left(model: Any, tokenizer: Any, beams: int) -> None:
    one, other = Only(1, [[4, 5], [6], [7, 8]], "one"), Only(1, [[4], [6], [9]], "other")
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    with pytest.raises(UserError, match="row 0 has no token after 2 new ones: the controls exclude each other"):
        Steered(model, [one, other], tokenizer=tokenizer).generate([[2], [3]], **options)
    # fewer tokens than beams, and then an end that all must take, are no fault
    ending = Only(1, [[4, 5], [6], [0]], "ending")
    found = Steered(model, [ending], tokenizer=tokenizer).generate([[2], [3]], **options)
    assert found[:, 1:].tolist() in ([[4, 6, 0], [5, 6, 0]], [[a, 6, 0] for a in found[:, 1].tolist()])
    several = Steered(model, [ending], tokenizer=tokenizer).generate(
        [[2]], **options, num_return_sequences=min(beams, 2)
    )
    assert sorted(several[:, 1].tolist()) == [4, 5][: len(several)] or beams == 1
    assert several[:, 2:4].tolist() == [[6, 0]] * len(several)


def test_a_prompt_goes_on_where_a_tokenizer_would_end_it(model: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    plain, ending = make_tokenizer(), make_tokenizer()
    ending.backend_tokenizer.post_processor = TemplateProcessing(single="<end> $A <end>", special_tokens=[("<end>", 0)])
    assert ending("the war").input_ids == [0, *plain("the war").input_ids, 0]
    steered = Steered(model, [], tokenizer=ending)
    assert steered.prompt_ids("the war") == [0, *plain("the war").input_ids]
    assert steered.prompt_ids("the war <end>") == [0, *plain("the war").input_ids, 0], "the prompt's own end stays"
    assert steered.prompt_ids("") == [0]


def test_a_word_that_a_tokenizer_refuses_is_named(model: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    engine = Tokenizer(models.WordLevel({"the": 1, "war": 2, "<s>": 3}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    strict = transformers.PreTrainedTokenizerFast(tokenizer_object=engine)
    with pytest.raises(UserError, match=r"prompt 'the peace war': the tokenizer refuses it .* it does not know peace"):
        Steered(model, [], tokenizer=strict).prompt_ids("the peace war")
    assert Steered(model, [], tokenizer=strict).prompt_ids("the war") == [1, 2]
    engine.post_processor = TemplateProcessing(single="<s> $A war", special_tokens=[("<s>", 3), ("war", 2)])
    strict = transformers.PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="war", bos_token="<s>")
    assert Steered(model, [], tokenizer=strict).prompt_ids("the") == [3, 1]


def test_what_follows_an_end_is_the_model_s_padding(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.generation_config, "pad_token_id", 9)

    class Either(Only):
        def rule(self, values: Any, prefix: Any) -> Any:
            return lambda _, scores: torch.full((2, V), -torch.inf).index_put_(
                (torch.arange(2), torch.tensor([0, 4])), torch.tensor(0.0)
            )

    made = Steered(model, [Either(1, [], "either")], tokenizer=tokenizer).generate([[2], [3]], max_new_tokens=4)
    assert made[:, 1:].tolist() == [[0, 9, 9, 9], [4, 4, 4, 4]]


class Stub(Control):
    """Does nothing; of any kind, for a model of any width."""

    stage, settings = Stage.LOGITS, ()

    def __init__(self, kind: str, *, excludes: str = "", size: int = V) -> None:
        self.kind, self.excludes, self.size = kind, frozenset({excludes}), size  # type: ignore[misc]
        super().__init__()

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.size}

    def bind(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


def test_controls_meet_model_tokenizer_and_each_other(model: Any, tokenizer: Any) -> None:
    control = Stub("one")
    Steered(model, [control], tokenizer=tokenizer)
    assert control.tokenizer is tokenizer
    with pytest.raises(UserError, match=r"fits a model with vocab_size=15, this one has 14"):
        Steered(model, [Stub("one", size=V + 1)])
    for order in (1, -1):
        with pytest.raises(UserError, match="cannot be composed with"):
            Steered(model, [Stub("one", excludes="two"), Stub("two")][::order])


def only(*ids: int) -> Any:
    """A rule under which some tokens are equally likely and the others never drawn."""
    return lambda _, scores: torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor(ids), 0.0)


def test_draws_are_functions_of_seed_row_and_place(model: Any) -> None:
    steered, options = Steered(model, []), {"do_sample": True, "max_new_tokens": 12, "logits_processor": [only(2, 3)]}
    prompts = [[1], [1]]
    drawn = steered.generate(prompts, seed=0, **options)
    assert torch.equal(drawn, steered.generate(prompts, seed=0, **options)), "0 is a seed"
    assert all(len(set(row)) == 2 for row in drawn[:, 1:].tolist()) and not torch.equal(*drawn)
    assert torch.equal(drawn[:, 1:], torch.where(row_noise(0, [0, 1], 12) < 0.5, 2, 3)), "as our own decoding draws"
    assert torch.equal(steered.generate([[1]], seed=0, rows=[1], **options)[0], drawn[1])
    with torch.random.fork_rng():
        unseeded = [torch.manual_seed(1) and steered.generate(prompts, **options) for _ in range(2)]
    assert torch.equal(*unseeded), "without a seed torch's own generator draws"
    with pytest.raises(UserError, match="3 row numbers for 2 sequences"):
        steered.generate(prompts, seed=0, rows=[0, 1, 2], **options)


def test_scores_of_draws_are_kept_only_where_they_are_asked_for(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inner = list[Any](), steering._Drawn
    monkeypatch.setattr(steering, "_Drawn", lambda *given: made.append(inner(*given)) or made[-1])
    steered = Steered(model, [], tokenizer=tokenizer)
    options = {"max_new_tokens": 3, "do_sample": True, "seed": 0}
    whole = steered.generate(PROMPTS[0], **options, output_scores=True, return_dict_in_generate=True)
    assert torch.equal(whole.sequences, steered.generate(PROMPTS[0], **options)) and len(whole.scores) == 3
    assert [len(each.before) for each in made] == [3, 0]


def test_padding_is_told_to_model_and_reader(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = make_tokenizer()
    words.pad_token = "."
    pad, prompts = words.pad_token_id, [[3], [4, 5, 6]]
    assert pad != words.eos_token_id
    steered, told = Steered(model, [], tokenizer=words), {"output_logits": True, "return_dict_in_generate": True}
    together = steered.generate(prompts, max_new_tokens=2, **told)
    alone = steered.generate(prompts[:1], max_new_tokens=2, **told)
    torch.testing.assert_close(together.logits[0][0], alone.logits[0][0], atol=1e-4, rtol=1e-4)
    assert together.sequences[0, :2].tolist() == [pad, pad]
    # a row that has ended is padded too, and neither end nor padding is text
    first, other = together.sequences[:, 3].tolist()
    assert first != other
    assert steered.generate(prompts, max_new_tokens=2, eos_token_id=first)[0, 3:].tolist() == [first, pad]
    assert steered.write(prompts, max_new_tokens=2, logits_processor=[only(words.eos_token_id)]) == ["", ""]
    # several ends are no padding
    monkeypatch.setattr(model.generation_config, "eos_token_id", [5, 6])
    assert Steered(model, []).generate(prompts, max_new_tokens=1)[0, :2].tolist() == [0, 0]


def test_an_empty_prompt_begins_with_the_start_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = make_tokenizer()
    words.bos_token = "war"
    monkeypatch.setattr(model.config, "bos_token_id", 3)
    assert Steered(model, [], tokenizer=words).prompt_ids("") == [words.bos_token_id] != [3]
    assert Steered(model, []).prompt_ids([]) == [3]
    monkeypatch.setattr(model.config, "bos_token_id", None)
    with pytest.raises(UserError, match="no token to begin with"):
        Steered(model, []).prompt_ids([])


def test_the_last_token_needs_no_position(model: Any) -> None:
    steered, prompt = Steered(model, []), [[1] * 63]
    assert steered.generate(prompt, max_new_tokens=2, guidance_scale=1.0).shape == (1, 65)
    assert steered.generate(prompt, max_length=65).shape == (1, 65)
    with pytest.raises(UserError, match="66 tokens together, the model has 64 positions"):
        steered.generate(prompt, max_new_tokens=3)


def writes(seed: int, model: Any, tokenizer: Any, made: dict[str, Control]) -> bool:
    """Try some controls with random settings a row, and some options: greedy rows equal the slow reference.

    Return False where the combination is refused, which it must be together and alone.
    """
    draw = random.Random(seed)
    chosen = draw.sample(sorted(made), draw.randint(1, len(made)))
    prompts = draw.sample(PROMPTS, draw.randint(1, len(PROMPTS)))
    steered = Steered(model, [made[name] for name in chosen], tokenizer=tokenizer)
    settings: dict[str, list[float]] = {}
    for name in chosen:
        for key, value in ON[name].items():
            scales = [draw.choice([0.0, 0.3, 1.0]) for _ in prompts]
            most = next(s.high for s in made[name].settings if s.name == key)
            settings[f"{name}.{key}"] = [min(value * scale, most) for scale in scales]
    options: dict[str, Any] = {"max_new_tokens": draw.randint(1, 6), "use_cache": draw.random() < 0.7}
    options |= draw.choice(
        [{}, {}, {"num_beams": 2}, {"do_sample": True, "seed": 7}, {"num_beams": 2, "num_return_sequences": 2}]
    )
    if draw.random() < 0.2:
        options |= {"cache_implementation": "static", "use_cache": True}

    def run(rows: list[int]) -> list[str] | str:
        own = {key: [values[row] for row in rows] for key, values in settings.items()}
        numbers = {"rows": rows} if "seed" in options else {}
        try:
            return steered.write([prompts[row] for row in rows], own, **options, **numbers)
        except UserError as error:
            assert "\n" not in str(error)
            return str(error)

    together = run(list(range(len(prompts))))
    alone = [run([row]) for row in range(len(prompts))]
    if isinstance(together, str) or any(isinstance(one, str) for one in alone):
        assert isinstance(together, str) and any(isinstance(one, str) for one in alone), (seed, together, alone)
        assert "does not fit the grammar" in together
        return False
    assert together == [text for one in alone for text in one], (seed, chosen, options)
    if not {"num_beams", "do_sample"} & set(options):
        for row, prompt in enumerate(prompts):
            own = {key: values[row] for key, values in settings.items()}
            ids = slow(steered, prompt, own, options["max_new_tokens"])
            new = tokenizer.decode(ids[len(tokenizer(prompt).input_ids) :], skip_special_tokens=True)
            assert together[row].lstrip() == new, (seed, chosen, options)
    return True


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 220), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_random_combinations(seeds: range, model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    written = [writes(seed, model, tokenizer, all_controls) for seed in seeds]
    assert sum(written) > len(written) / 2, "most are refused, so little is compared"


IDS = torch.ones(1, 2).long()
OTHER = transformers.GenerationConfig(penalty_alpha=0.6, top_k=4)
BAD: list[dict[str, Any]] = [
    *({name: 2} for name in ("prompt_lookup_num_tokens", "guidance_scale", "penalty_alpha", "prefill_chunk_size")),
    *({"assistant_early_exit": 1}, {"use_mtp": True}, {"token_healing": True}, {"cache_implementation": "paged"}),
    *({"attention_mask": IDS}, {"max_new_tokens": 100}, {"max_new_tokens": None, "max_length": 100}),
    *({"seed": 1, "num_beams": 2}, {"seed": -1}, {"seed": "x"}, {"generation_config": {}}),
    *({"rows": value, "seed": 0} for value in ([-1], 1, [0.5])),
    *({"max_new_tokens": value} for value in ("5", 0)),
    *({"num_return_sequences": 0}, {"num_beams": True}, {"top_p": 2}, {"top_k": 10**400}, {"max_time": 0}),
    *({"temperature": float("inf")}, {"no_repeat_ngram_size": 10**9}, {"epsilon_cutoff": 1}, {"use_cache": 7}),
    *({"logits_processor": len}, {"logits_processor": ["x"]}, {"stopping_criteria": 1}, {"streamer": "x"}),
    *({"pad_token_id": -5}, {"eos_token_id": [0, 20]}, {"forced_eos_token_id": 99}, {"suppress_tokens": [True]}),
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_an_option_that_cannot_be_followed_is_named(
    model: Any, tokenizer: Any, all_controls: dict[str, Control], options: dict[str, Any]
) -> None:
    steered = Steered(model, [all_controls["idea_gate"]], tokenizer=tokenizer)
    (name,) = list(options)[:1] if len(options) == 1 else [key for key in options if key != "max_new_tokens"][:1]
    with pytest.raises(UserError, match=name.removesuffix("max_new_tokens")) as caught:
        steered.generate(PROMPTS[0], do_sample=True, **{"max_new_tokens": 2, **options})
    assert "\n" not in str(caught.value)
    assert not model.transformer._forward_hooks and "prepare_inputs_for_generation" not in model.__dict__


def test_what_the_model_itself_asks_for_cannot_be_followed_either(
    model: Any, tokenizer: Any, all_controls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steered = Steered(model, [all_controls["idea_gate"]], tokenizer=tokenizer)
    with pytest.raises(UserError, match="penalty_alpha"):
        steered.generate(PROMPTS[0], generation_config=OTHER)
    for name, value in (("prefill_chunk_size", 2), ("penalty_alpha", 0.6), ("num_beams", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(model.generation_config, name, value, raising=False)
            with pytest.raises(UserError, match="beams" if name == "num_beams" else rf"{name}.*generation_config"):
                steered.generate(PROMPTS[0], max_new_tokens=2, do_sample=True, seed=0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gate.alpha": 1}, "'gate'; did you mean 'idea_gate'"),
        ({"idea_gate": 1}, r"idea_gate\.<setting>"),
        ({"idea_gate.alfa": 1}, "did you mean 'alpha'"),
        ({"idea_gate.alpha": [1, 2]}, r"idea_gate\.alpha"),
        (["alpha"], "settings"),
    ],
)
def test_settings_name_a_control(model: Any, all_controls: dict[str, Control], settings: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        Steered(model, [all_controls["idea_gate"]]).generate(IDS, settings, max_new_tokens=1)


@pytest.mark.parametrize(
    "prompts",
    [
        [], torch.zeros(2, 0).long(), None, [1, 2], [[1.5]], torch.ones(1, 2), [[1, 14]], "the war", {"ids": IDS},
        {"input_ids": "war"}, {"input_ids": [1, 2], "attention_mask": [1]},
        *({"input_ids": IDS, "attention_mask": torch.tensor(mask)} for mask in ([[1, 0]], [[1]], [1, 1])),
    ],
    ids=str,
)  # fmt: skip
def test_prompts_that_cannot_be_continued(model: Any, prompts: Any) -> None:
    with pytest.raises(UserError) as caught:
        Steered(model, []).generate(prompts, max_new_tokens=2)
    assert "\n" not in str(caught.value)


def test_controls_and_tokenizer_are_what_they_should_be(model: Any) -> None:
    for controls in (["gate"], None):
        with pytest.raises(UserError, match="controls"):
            Steered(model, controls)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="tokenizer"):
        Steered(model, [], tokenizer="gpt2")


# chat ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talking(tokenizer: Any) -> Any:
    """The tokenizer with a template of words."""
    found = copy.deepcopy(tokenizer)
    found.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return found


def states(steered: Steered, settings: dict[str, Any]) -> torch.Tensor:
    """Return the last hidden states of the prompt in a chat."""
    kept: list[torch.Tensor] = []
    handle = steered.model.transformer.register_forward_hook(lambda _m, _i, output: kept.append(output[0].clone()))
    try:
        steered.chat("a good acid war", settings, max_new_tokens=2, do_sample=False)
    finally:
        handle.remove()
    return kept[0]


@pytest.mark.parametrize("name", ["feature_channel", "neuron_codes", "lora"])
def test_controls_of_the_network_act_from_the_reply_on(
    name: str, model: Any, talking: Any, all_controls: dict[str, Control]
) -> None:
    bare = states(Steered(model, [], tokenizer=talking), {})
    on = states(Steered(model, [all_controls[name]], tokenizer=talking), flat([name]))
    assert torch.equal(on[0, :-1], bare[0, :-1]) and not torch.equal(on[0, -1], bare[0, -1])


def test_rules_read_the_reply_only(model: Any, talking: Any, all_controls: dict[str, Control], monkeypatch) -> None:
    steered = Steered(model, [all_controls["memory"]], tokenizer=talking)
    seen: list[torch.Tensor] = []
    rule = type(all_controls["memory"]).rule

    def noted(self: Any, values: Any, prefix: Any) -> Any:
        inner = rule(self, values, prefix)
        return lambda ids, scores: (seen.append(ids.clone()), inner(ids, scores))[1]

    monkeypatch.setattr(type(all_controls["memory"]), "rule", noted)
    talk = [[{"role": "user", "content": text}] for text in ("a good acid", "in")]
    replies = steered.chat(talk, flat(["memory"]), max_new_tokens=3, do_sample=False)
    start = steered.prompt_ids("")[0]
    assert len(replies) == 2 and all(ids[:, 2].tolist() == [start] * 2 and bool((ids[:, :2] < 0).all()) for ids in seen)
    assert seen[-1].shape == (2, 5)


def test_a_grammar_begins_with_the_reply(model: Any, talking: Any, all_controls: dict[str, Control]) -> None:
    steered = Steered(model, [all_controls["grammar"]], tokenizer=talking)
    with pytest.raises(UserError, match="prompt"):
        steered.write("war war war", {"grammar.strength": 1}, max_new_tokens=4, do_sample=False)
    reply = steered.chat("war war war", {"grammar.strength": 1}, max_new_tokens=4, do_sample=False)[0]
    steered.check(reply.strip(), {"grammar.strength": 1})
    assert steered.write(reply.strip(), {"grammar.strength": 1}, max_new_tokens=1, do_sample=False), (
        "it is in the grammar"
    )


def test_every_control_at_strength_0_leaves_a_chat_as_it_is(
    model: Any, talking: Any, all_controls: dict[str, Control]
) -> None:
    options = {"max_new_tokens": 5, "do_sample": True, "seed": 1}
    bare = Steered(model, [], tokenizer=talking).chat("the war", **options)
    steered = Steered(model, list(all_controls.values()), tokenizer=talking)
    assert steered.chat("the war", flat(list(ON), 0.0), **options) == bare


# strength by divergence -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token_bias", "gradient", "activation_vector"])
def test_strength_for_reaches_the_nats_that_are_asked_for(
    model: Any, tokenizer: Any, all_controls: dict[str, Control], name: str
) -> None:
    texts = ["the war began in 1914", "a good acid", "in 1918 the"]
    steered = Steered(model, [all_controls[name]], tokenizer=tokenizer)
    on = {f"{name}.to_good": 1}
    strength = steered.strength_for(name, nats=0.3, texts=texts, settings=on)
    found = steered.divergence(texts, {**on, f"{name}.strength": strength}, {f"{name}.strength": 0})
    assert found == pytest.approx(0.3, rel=0.02)
    # KL(controlled || bare), a prefix at a time
    total, count = 0.0, 0
    for text in texts:
        ids = tokenizer(text).input_ids
        for end in range((len(ids) + 1) // 2, len(ids) + 1):
            both = []
            for value in (strength, 0):
                made = steered.generate(
                    [ids[:end]], {**on, f"{name}.strength": value}, max_new_tokens=1, output_scores=True,
                    return_dict_in_generate=True, do_sample=False,
                )  # fmt: skip
                both.append(made.scores[0][0].double().log_softmax(-1))
            total, count = total + float((both[0].exp() * (both[0] - both[1])).sum()), count + 1
    assert total / count == pytest.approx(0.3, rel=0.03)


def test_strength_for_says_what_is_not_reached(model: Any, tokenizer: Any, all_controls: dict[str, Control]) -> None:
    steered = Steered(model, [all_controls["token_bias"], all_controls["grammar"]], tokenizer=tokenizer)
    for name, nats, named in (("token_bias", 1.0, "token_bias"), ("grammar", 1e-4, "grammar"), ("x", 1, "x"),
                              ("grammar", -1, "nats")):  # fmt: skip
        with pytest.raises(UserError, match=named):
            steered.strength_for(name, nats=nats, texts=["the war began"])
