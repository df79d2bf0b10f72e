"""Controls on models of other kinds, precisions and tokenizers than the one they were last used with."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.control import Control, Steered
from lit_ctg.control.base import PREPARE
from lit_ctg.control.bundle import load
from lit_ctg.control.class_models import Experts
from lit_ctg.control.guidance import Guidance
from lit_ctg.control.steered import _Possible
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.control import NeuronCodes, SoftPrompt
from tests.conftest import WORDS, make_model, make_tokenizer
from tests.control.test_steered import flat

V, D = len(WORDS), 16
PROMPTS = ("the war began in 1914", "a good acid", "in")


@pytest.fixture()
def controls(carried_controls: Any) -> dict[str, Control]:
    return carried_controls()


def opt() -> Any:
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=V, hidden_size=D, word_embed_proj_dim=D, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config).eval()


def mamba() -> Any:
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        vocab_size=V, hidden_size=D, state_size=4, num_hidden_layers=2, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    model = transformers.MambaForCausalLM(config).eval()
    with torch.no_grad():
        model.backbone.embeddings.weight.mul_(8)
    return model


def scores(steered: Steered, prompts: Any, settings: dict[str, Any], **options: Any) -> torch.Tensor:
    """Return the scores of the first new token, [B, V]."""
    made = steered.generate(
        prompts,
        settings,
        max_new_tokens=1,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    return made.scores[0].float()


def test_the_gate_reads_the_states_of_the_model_it_steers(controls: dict[str, Control], tokenizer: Any) -> None:
    """OPT's base model is never called as a module; states of another model must not stand in for its own."""
    gate, settings = controls["idea_gate"], {"idea_gate.alpha": 1.5}
    steered = Steered(opt(), [gate], tokenizer=tokenizer)
    first = scores(steered, PROMPTS, settings)
    for row, prompt in enumerate(PROMPTS):
        assert torch.allclose(first[row], scores(steered, prompt, settings)[0], atol=1e-5)
    assert not torch.allclose(first, scores(steered, PROMPTS, {"idea_gate.alpha": 0.0}))
    scores(Steered(make_model(V), [gate], tokenizer=tokenizer), PROMPTS, settings)
    assert torch.equal(scores(steered, PROMPTS, settings), first)


@pytest.mark.parametrize("name", ["idea_gate", "feature_channel"])
def test_a_model_in_half_precision_leaves_a_control_as_it_was(
    name: str, controls: dict[str, Control], tokenizer: Any
) -> None:
    control = controls[name]
    settings = {f"{name}.alpha": 1.5} if name == "idea_gate" else {"feature_channel.pos": 1}
    steered = Steered(make_model(V), [control], tokenizer=tokenizer)
    before, first = copy.deepcopy(control.tensors()), scores(steered, PROMPTS, settings)
    scores(Steered(make_model(V).to(torch.bfloat16), [control], tokenizer=tokenizer), PROMPTS, settings)
    assert all(torch.equal(value, before[key]) for key, value in control.tensors().items())
    assert torch.equal(scores(steered, PROMPTS, settings), first)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lexicon", {"strength": 8, "to_polarity": -1}),
        ("micro_models", {"strength": 1}),
        ("grammar", {"strength": 1}),
        ("feature_channel", {"strength": 1, "pos": 1}),
    ],
)
def test_a_control_used_with_two_tokenizers_follows_the_one_in_use(
    name: str, settings: dict[str, Any], controls: dict[str, Control], tokenizer: Any
) -> None:
    """The other one has the same words under other ids."""
    given = {f"{name}.{key}": value for key, value in settings.items()}
    prompts = ["the war began in"] if name == "grammar" else PROMPTS
    first = Steered(make_model(V), [controls[name]], tokenizer=tokenizer)
    alone = scores(first, prompts, given)
    other = make_tokenizer([*WORDS[:1], *reversed(WORDS[1:])])
    Steered(make_model(V), [controls[name]], tokenizer=other)
    assert torch.equal(scores(first, prompts, given), alone)


