"""Activation vectors: each form against its paper, written once more for one state at a time in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from lit_ctg.control import Control, Steered
from lit_ctg.control.vectors import ActivationVector, Condition, of_texts, read_gguf, states, write_gguf
from lit_ctg.errors import UserError
from lit_ctg.network.layers import blocks
from tests.conftest import WORDS, make_tokenizer

V, D, L = len(WORDS), 16, 4
IDS = torch.tensor([[3, 4, 5, 6, 7], [6, 7, 8, 1, 2]])
CLASSES = ["good", "bad"]
TEXTS = {
    "good": ["the acid war good", "a metal good good", "the war began in 1914 good", "acid good .", "in 1918 good"],
    "bad": ["the metal war bad", "a bad acid bad", "the war began in 1939 bad", "metal bad .", "bad in 1918"],
}


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=D, n_layer=L, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=24, num_hidden_layers=L, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module", params=[gpt2, llama], ids=["gpt2", "llama"])
def network(request: Any) -> Any:
    """Random, in float64, with weights large enough to tell states apart."""
    torch.manual_seed(0)
    model = request.param().double().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def vectors(*numbers: int, seed: int = 1) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {number: torch.randn(2, D, generator=generator) for number in numbers}


@contextmanager
def replaced(model: Any, change: dict[int, Callable[[Tensor], Tensor]], first: int = 0) -> Iterator[None]:
    """Change the state of each position from ``first`` on, one at a time, after some blocks."""
    parts = [part for _, part in blocks(model)]
    kept = {number: parts[number].forward for number in change}

    def forward(number: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            out = kept[number](*args, **kwargs)
            state = (out[0] if isinstance(out, tuple) else out).clone()
            for row in range(state.shape[0]):
                for place in range(first, state.shape[1]):
                    state[row, place] = change[number](state[row, place])
            return (state, *out[1:]) if isinstance(out, tuple) else state

        return call

    for number in change:
        parts[number].forward = forward(number)
    try:
        yield
    finally:
        for number in change:
            del parts[number].forward


def scores(model: Any) -> Tensor:
    return model(input_ids=IDS, use_cache=False).logits


def caa(vector: Tensor, alpha: float) -> Callable[[Tensor], Tensor]:
    """Rimsky et al. (2023), sec. 3: the vector times a multiplier is added."""
    return lambda h: h + alpha * vector


def of_norm(vector: Tensor, alpha: float) -> Callable[[Tensor], Tensor]:
    return lambda h: h + alpha * math.sqrt(sum(float(x) ** 2 for x in h)) * vector / vector.norm()


def angular(first: Tensor, other: Tensor, degrees: float) -> Callable[[Tensor], Tensor]:
    """Vu and Nguyen (2025): h - P h + |P h| [b1 b2] R(angle) (1, 0)."""
    b1 = first / first.norm()
    b2 = other - (other @ b1) * b1
    basis = torch.stack([b1, b2 / b2.norm()], dim=1)
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    project = basis @ basis.T
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return lambda h: h - project @ h + (project @ h).norm() * basis @ turn @ start


def cast(c: Tensor, threshold: float, vector: Tensor, alpha: float) -> Callable[[Tensor], Tensor]:
    """Lee et al. (2024), Eq. 2: h + f(sim(h, proj_c h)) alpha v, for states on the side of c."""

    def change(h: Tensor) -> Tensor:
        projected = torch.outer(c, c) @ h / (c @ c)
        similar = float(h @ projected / (h.norm() * projected.norm())) * math.copysign(1, float(h @ c))
        return h + (similar > threshold) * alpha * vector

    return change


def steered_scores(model: Any, control: Control, settings: dict[str, Any]) -> Tensor:
    with control.attach(model, settings, rows=len(IDS)):
        return scores(model)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def double(each: Tensor) -> Tensor:
    return each.double()


@pytest.mark.parametrize(("scale", "reference"), [("raw", caa), ("norm", of_norm)])
def test_adding_is_that_of_the_paper(network: Any, scale: Any, reference: Any) -> None:
    given = vectors(1, 2)
    control = ActivationVector(CLASSES, given, scale=scale)
    for place, name in enumerate(CLASSES):
        share = 0.7 / len(given) if scale == "norm" else 0.7
        changes = {number: reference(double(each[place]), share) for number, each in given.items()}
        with replaced(network, changes):
            expected = scores(network)
        same(steered_scores(network, control, {"strength": 0.7, f"to_{name}": 1}), expected)


def test_rotation_is_that_of_the_paper_and_a_share_of_it_lies_between(network: Any) -> None:
    given, plane = vectors(2), vectors(0, seed=3)[0]
    control = ActivationVector(CLASSES, given, form="rotate", plane_CD=plane)
    for degrees in (0.0, 90.0, 200.0):
        with replaced(network, {2: angular(double(given[2][0]), double(plane[0]), degrees)}):
            expected = scores(network)
        same(steered_scores(network, control, {"angle": degrees, "to_good": 1}), expected)
    bare = scores(network)
    gone = [steered_scores(network, control, {"strength": each, "to_good": 1}) for each in (1e-9, 0.5, 1.0)]
    apart = [float((each - bare).abs().max()) for each in gone]
    assert apart[0] < 1e-6 < 0.01 < min(apart[1:])


def test_a_condition_is_that_of_the_paper(network: Any) -> None:
    given = vectors(1)
    hidden = network(input_ids=IDS, output_hidden_states=True).hidden_states[2]
    c, threshold = (hidden[0, 2] - hidden[1, 1]).float(), 0.1
    condition = Condition(1, c / c.norm(), -threshold)
    control = ActivationVector(CLASSES, given, scale="raw", condition=condition)
    with replaced(network, {1: cast(double(c), threshold, double(given[1][1]), 2.0)}):
        expected = scores(network)
    found = steered_scores(network, control, {"strength": 2.0, "to_bad": 1})
    same(found, expected)
    everywhere = ActivationVector(CLASSES, given, scale="raw")
    assert not torch.allclose(found, steered_scores(network, everywhere, {"strength": 2.0, "to_bad": 1}))
    assert not torch.allclose(found, scores(network)), "it fires somewhere"


def test_ablation_equals_weights_that_cannot_write_the_direction(network: Any) -> None:
    """Arditi et al. (2024), sec. 4.1: W - r r^T W for every matrix that writes to the residual stream."""
    r = vectors(0)[0][0].double()
    r = r / r.norm()
    control = ActivationVector(CLASSES, {number: torch.stack([r, -r]).float() for number in range(L)}, form="ablate")
    other = copy.deepcopy(network)
    without = torch.eye(D, dtype=torch.float64) - torch.outer(r, r)
    other.lm_head.weight = nn.Parameter(network.lm_head.weight.clone())
    for name, parameter in other.named_parameters():
        # GPT-2's layers are transposed, with a bias
        if any(part in name for part in ("wte", "wpe", "embed_tokens", "c_proj")):
            parameter.data = parameter.data @ without
        elif "o_proj" in name or "down_proj" in name:
            parameter.data = without @ parameter.data
    torch.testing.assert_close(
        steered_scores(network, control, {"to_good": 1}), scores(other), atol=1e-5, rtol=1e-5
    )  # the direction is stored in float32


@pytest.mark.parametrize("tokens", ["all", "generated", "prompt_end"])
@pytest.mark.parametrize("cache", [True, False])
def test_token_scopes_in_a_batch_with_and_without_cache(network: Any, tokenizer: Any, tokens: Any, cache: bool) -> None:
    given = vectors(1)
    control = ActivationVector(CLASSES, given, scale="raw", tokens=tokens)
    steered = Steered(network, [control], tokenizer=tokenizer)
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "use_cache": cache,
                               "output_scores": True, "return_dict_in_generate": True}  # fmt: skip
    settings = {"activation_vector.strength": [2, 0, 1], "activation_vector.to_good": 1}
    prompts = ["the war began in", "a", "the acid"]
    made = steered.generate(prompts, settings, **options)
    for row, (prompt, strength) in enumerate(zip(prompts, (2, 0, 1), strict=True)):
        ids = [*tokenizer(prompt).input_ids, *made.sequences[row, -4:].tolist()]
        length, move = len(ids) - 4, caa(double(given[1][0]), strength)
        first, end = (0 if tokens == "all" else length - 1), length if tokens == "prompt_end" else len(ids)
        place = iter(range(first, len(ids)))

        def change(h: Tensor, move: Any = move, place: Any = place, end: int = end) -> Tensor:
            return move(h) if next(place) < end else h

        with replaced(network, {1: change}, first):
            logits = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        # the end of a text is forbidden
        expected = logits[length - 1 : -1].index_fill(1, torch.tensor([0]), -torch.inf)
        found = torch.stack([step[row] for step in made.scores]).index_fill(1, torch.tensor([0]), -torch.inf)
        torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-5)
        alone = steered.generate([prompt], {**settings, "activation_vector.strength": strength}, **options)
        assert alone.sequences[0, -4:].tolist() == made.sequences[row, -4:].tolist()


def test_vectors_compose_and_strength_0_is_the_bare_model_to_the_bit(network: Any) -> None:
    bare = scores(network)
    one, two = (ActivationVector(CLASSES, vectors(1, seed=each), scale="raw", name=f"v{each}") for each in (1, 2))
    with one.attach(network, {"to_good": 1}, rows=2), two.attach(network, {"to_bad": 1, "strength": [3, 0]}, rows=2):
        both = scores(network)
    total = caa(vectors(1)[1][0].double() + 3 * vectors(1, seed=2)[1][1].double(), 1)
    with replaced(network, {1: total}):
        same(both[0], scores(network)[0])
    off = ActivationVector(CLASSES, vectors(0, 1, 2, 3), form="ablate")
    with off.attach(network, {"strength": [0, 1], "to_good": 1}, rows=2):
        mixed = scores(network)
    assert torch.equal(mixed[0], bare[0]) and not torch.allclose(mixed[1], bare[1])


def test_chat_and_half_precision_act_on_the_reply(tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = llama().to(torch.bfloat16).eval()
    control = ActivationVector(CLASSES, vectors(1), scale="norm")
    steered = Steered(model, [control], tokenizer=tokenizer)
    heard: list[Tensor] = []
    options: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "reply_only": True}
    for strength in (0, 5):
        part = [part for _, part in blocks(model)][2]
        handle = part.register_forward_pre_hook(lambda _m, given: heard.append(given[0]))
        steered.generate(["the war began"], {"activation_vector.to_bad": 1, "activation_vector.strength": strength},
                         **options)  # fmt: skip
        handle.remove()
    first, second = heard[0], heard[len(heard) // 2]
    assert torch.equal(first[0, :-1], second[0, :-1]) and not torch.equal(first[0, -1], second[0, -1])


# how they are made ----------------------------------------------------------------------------------------------------


def slow_states(model: Any, tokenizer: Any, text: str, read: str) -> np.ndarray:
    hidden: list[Tensor] = []
    handles = [
        part.register_forward_hook(lambda _m, _i, out: hidden.append(out[0] if isinstance(out, tuple) else out))
        for _, part in blocks(model)
    ]
    model(torch.tensor([tokenizer(text).input_ids]))
    for handle in handles:
        handle.remove()
    return np.stack([(each[0, 1:].mean(0) if read == "mean" else each[0, -1]).numpy() for each in hidden])


@pytest.mark.parametrize("read", ["mean", "last"])
@pytest.mark.parametrize("method", ["means", "pca", "pca_centred"])
def test_directions_of_pairs(network: Any, tokenizer: Any, method: Any, read: Any) -> None:
    control = of_texts(network, tokenizer, TEXTS, method=method, read=read, scale="raw", layers="all")
    good, bad = (np.stack([slow_states(network, tokenizer, text, read) for text in TEXTS[name]]) for name in CLASSES)
    for block in range(L):
        apart = good[:, block] - bad[:, block]
        if method == "means":
            expected = good[:, block].mean(0) - bad[:, block].mean(0)
        else:
            pool = apart - apart.mean(0) if method == "pca_centred" else np.concatenate([apart, -apart])
            expected = np.linalg.eigh(np.cov(pool.T, bias=True))[1][:, -1]
            expected = expected * (1 if np.sign(apart @ expected).sum() >= 0 else -1)
        found = control.directions[block].double().numpy()
        np.testing.assert_allclose(found[0], expected, atol=1e-5)
        if np.sign(apart @ expected).sum() != 0:
            np.testing.assert_allclose(found[1], -expected, atol=1e-5)


def test_options_of_made_vectors(network: Any, tokenizer: Any) -> None:
    norm_XL = torch.cat([states(network, tokenizer, own)[1] for own in TEXTS.values()])
    middle = of_texts(network, tokenizer, TEXTS)
    assert list(middle.directions) == [1]
    assert float(middle.directions[1][0].norm()) == pytest.approx(float(norm_XL[:, 1].median()), rel=1e-5)
    assert list(of_texts(network, tokenizer, TEXTS, layers=[3, 2]).directions) == [2, 3]
    assert len(of_texts(network, tokenizer, TEXTS, layers="best").directions) == 1
    ablation = of_texts(network, tokenizer, TEXTS, form="ablate")
    assert list(ablation.directions) == [0, 1, 2, 3] and torch.equal(ablation.directions[0], ablation.directions[3])
    turn = of_texts(network, tokenizer, TEXTS, form="rotate")
    assert turn.plane_CD is not None and turn.plane_CD.shape == (2, D)
    where = of_texts(network, tokenizer, TEXTS, layers=[2, 3], condition=(TEXTS["bad"], TEXTS["good"])).condition
    assert where is not None and where.block <= 2
    fires = torch.stack(
        [where.fires(states(network, tokenizer, own, normed=True)[0][:, where.block]) for own in TEXTS.values()]
    ).float()
    assert fires[1].mean() > fires[0].mean()
    three = of_texts(network, tokenizer, {**TEXTS, "so_so": ["the war .", "a metal ."]}, scale="raw", method="means")
    assert float(three.directions[1].sum(0).abs().max()) < 1e-4, "each class against the mean of the others"


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"layers": [4]}, "layers"), ({"layers": []}, "layers"), ({"texts": {**TEXTS, "bad": ["bad"]}}, "bad"),
     ({"texts": {**TEXTS, "bad": ["bad", ""]}}, "no token")],
)  # fmt: skip
def test_bad_texts_and_layers_are_refused(network: Any, tokenizer: Any, changed: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        of_texts(network, tokenizer, **{"texts": TEXTS, **changed})


def test_control_is_refused_where_it_does_not_fit(network: Any) -> None:
    with pytest.raises(UserError, match="block 4"), ActivationVector(CLASSES, vectors(4)).attach(network):
        pass
    wrongs: list[dict[str, Any]] = [
        {"directions": {}},
        {"directions": {0: torch.zeros(3, D)}},
        {"directions": {**vectors(0), 1: torch.zeros(2, D + 1)}},
        {"directions": vectors(0), "form": "rotate"},
        {"directions": vectors(0), "condition": Condition(1, torch.zeros(D), 0.0)},
        {"directions": vectors(0), "form": "multiply"},
        {"directions": vectors(0), "tokens": "first"},
    ]
    for wrong in wrongs:
        with pytest.raises(UserError, match=r"activation_vector|ActivationVector"):
            ActivationVector(CLASSES, **wrong)


# files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["add", "ablate", "rotate"])
def test_bundles_keep_everything(network: Any, tmp_path: Path, form: Any) -> None:
    control = ActivationVector(
        CLASSES, vectors(1, 3), form=form, tokens="generated", scale="norm", plane_CD=vectors(0, seed=5)[0],
        condition=Condition(0, vectors(0)[0][0], 0.25),
    )  # fmt: skip
    control.save_pretrained(tmp_path / "vector")
    again = Control.from_pretrained(tmp_path / "vector")
    assert again.config() == control.config()
    settings = {"to_bad": 1}
    assert torch.equal(steered_scores(network, again, settings), steered_scores(network, control, settings))
    assert not torch.equal(steered_scores(network, again, settings), scores(network))


def test_gguf_files_are_llama_cpp_s(network: Any, tmp_path: Path) -> None:
    import gguf

    control = ActivationVector(["positive", "negative"], {1: vectors(1)[1] * torch.tensor([[1.0], [0.0]])}, scale="raw")
    control.directions[1][1] = -control.directions[1][0]
    write_gguf(control, tmp_path / "v.gguf", network)
    reader: Any = gguf.GGUFReader(tmp_path / "v.gguf")
    assert reader.get_field("general.architecture").contents() == "controlvector"
    assert reader.get_field("controlvector.model_hint").contents() == network.config.model_type
    assert int(reader.get_field("controlvector.layer_count").contents()) == 1
    (tensor,) = reader.tensors
    assert (tensor.name, tensor.tensor_type.name, list(tensor.shape)) == ("direction.1", "F32", [D])
    again = read_gguf(tmp_path / "v.gguf")
    for settings in ({"to_positive": 1, "strength": 0.5}, {"to_negative": 1}):
        same(steered_scores(network, again, settings), steered_scores(network, control, settings))
    first = ActivationVector(CLASSES, vectors(0))
    for wrong in (first, ActivationVector(CLASSES, vectors(1), form="ablate"),
                  ActivationVector(["a", "b", "c"], {1: torch.zeros(3, D)})):  # fmt: skip
        with pytest.raises(UserError, match=r"llama|GGUF"):
            write_gguf(wrong, tmp_path / "w.gguf")
    assert not (tmp_path / "w.gguf").exists()