def test_padding_without_a_mask_is_what_the_model_takes_it_for(controls: dict[str, Control]) -> None:
    model, ids_BT = make_model(V), torch.tensor([[5, 5, 1, 2], [3, 4, 6, 7]])
    model.generation_config.pad_token_id = 5
    options: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "output_scores": True,
                               "return_dict_in_generate": True}  # fmt: skip
    bare = model.generate(ids_BT, **options)
    steered = Steered(model, [controls["token_bias"]])
    for prompts in (ids_BT, {"input_ids": ids_BT}):
        made = steered.generate(prompts, {"token_bias.strength": 0}, **options)
        assert torch.equal(made.scores[0], bare.scores[0])
    whole = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
    assert not torch.allclose(steered.generate(whole, **options).scores[0][0], bare.scores[0][0])
    own = steered.generate(ids_BT, {"token_bias.strength": 0}, pad_token_id=0, **options)
    assert not torch.allclose(own.scores[0][0], bare.scores[0][0]), "5 is a token like any other"
    # the caller's own configuration and end token count as they do there
    model.generation_config.pad_token_id = None
    config = transformers.GenerationConfig(pad_token_id=5, **options)
    made = steered.generate(ids_BT, {"token_bias.strength": 0}, generation_config=config)
    assert torch.equal(made.scores[0], bare.scores[0])
    ended = {"pad_token_id": 5, "eos_token_id": 5, **options}
    made = steered.generate(ids_BT, {"token_bias.strength": 0}, **ended)
    assert torch.equal(made.scores[0], model.generate(ids_BT, **ended).scores[0])
    assert not torch.allclose(made.scores[0][0], bare.scores[0][0])


def test_a_tokenizers_own_lists_are_prompts(model: Any) -> None:
    tokenizer = make_tokenizer()
    tokenizer.pad_token = "<end>"
    steered = Steered(model, [], tokenizer=tokenizer)
    texts = steered.generate(list(PROMPTS), max_new_tokens=3, do_sample=False)
    lists = tokenizer(list(PROMPTS))
    padded = tokenizer(list(PROMPTS), padding=True)
    for prompts in (lists, padded, {"input_ids": lists["input_ids"]}):
        assert torch.equal(steered.generate(prompts, max_new_tokens=3, do_sample=False), texts)
    for alone in (tokenizer(PROMPTS[0]), tokenizer(PROMPTS[0], return_tensors="np")):
        made = steered.generate(alone, max_new_tokens=3, do_sample=False)
        assert torch.equal(made, steered.generate(PROMPTS[0], max_new_tokens=3, do_sample=False))
    given = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "attention_mask": [[0, 1], [1, 1]]}
    masked = given | {"attention_mask": torch.tensor(given["attention_mask"])}
    both = (steered.generate(each, max_new_tokens=2, do_sample=False) for each in (given, masked))
    assert torch.equal(*both)


def test_codes_on_a_recurrent_model_leave_padding_alone(tokenizer: Any) -> None:
    model, layer = mamba(), "backbone.layers.0.mixer.in_proj"
    torch.manual_seed(1)
    codes = NeuronCodes(["news"], torch.randn(1, 4), {layer: torch.randn(64, 4)})
    steered, settings = Steered(model, [codes], tokenizer=tokenizer), {"neuron_codes.news": 1}
    together = scores(steered, PROMPTS, settings)
    assert not torch.allclose(together, scores(steered, PROMPTS, {"neuron_codes.strength": 0}), atol=1e-2)
    for row, prompt in enumerate(PROMPTS):
        assert torch.allclose(together[row], scores(steered, prompt, settings)[0], atol=1e-3), prompt


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "seed": 0}, {"do_sample": True}])
def test_a_strength_beyond_all_numbers_ends_in_one_line(model: Any, options: dict[str, Any]) -> None:
    """Scores of inf have no distribution: a greedy choice and a seeded draw would be of some token without a word."""
    bias = TokenBias({"good": 1e36 * torch.linspace(-1, 1, V), "bad": torch.zeros(V)})
    settings = {"token_bias.to_good": 1, "token_bias.strength": [1, 1e4]}
    with pytest.raises(UserError, match=r"row 1 has no token after 0 new ones: its best score is (inf|nan)"):
        Steered(model, [bias]).generate([[1], [1]], settings, max_new_tokens=2, **options)


def soft() -> SoftPrompt:
    torch.manual_seed(2)
    return SoftPrompt(["news"], torch.randn(1, 3, D))


def mistral() -> Any:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=V, hidden_size=D, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=4, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).eval()


@pytest.mark.parametrize("make", [mamba, mistral])
def test_soft_prompts_where_padding_counts_are_for_prompts_of_one_length(make: Any, tokenizer: Any) -> None:
    steered, settings = Steered(make(), [soft()], tokenizer=tokenizer), {"soft_prompt.news": 1}
    with pytest.raises(UserError, match="prompts of different lengths"):
        steered.generate(PROMPTS, settings, max_new_tokens=1)
    same = ["the war", "a good"]
    together = scores(steered, same, settings)
    for row, prompt in enumerate(same):
        assert torch.allclose(together[row], scores(steered, prompt, settings)[0], atol=1e-4)


def t5() -> Any:
    sizes = {"vocab_size": V, "d_model": D, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def xlnet() -> Any:
    """Its layers have the positions first, so a row's setting would change a position."""
    return transformers.XLNetLMHeadModel(transformers.XLNetConfig(vocab_size=V, d_model=D, n_layer=1, n_head=2))


@pytest.mark.parametrize(("make", "why"), [(t5, "encoder"), (xlnet, "XLNet")])
def test_models_that_are_not_causal_are_refused(make: Any, why: str, controls: dict[str, Control]) -> None:
    with pytest.raises(UserError, match=why), controls["token_bias"].attach(make()):
        pass


def test_an_expert_is_not_the_steered_model(tokenizer: Any) -> None:
    model = make_model(V)
    with pytest.raises(UserError, match="good is the steered one"):
        Steered(model, [Experts({"good": model, "bad": make_model(V)})], tokenizer=tokenizer)


def test_the_places_of_a_soft_prompt_are_no_text(model: Any, tokenizer: Any) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.seen.append(value.tolist())

        def end(self) -> None:
            self.seen.append("end")

    steered, settings = Steered(model, [soft()], tokenizer=tokenizer), {"soft_prompt.news": 1}
    ids, streamer = torch.tensor([[1, 5]]), Streamer()
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    made = steered.generate(ids, settings, max_length=6, streamer=streamer, **options)
    assert made.shape == (1, 6)
    assert streamer.seen == [[[1, 5]], *([token] for token in made[0, 2:].tolist()), "end"]
    config = transformers.GenerationConfig(max_length=6, do_sample=False, pad_token_id=0)
    assert torch.equal(steered.generate(ids, settings, generation_config=config, eos_token_id=-1), made)
    assert config.max_length == 6
    for name, value in (("repetition_penalty", 5.0), ("no_repeat_ngram_size", 2)):
        with pytest.raises(UserError, match=f"{name}: it would count the places of the soft prompt"):
            steered.generate(ids, settings, max_new_tokens=1, **{name: value})
        steered.generate(ids, {"soft_prompt.strength": 0}, max_new_tokens=1, **{name: value})


def test_an_id_beyond_the_tokenizer_is_refused_by_the_grammar_where_it_is_on(
    controls: dict[str, Control], tokenizer: Any
) -> None:
    steered = Steered(make_model(V + 6), [controls["grammar"]], tokenizer=tokenizer)
    start = tokenizer("the").input_ids
    for foreign in (V, V + 5):
        prompts = [[*start, foreign], start]
        with pytest.raises(UserError, match=f"prompt: id {foreign} is"):
            steered.generate(prompts, {"grammar.strength": 1}, max_new_tokens=1)
        bare = scores(steered, prompts, {"grammar.strength": 0})
        mixed = scores(steered, prompts, {"grammar.strength": [0, 1]})
        assert torch.equal(mixed[0], bare[0])
        alone = scores(steered, [start], {"grammar.strength": 1})[0]
        assert torch.equal(mixed[1].isneginf(), alone.isneginf()) and alone.isneginf().any()


def test_a_bundle_may_hold_one_tensor_twice(tmp_path: Path) -> None:
    weight = torch.randn(64, 4)
    paths = ["transformer.h.0.mlp.c_fc", "transformer.h.1.mlp.c_fc"]
    codes = NeuronCodes(["news"], torch.randn(1, 4), dict.fromkeys(paths, weight))
    codes.save_pretrained(tmp_path / "codes")
    again = load(tmp_path / "codes")
    assert isinstance(again, NeuronCodes) and all(torch.equal(again.layers[path], weight) for path in paths)


def test_a_seed_holds_under_peft(model: Any, tokenizer: Any) -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(
        copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    steered = Steered(wrapped.eval(), [], tokenizer=tokenizer)
    made = [steered.generate("in", seed=seed, do_sample=True, max_new_tokens=8, eos_token_id=-1) for seed in (0, 0, 1)]
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_a_compiled_forward_pass_is_not_used(tokenizer: Any, controls: dict[str, Control]) -> None:
    """Transformers compiles for static caches on an accelerator; hooks that are added later would not run."""
    steered, settings = Steered(make_model(V), [controls["idea_gate"]], tokenizer=tokenizer), {"idea_gate.alpha": 1.5}
    usual = scores(steered, PROMPTS, settings)
    compiled = transformers.generation.CompileConfig(backend="eager")
    compiled._compile_all_devices = True
    static = {"cache_implementation": "static", "compile_config": compiled}
    scores(steered, PROMPTS, {"idea_gate.alpha": 0.0}, **static)
    assert torch.allclose(scores(steered, PROMPTS, settings, **static), usual, atol=1e-4)


def compiled_whole(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_layer(model: Any) -> Any:
    model.transformer.h[0].forward = torch.compile(model.transformer.h[0].forward, backend="eager")
    return model


def wrapped_layer(model: Any) -> Any:
    model.transformer.h[0].mlp = torch.compile(model.transformer.h[0].mlp, backend="eager")
    return model


def wrapped_whole(model: Any) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("compiled", [compiled_whole, compiled_forward, compiled_layer, wrapped_layer, wrapped_whole])
def test_a_compiled_model_is_refused(compiled: Any, used: bool, controls: dict[str, Control]) -> None:
    model = compiled(make_model(V))
    if used:
        with torch.no_grad():
            model(input_ids=torch.tensor([[1, 2]]))
    with pytest.raises(UserError, match="compiled"):
        Steered(model, [controls["neuron_codes"]])


class Fused(torch.nn.Module):
    """A feed-forward part that multiplies by its layers' weights without calling the layers."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.act = own.c_fc, own.c_proj, own.act

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self.act(hidden @ self.c_fc.weight + self.c_fc.bias)
        return inner @ self.c_proj.weight + self.c_proj.bias


@pytest.mark.parametrize("kind", ["neuron_codes", "lora"])
def test_a_hook_that_does_not_run_is_an_error(kind: str, controls: dict[str, Control]) -> None:
    """Whatever the reason: the text would be the bare model's, or that of some layers only."""
    model, on = make_model(V), {"neuron_codes": {"neuron_codes.news": 1}, "lora": {}}[kind]
    model.transformer.h[0].mlp = Fused(model.transformer.h[0].mlp)
    ids = torch.tensor([[1, 2]])
    off = Steered(model, [controls[kind]]).generate(ids, {f"{kind}.strength": 0}, max_new_tokens=2)
    assert torch.equal(off, model.generate(ids, max_new_tokens=2, do_sample=False))
    with pytest.raises(UserError, match=rf"control {kind}: transformer\.h\.0\.mlp\.c_fc ran without"):
        Steered(model, [controls[kind]]).generate(ids, on, max_new_tokens=2)
    settings = {key.partition(".")[2]: value for key, value in on.items()}
    with pytest.raises(UserError, match="ran without"), controls[kind].attach(model, settings):
        model(input_ids=ids)
    assert not model._forward_hooks


def test_a_forward_pass_without_any_hook_is_an_error(
    controls: dict[str, Control], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(V)
    monkeypatch.setattr(type(model), "__call__", lambda self, *args, **kwargs: self.forward(*args, **kwargs))
    with pytest.raises(UserError, match="ran without hooks"):
        Steered(model, [controls["lora"]], tokenizer=tokenizer).generate("in", max_new_tokens=2)


def offloaded(model: Any) -> Any:
    return pytest.importorskip("accelerate").cpu_offload(model, execution_device="cpu")


def quantized(model: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})


class FourBit(torch.nn.Linear):
    """As bitsandbytes packs a layer: two numbers a byte, in one column."""

    def __init__(self, own: torch.nn.Linear) -> None:
        super().__init__(own.in_features, own.out_features, bias=False)
        self.plain = own.weight.detach().clone()
        self.weight = torch.nn.Parameter(torch.zeros(own.weight.numel() // 2, 1, dtype=torch.uint8), False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden, self.plain)


def packed(model: Any) -> Any:
    model.lm_head = FourBit(model.lm_head)
    return model


@pytest.mark.parametrize("changed", [offloaded, quantized, packed])
def test_offloaded_and_quantized_models(changed: Any, tokenizer: Any, controls: dict[str, Control]) -> None:
    """Their embedding is on no device, their layers have no weights or weights of another shape."""
    for name in ("idea_gate", "feature_channel", "neuron_codes", "lora", "experts", "future", "lexicon"):
        model = changed(make_model(V))
        steered = Steered(model, [controls[name], Guidance()], tokenizer=tokenizer)
        settings = flat([name])
        made = [scores(steered, PROMPTS, settings | {"guidance.strength": number}) for number in (0, 1)]
        usual = scores(Steered(make_model(V), [controls[name]], tokenizer=tokenizer), PROMPTS, settings)
        assert torch.allclose(made[0], usual, atol=0.5), name
        assert not torch.allclose(made[0], made[1], atol=1e-3), name
    with pytest.raises(UserError, match="control gradient needs the weights of the output layer"):
        Steered(changed(make_model(V)), [controls["gradient"]])


def test_dropout_is_off_while_a_model_generates(controls: dict[str, Control], tokenizer: Any) -> None:
    model = make_model(V)
    model.transformer.drop.p = 0.9
    steered = Steered(model, [controls["lora"]], tokenizer=tokenizer)
    expected = steered.generate(PROMPTS[0], max_new_tokens=8)
    model.train()
    model.lm_head.eval()
    assert torch.equal(steered.generate(PROMPTS[0], max_new_tokens=8), expected)
    assert model.training and model.transformer.drop.training and not model.lm_head.training


def test_controls_that_leave_no_token_end_in_one_line(tokenizer: Any, controls: dict[str, Control]) -> None:
    future = controls["future"]
    future.candidates = 1  # type: ignore[attr-defined]
    steered = Steered(make_model(V), [future, controls["grammar"]], tokenizer=tokenizer)
    settings = {"future.to_good": 1, "grammar.strength": 1}
    with pytest.raises(UserError, match="row 0 has no token after 0 new ones: the controls exclude each other"):
        steered.generate(["the war"], settings, max_new_tokens=8, do_sample=False)
    ended, none = torch.tensor([[1, 0, 0], [1, 2, 2]]), torch.full((2, V), -torch.inf)
    none[1, 3] = 1.0
    assert torch.equal(_Possible(1, [0])(ended, none)[1], none[1]), "a row that has ended needs none"
    with pytest.raises(UserError, match="row 0 has no token after 2 new ones"):
        _Possible(1, [5])(ended, none)


def test_micro_models_leave_forbidden_what_is(tokenizer: Any, controls: dict[str, Control]) -> None:
    steered, settings = Steered(make_model(V), [controls["micro_models"]], tokenizer=tokenizer), {}
    options = {"do_sample": True, "seed": 0, "max_new_tokens": 6, "eos_token_id": -1, "num_return_sequences": 8}
    year = WORDS.index("1914")
    assert (steered.generate(PROMPTS, settings, **options)[:, -6:] == year).any()
    kept = steered.generate(PROMPTS, settings, bad_words_ids=[[year]], suppress_tokens=[year + 1], **options)[:, -6:]
    assert not ((kept == year) | (kept == year + 1)).any()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("experts", {"strength": 2, "to_good": 1}),
        ("token_bias", {"strength": 3, "to_good": 1}),
        ("lexicon", {"strength": 8, "to_polarity": -1}),
    ],
)
def test_wide_beams_find_the_likeliest_text_under_a_control(
    name: str, settings: dict[str, Any], controls: dict[str, Control], tokenizer: Any
) -> None:
    given = {f"{name}.{key}": value for key, value in settings.items()}
    steered = Steered(make_model(V), [controls[name]], tokenizer=tokenizer)
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": -1}
    first_V = scores(steered, "a good", given, eos_token_id=-1)[0].log_softmax(-1)
    pairs = scores(steered, [[*tokenizer("a good").input_ids, number] for number in range(V)], given, eos_token_id=-1)
    total_VV = first_V.unsqueeze(1) + pairs.log_softmax(-1)
    best = divmod(int(total_VV.argmax()), V)
    made = steered.generate("a good", given, max_new_tokens=2, num_beams=V, length_penalty=0.0, **options)
    assert tuple(made[0, -2:].tolist()) == best


def test_a_seed_leaves_the_scores_of_a_step_as_they_are(tokenizer: Any, controls: dict[str, Control]) -> None:
    steered = Steered(make_model(V), [controls["token_bias"]], tokenizer=tokenizer)
    options: dict[str, Any] = {"max_new_tokens": 1, "do_sample": True, "output_scores": True, "top_k": 0,
                               "return_dict_in_generate": True}  # fmt: skip
    settings = {"token_bias.to_good": 1}
    made = steered.generate("in", settings, seed=3, **options)
    assert torch.equal(made.scores[0], steered.generate("in", settings, **options).scores[0])
    assert made.scores[0].isfinite().sum() > 1


def test_after_its_end_a_grammar_only_ends(tokenizer: Any, controls: dict[str, Control]) -> None:
    """The model may end texts with another token, or with none."""
    steered = Steered(make_model(V), [controls["grammar"]], tokenizer=tokenizer)
    metal = tokenizer("the metal").input_ids  # after which the grammar ends
    made = steered.generate("the metal", max_new_tokens=6, do_sample=False, eos_token_id=13, pad_token_id=0)
    assert made[0].tolist() == [*metal, *[tokenizer.eos_token_id] * 6]


def test_the_models_own_lengths_count(tokenizer: Any) -> None:
    model = make_model(V)
    model.generation_config.max_length, model.generation_config.eos_token_id = 9, None
    steered, ids = Steered(model, [soft()], tokenizer=tokenizer), torch.tensor([[1, 5]])
    for settings in ({"soft_prompt.news": 1}, {}):
        assert steered.generate(ids, settings, do_sample=False).shape == (1, 9)
    model.generation_config.max_length, model.generation_config.max_new_tokens = None, 80
    with pytest.raises(UserError, match="the model has 64 positions"):
        steered.generate(ids, {})


def adapted(kind: str | None) -> Any:
    """Return the tiny model under adapters of PEFT that change it, or after its learned prompts."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    if kind == "prompt":
        config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    else:
        config = peft.LoraConfig(
            r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type=kind
        )
    return peft.get_peft_model(make_model(V), config).eval()


@pytest.mark.parametrize("kind", [None, "CAUSAL_LM"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("feature_channel", {}),
        ("experts", {"to_good": 1}),
        ("future", {"to_good": 1}),
        ("guidance", {}),
        ("soft_prompt", {"news": 1}),
    ],
)
def test_adapters_of_peft_decode_with_padding_and_cache_as_the_model(
    name: str, settings: dict[str, Any], kind: str | None, controls: dict[str, Control], tokenizer: Any
) -> None:
    """PEFT's wrapper prepares no inputs: its inner model decodes."""
    control = {"guidance": Guidance(), "soft_prompt": soft()}.get(name) or controls[name]
    steered = Steered(adapted(kind), [control], tokenizer=tokenizer)
    given = {f"{name}.{key}": value for key, value in settings.items()}
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": -1, "output_scores": True,
                               "return_dict_in_generate": True}  # fmt: skip
    made = steered.generate(PROMPTS, given, **options)
    whole = steered.generate(PROMPTS, given, use_cache=False, **options)
    assert torch.equal(made.sequences, whole.sequences)
    assert torch.allclose(torch.stack(made.scores), torch.stack(whole.scores), atol=1e-4)
    for row, prompt in enumerate(PROMPTS):
        alone = steered.generate(prompt, given, **options)
        assert torch.allclose(made.scores[0][row], alone.scores[0][0], atol=1e-4), prompt


def test_a_plain_call_has_nothing_of_the_decoding_before() -> None:
    """Nor under PEFT, nor of one whose forward pass failed."""
    torch.manual_seed(1)
    codes = NeuronCodes(["news"], torch.randn(1, 4), {"transformer.h.0.mlp.c_fc": torch.randn(4 * D, 4)})
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[0, 0, 1], [1, 1, 1]])

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    for model in (adapted("CAUSAL_LM"), make_model(V)):
        with torch.no_grad(), codes.attach(model, {"news": 1}, rows=2):
            before = model(ids).logits
            options = {"max_new_tokens": 1, "do_sample": False, "pad_token_id": 0}
            model.generate(input_ids=ids, attention_mask=mask, **options)
            assert torch.equal(model(ids).logits, before)
            handle = model.get_output_embeddings().register_forward_hook(fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                model.generate(input_ids=ids, attention_mask=mask, **options)
            handle.remove()
            assert torch.equal(model(ids).logits, before)


def test_peft_leaves_no_watch_behind(controls: dict[str, Control], tokenizer: Any) -> None:
    for kind in ("CAUSAL_LM", "prompt"):
        model = adapted(kind)
        steered = Steered(model, [controls["token_bias"]], tokenizer=tokenizer)
        for _ in range(2):
            steered.generate(PROMPTS, {"token_bias.to_good": 1}, max_new_tokens=2)
            left = [vars(part).get(PREPARE) for part in model.modules()]
            assert not any(hasattr(each, "prefix") for each in left)
            assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_guidance_reads_a_learned_prompt_once(tokenizer: Any) -> None:
    """Without other controls it has nothing to exaggerate; PEFT puts the prompt before whatever it reads."""
    model, options = adapted("prompt"), {"max_new_tokens": 4, "do_sample": False, "eos_token_id": -1}
    options |= {"output_scores": True, "return_dict_in_generate": True}
    made, bare = (Steered(model, given, tokenizer=tokenizer).generate(PROMPTS, **options)
                  for given in ([Guidance()], []))  # fmt: skip
    for own, alone in zip(made.scores, bare.scores, strict=True):
        assert torch.allclose(own, alone.log_softmax(-1), atol=1e-5)


def test_one_gate_on_two_models_keeps_their_states_apart(controls: dict[str, Control]) -> None:
    gate, ids, other = controls["idea_gate"], torch.tensor([[1, 2, 3]]), opt().to(torch.bfloat16)
    with torch.no_grad(), gate.attach(make_model(V)) as rules:
        model = make_model(V)
        with gate.attach(model) as inner:
            whole = model(ids).logits[:, -1]
            alone = inner(ids, whole)
            with gate.attach(other) as others:
                others(ids, other(ids).logits[:, -1].float())
                assert torch.equal(inner(ids, whole), alone)
        with pytest.raises(RuntimeError, match="has not run yet"):
            rules(ids, whole)


@pytest.mark.parametrize("name", ["idea_gate", "micro_models", "gradient", "feature_channel"])
def test_a_control_is_copied_and_differentiated_through_while_it_is_attached(
    name: str, controls: dict[str, Control], tokenizer: Any
) -> None:
    control, model, ids = controls[name], make_model(V), torch.tensor([[1, 2, 3]])
    control.bind(tokenizer)
    with control.attach(model) as rules:
        first = rules(ids, model(ids).logits[:, -1])
        copied = copy.deepcopy(control)
    with copied.attach(model) as rules:
        assert torch.equal(rules(ids, model(ids).logits[:, -1]), first)


def test_a_model_under_controls_is_not_copied(controls: dict[str, Control], tokenizer: Any) -> None:
    """Its copy would keep the hooks for good, and prepare the inputs of the original."""
    model = make_model(V)
    with controls["lora"].attach(model):
        for way in (copy.deepcopy, pickle.dumps):
            with pytest.raises(UserError, match="cannot be copied or pickled while controls are attached"):
                way(model)
    assert not copy.deepcopy(model).transformer.h[0].mlp.c_fc._forward_hooks


def test_a_soft_prompt_is_no_text_to_controls_attached_outside(controls: dict[str, Control], tokenizer: Any) -> None:
    model, settings = make_model(V), {"soft_prompt.news": 1}
    steered = Steered(model, [soft()], tokenizer=tokenizer)
    with controls["experts"].attach(model, {"to_good": 1}) as rules:
        with pytest.raises(UserError, match="a soft prompt would be text to the controls attached already"):
            steered.generate("in", settings, logits_processor=rules, max_new_tokens=1)
        steered.generate("in", {}, logits_processor=rules, max_new_tokens=1)
    steered.generate("in", settings, max_new_tokens=1)


OTHERS: dict[str, Any] = {
    "OPT": opt,
    "GPT-Neo, local attention": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=V, hidden_size=D, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
            window_size=3, intermediate_size=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    ),
    "Mamba": mamba,
    "Gemma 3, sliding and scaled": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            vocab_size=V, hidden_size=D, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
            num_key_value_heads=2, sliding_window=3, layer_types=["sliding_attention", "full_attention"],
            bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_alone_and_in_a_batch_off_and_as_before(
    kind: str, precision: torch.dtype, controls: dict[str, Control], tokenizer: Any
) -> None:
    torch.manual_seed(0)
    model = OTHERS[kind]().eval().to(precision)
    close = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}[precision]
    bare = scores(Steered(model, [], tokenizer=tokenizer), PROMPTS, {})
    given: dict[str, dict[str, Any]] = {
        "idea_gate": {"alpha": 1.5}, "feature_channel": {"pos": 1}, "experts": {"to_good": 1}, "memory": {},
        "gradient": {"to_good": 1}, "token_bias": {"to_good": 1},
    }  # fmt: skip
    for name, own in given.items():
        control, settings = controls[name], {f"{name}.{key}": value for key, value in own.items()}
        steered = Steered(model, [control], tokenizer=tokenizer)
        made = scores(steered, PROMPTS, settings)
        assert not torch.allclose(made, bare), name
        for row, prompt in enumerate(PROMPTS):
            assert torch.allclose(made[row], scores(steered, prompt, settings)[0], atol=close, rtol=close), name
        off = f"{name}.{control.strength}"
        assert torch.equal(scores(steered, PROMPTS, settings | {off: 0}), bare), name
        with torch.inference_mode():
            mixed = scores(steered, PROMPTS, settings | {off: [0, 1, 0]})
        assert torch.equal(mixed[[0, 2]], bare[[0, 2]]) and not torch.equal(mixed[1], bare[1]), name
