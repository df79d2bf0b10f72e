"""The method: losses, fusion, channel and module restated; regimes, generation steps, control, checkpoints."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from lit_ctg.core.causality_probe import probe
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.channel import COLUMN, GROUPS, NAMES, ChannelSetting, GatedFusion
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.model import (
    auxiliary_head,
    auxiliary_loss,
    drop_and_replace,
    hindsight,
    token_loss,
    uniformizer_loss,
)
from lit_ctg.papers.semantic_fusion.trial import prefix_scores

POSITIVE, NEGATIVE = (2, 5, 7), (1, 3, 4, 8)


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return [w / sum(weights) for w in weights]


@pytest.fixture
def logits() -> torch.Tensor:
    torch.manual_seed(0)
    return 3 * torch.randn(40, 10, dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.02, 0.3])
def test_token_loss_is_equation_6(logits, smoothing):
    targets = torch.randint(0, 10, (40,))
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        p = softmax(row)
        wanted = [(1 - smoothing) * (v == target) + smoothing / 10 for v in range(10)]
        total -= sum(w * math.log(q) for w, q in zip(wanted, p, strict=True))
    assert float(token_loss(logits, targets, label_smoothing=smoothing)) == pytest.approx(total / 40, rel=1e-12)


def test_auxiliary_loss_is_equation_7(logits):
    features = torch.rand(40, 10, dtype=torch.float64)
    total = 0.0
    for row, wanted in zip(logits.tolist(), features.tolist(), strict=True):
        for z, y in zip(row, wanted, strict=True):
            p = 1 / (1 + math.exp(-z))
            total -= y * math.log(p) + (1 - y) * math.log(1 - p)
    assert float(auxiliary_loss(logits, features)) == pytest.approx(total / 400, rel=1e-9)
    predicted, target = torch.randn(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    auxiliary_loss(predicted, target).backward()
    assert predicted.grad.abs().sum() > 0
    assert target.grad is None


def slow_uniformizer(logits: list[list[float]], targets: list[int]) -> float:
    """Mean over positions of each class, then over the classes that occur."""
    means = []
    for words in (POSITIVE, NEGATIVE):
        divergences = []
        for row, target in zip(logits, targets, strict=True):
            if target in words:
                p = softmax([row[word] for word in words])
                divergences.append(sum(q * math.log(q * len(words)) for q in p))
        if divergences:
            means.append(sum(divergences) / len(divergences))
    return sum(means) / len(means) if means else 0.0


CLASSES = (torch.tensor(POSITIVE), torch.tensor(NEGATIVE))


@pytest.mark.parametrize(
    "allowed", [range(10), (0, 2, 5, 7, 9), (1, 6), (0, 6, 9)], ids=["both", "one class", "other class", "none"]
)
def test_uniformizer_is_equation_8(logits, allowed):
    torch.manual_seed(1)
    targets = torch.tensor(list(allowed))[torch.randint(0, len(allowed), (40,))]
    expected = slow_uniformizer(logits.tolist(), targets.tolist())
    assert float(uniformizer_loss(logits, targets, CLASSES)) == pytest.approx(expected, rel=1e-12, abs=1e-15)


DIM, FEATURES = 6, 22


def slow(module: GatedFusion, e: list[float], s: list[float]) -> list[float]:
    """h0 = e + u + g * u with u = W_s s, g = sigmoid(W_g [e ; s]), one coordinate at a time."""

    def affine(layer: torch.nn.Linear, x: list[float]) -> list[float]:
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [sum(w * v for w, v in zip(weights, x, strict=True)) + bias for weights, bias in rows]

    u = affine(module.project, s)
    if module.gate is None:
        return [a + b for a, b in zip(e, u, strict=True)]
    g = [1 / (1 + math.exp(-x)) for x in affine(module.gate, e + s)]
    return [a + b + c * b for a, b, c in zip(e, u, g, strict=True)]


@pytest.mark.parametrize("gate", [True, False])
def test_equals_the_equations(gate):
    torch.manual_seed(0)
    module = GatedFusion(DIM, FEATURES, gate).double()
    e, s = torch.randn(7, DIM, dtype=torch.float64), torch.rand(7, FEATURES, dtype=torch.float64)
    expected = [slow(module, row.tolist(), values.tolist()) for row, values in zip(e, s, strict=True)]
    assert torch.allclose(module(e, s), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("features", "width"), [(22, 64), (40, 80)])
def test_auxiliary_head_has_the_papers_width(features, width):
    head = auxiliary_head(DIM, features)
    assert [tuple(p.shape) for p in head.parameters()] == [(width, DIM), (width,), (features, width), (features,)]
    assert isinstance(head[1], torch.nn.ReLU)


GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def test_a_named_group_is_replaced_whole_and_the_rest_stays():
    assert set(GROUP_OF) == {n for n in NAMES if n.startswith(("pos_", "neg_", "str_"))} | {"is_question"}
    features = torch.rand(3, 22)
    controls = [{"pos_high": 0.95, "str_high": 0.9}, {}, {"is_question": 1.0, "neg_low": 0.2, "neg_high": 0.7}]
    changed = ChannelSetting.of_rows(controls, features).apply(features)
    for row, control in enumerate(controls):
        touched = {GROUP_OF[name] for name in control}
        for name in NAMES:
            value = float(changed[row, COLUMN[name]])
            if GROUP_OF.get(name) in touched:
                assert value == pytest.approx(control.get(name, 0.0))
            else:
                assert value == float(features[row, COLUMN[name]])


def slow_hindsight(tokens: list[str], t: int) -> dict[str, float]:
    """Next adjective and intensifier strictly after t, else the last; "?" anywhere."""
    asked = {}
    positive, negative = {"good", "great", "excellent", "pleasant", "wonderful"}, {"bad", "poor", "awful"}
    negative |= {"terrible", "unpleasant"}
    level = {"slightly": "str_low", "moderately": "str_med", "very": "str_high", "extremely": "str_high"}
    adjectives = [(i, w) for i, w in enumerate(tokens) if w in positive | negative]
    intensifiers = [(i, w) for i, w in enumerate(tokens) if w in level]
    for found, name in ((adjectives, None), (intensifiers, level)):
        if found:
            word = next((w for i, w in found if i > t), found[-1][1])
            asked[name[word] if name else "pos_high" if word in positive else "neg_high"] = 1.0
    if "?" in tokens:
        asked["is_question"] = 1.0
    return asked


def test_hindsight_restated(sentences, vocabulary):
    width = max(map(len, sentences))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in sentences])
    table = hindsight(ids, vocabulary)
    seen = set()
    for row, tokens_ids in zip(table, sentences, strict=True):
        tokens = [vocabulary.tokens[i] for i in tokens_ids]
        for t in range(len(tokens)):
            expected = slow_hindsight(tokens, t)
            seen |= set(expected)
            assert {n: 1.0 for n in NAMES if row[t, COLUMN[n]] != 0} == expected, (tokens, t)
    assert seen == {"pos_high", "neg_high", "str_low", "str_med", "str_high", "is_question"}


def test_each_group_of_a_sentence_is_dropped_on_its_own_with_the_given_probability():
    torch.manual_seed(0)
    size, p = 4000, 0.3
    features, asked = torch.full((size, 2, 22), -1.0), torch.ones(size, 2, 22)
    out = drop_and_replace(features, asked, feature_dropout=p, generator=torch.Generator().manual_seed(1))
    kept = torch.stack([out[:, 0, COLUMN[names[0]]] >= 0 for names in GROUPS.values()], 1).double()
    error = math.sqrt(p * (1 - p) / size)
    assert (kept.mean(0) - (1 - p)).abs().max() < 5 * error
    correlation = torch.corrcoef(kept.T) - torch.eye(3)
    assert correlation.abs().max() < 5 / math.sqrt(size)
    for names in GROUPS.values():
        values = out[:, :, [COLUMN[n] for n in names]]
        assert (values == values[:, :1, :1]).all()  # one draw a sentence and group, at all positions
        strengths = values[values >= 0]
        assert 0.6 <= strengths.min() < 0.61 and 0.99 < strengths.max() <= 1.0
    others = [i for i, name in enumerate(NAMES) if name not in GROUP_OF]
    assert (out[..., others] == -1.0).all()


def test_draws_are_a_function_of_seed_and_epoch(make_module):
    features, asked = torch.rand(9, 4, 22), torch.ones(9, 4, 22)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return drop_and_replace(features, asked, feature_dropout=0.5, generator=generator)

    before = torch.get_rng_state()
    first = draw(3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, draw(3))
    assert not torch.equal(first, draw(4))
    draws = []
    for seed, epoch in ((5, 0), (5, 1), (5, 0), (6, 0)):
        module = make_module(seed=seed)
        module.trainer = type("T", (), {"current_epoch": epoch})()
        module.on_train_epoch_start()
        draws.append(torch.rand(4, generator=module.channel_generator))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[3]), "the next seed does not begin where this one's second epoch does"
    make_module(fusion=False)
    after_baseline = torch.rand(3)
    make_module()
    assert torch.equal(torch.rand(3), after_baseline)


REGIMES = pytest.mark.parametrize("published", [True, False], ids=["as published", "corrected"])


@REGIMES
@pytest.mark.parametrize("learnable", [False, True])
def test_output_has_the_contracts_shapes_and_is_zero_at_padding(published, learnable, make_module, model_batch):
    module = make_module(published, learnable_memberships=learnable).eval()
    batch = model_batch(module)
    output = module(batch)
    size, width = batch["input_ids_BT"].shape
    assert output.scores_BTV.shape == (size, width, 41)
    assert output.hidden_BTD.shape == (size, width, 16)
    for name in ("features_BTF", "aux_BTF", "aux_target_BTF"):
        assert getattr(output, name).shape == (size, width, 22)
    padding = ~batch["mask_input_BT"]
    assert padding.any()
    parts = (output.scores_BTV, output.hidden_BTD, output.features_BTF, output.aux_BTF, output.aux_target_BTF)
    for values in parts:
        assert not values[padding].any()
    predicted = module.auxiliary(output.hidden_BTD[~padding]).sigmoid()
    torch.testing.assert_close(output.aux_BTF[~padding], predicted)


def test_the_network_reads_scaled_words_and_positions_and_its_head_is_tied(make_module, model_batch):
    module = make_module(fusion=False).eval()
    module.backbone.forward_packed = lambda hidden_ND, packing: hidden_ND
    batch = model_batch(module)
    read = module(batch).hidden_BTD[batch["mask_input_BT"]]
    place_BT = torch.arange(batch["input_ids_BT"].shape[1]).expand_as(batch["input_ids_BT"])
    expected = 4.0 * module.embedding(batch["input_ids_BT"]) + module.position(place_BT)
    torch.testing.assert_close(read, expected[batch["mask_input_BT"]])
    assert len(module.position.table_TD) == 512
    module = make_module().eval()
    output = module(batch := model_batch(module))
    mask = batch["mask_input_BT"]
    assert torch.allclose(output.scores_BTV[mask], output.hidden_BTD[mask] @ module.embedding.weight.T, atol=1e-6)
    assert not [name for name, _ in module.named_parameters() if "head" in name or "output" in name]


@REGIMES
def test_baseline_and_fusion_of_one_seed_are_one_model_but_for_the_channel(published, make_module, model_batch):
    fusion, baseline = make_module(published).eval(), make_module(published, fusion=False).eval()
    batch, shared, own = model_batch(fusion), baseline.state_dict(), fusion.state_dict()
    assert set(shared) < set(own) and all(torch.equal(value, own[name]) for name, value in shared.items())
    other = make_module(published, seed=6).state_dict()
    for name in ("embedding.weight", "fuse.project.weight"):
        assert not torch.equal(other[name], own[name])
    assert float(own["embedding.weight"].std()) == pytest.approx(1.0 if published else 0.02, rel=0.1)
    assert not torch.allclose(fusion(batch).scores_BTV, baseline(batch).scores_BTV)
    for parameter in fusion.fuse.project.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(fusion(batch).scores_BTV, baseline(batch).scores_BTV)


@REGIMES
@pytest.mark.parametrize(
    ("fusion", "target", "learnable"),
    [(True, "current", False), (True, "next", False), (True, "next", True), (False, "current", False)],
)
def test_loss_is_equation_5_over_the_masked_positions(published, fusion, target, learnable, make_module, model_batch):
    """Without dropout the packed loss equals one computed from the padded forward pass."""
    changes = {"fusion": fusion, "auxiliary_target": target, "learnable_memberships": learnable}
    module = make_module(published, feature_dropout=1.0, **changes)
    batch = model_batch(module)
    output = module(batch)
    mask = batch["mask_input_BT" if published else "mask_target_BT"]
    scores, targets = output.scores_BTV[mask], batch["target_ids_BT"][mask]
    parts = {
        "token_loss": token_loss(scores, targets, label_smoothing=0.02),
        "uniformizer_loss": uniformizer_loss(scores, targets, (module.positive_ids, module.negative_ids)),
    }
    expected = parts["token_loss"] + 0.01 * parts["uniformizer_loss"]
    if fusion:
        logits = module.auxiliary(output.hidden_BTD[mask])
        wanted = output.features_BTF if target == "current" else output.aux_target_BTF
        parts["auxiliary_loss"] = auxiliary_loss(logits, wanted[mask])
        expected = expected + 0.5 * parts["auxiliary_loss"]
    losses = module.losses(batch)
    assert set(losses) == {"loss", *parts}
    for name, value in parts.items():
        assert losses[name].item() == pytest.approx(value.item(), rel=1e-5), name
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_training_input_is_the_batch_with_hindsight_controls(make_module, model_batch):
    module = make_module(feature_dropout=0.5)
    batch, weights = model_batch(module), module.weights
    module.channel_generator.manual_seed(9)
    drawn = module.losses(batch)["loss"]
    asked = drop_and_replace(
        batch["features_BTF"],
        batch["hindsight_BTF"],
        feature_dropout=0.5,
        generator=torch.Generator().manual_seed(9),
    )
    module.feature_dropout = 1.0
    # the auxiliary target stays what the tokens say, so only the input may change
    module.weights = dataclasses.replace(weights, auxiliary_weight=0.0)
    plain = module.losses({**batch, "features_BTF": asked})
    module.weights, module.feature_dropout = weights, 0.5
    module.channel_generator.manual_seed(9)
    again = module.losses(batch)
    assert float(again["loss"]) == float(drawn)
    assert float(again["token_loss"]) == pytest.approx(float(plain["token_loss"]), rel=1e-6)
    module.feature_dropout = 1.0
    assert float(module.losses(batch)["token_loss"]) != pytest.approx(float(again["token_loss"]), rel=1e-6)


@REGIMES
def test_features_come_from_the_ids_where_the_corpus_was_not_transformed(published, make_module, model_batch):
    module = make_module(published).eval()
    batch = model_batch(module)
    bare = {name: value for name, value in batch.items() if name not in ("features_BTF", "hindsight_BTF")}
    assert torch.equal(module(batch).scores_BTV, module(bare).scores_BTV)


@REGIMES
@pytest.mark.parametrize("learnable", [False, True])
def test_next_auxiliary_target_is_the_feature_vector_one_on(published, learnable, make_module, model_batch):
    module = make_module(published, auxiliary_target="next", learnable_memberships=learnable).eval()
    batch = model_batch(module)
    output = module(batch)
    features, target = output.features_BTF, output.aux_target_BTF
    counted = batch["mask_target_BT"][:, :-1]
    assert torch.equal(target[:, :-1][counted], features[:, 1:][counted])
    # the published mask counts a target that is padding: it has no features
    padding = batch["mask_input_BT"] & ~batch["mask_target_BT"]
    assert padding.any() and not target[padding].any()


@pytest.mark.parametrize("auxiliary_target", ["current", "next"])
def test_learnable_memberships_start_where_the_fixed_are_and_are_not_pulled_by_their_own_target(
    auxiliary_target, make_module, model_batch
):
    options = {"auxiliary_target": auxiliary_target, "feature_dropout": 1.0}
    fixed, learnable = make_module(**options).eval(), make_module(learnable_memberships=True, **options).eval()
    one, other = fixed(model_batch(fixed)), learnable(batch := model_batch(learnable))
    assert torch.allclose(one.scores_BTV, other.scores_BTV, atol=1e-4)
    assert torch.allclose(one.features_BTF, other.features_BTF, atol=1e-5)
    assert not other.aux_target_BTF.requires_grad
    learnable.losses(batch)["loss"].backward()
    moved = learnable.memberships.raw_temperature_31.grad
    assert moved.abs().sum() > 0
    for parameter in learnable.fuse.project.parameters():
        nn.init.zeros_(parameter)
    learnable.zero_grad()
    learnable.losses(batch)["auxiliary_loss"].backward()
    grad = learnable.memberships.raw_temperature_31.grad
    # with the features cut off from the network, the target alone must not teach them
    assert grad is None or not grad.any()


@pytest.mark.parametrize("fusion", [True, False])
def test_cached_generation_steps_equal_the_full_pass(fusion, make_module, model_batch):
    module = make_module(fusion=fusion).eval()
    batch = model_batch(module)
    with torch.no_grad():
        full, stepped = module(batch).scores_BTV, prefix_scores(module, batch["input_ids_BT"])
    mask = batch["mask_input_BT"]
    assert torch.allclose(full[mask], stepped[mask], atol=1e-5)


@pytest.mark.parametrize("fusion", [True, False])
def test_published_generation_recomputes_the_prefix_as_a_sentence(fusion, make_module, model_batch):
    module = make_module(True, fusion=fusion).eval()
    batch = model_batch(module, size=8)
    ids = batch["input_ids_BT"][:, :7]
    with torch.no_grad():
        stepped = prefix_scores(module, ids)
        for t in range(ids.shape[1]):
            prefix = ids[:, : t + 1]
            bare = {"input_ids_BT": prefix, "mask_input_BT": torch.ones_like(prefix, dtype=torch.bool)}
            if fusion:
                aligned = torch.full((len(prefix),), t + 2)
                bare["features_BTF"] = module._feature_parts(prefix, aligned)["features_BTF"]
            assert torch.allclose(stepped[:, t], module(bare).scores_BTV[:, -1], atol=1e-5)
        assert not torch.allclose(stepped, module(batch).scores_BTV[:, :7], atol=1e-2)


@pytest.mark.parametrize(("fusion", "aux"), [*itertools.product([True, False], ["current", "next"])])
def test_corrected_passes_the_probe(fusion, aux, make_module, model_batch):
    module = make_module(fusion=fusion, auxiliary_target=aux).eval()
    found = probe(module, model_batch(module), transform=module.corpus_transform, pad_id=0)
    assert found.is_causal


@pytest.mark.parametrize(
    "changes",
    [{"causal": False}, {"prefix_only_features": False}, {"causal": False, "fusion": False}],
    ids=["no mask", "leaking features alone", "baseline without mask"],
)
def test_the_probe_catches_each_published_leak(changes, make_module, model_batch):
    module = make_module(**changes).eval()
    found = probe(module, model_batch(module), transform=module.corpus_transform, pad_id=0)
    assert not found.is_causal


def test_features_of_a_control_reach_the_network_in_bank_order(make_module):
    """A hook on the fusion sees the control's value in the column of its name."""
    module = make_module().eval()
    seen = []
    module.fuse.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].clone()))
    module.step(torch.ones(2, 1, dtype=torch.long), module.start(2, [{"str_med": 0.6}, {}]))
    (features,) = seen
    controlled = {name: float(features[0, COLUMN[name]]) for name in NAMES if name.startswith("str_")}
    assert controlled == pytest.approx({"str_low": 0.0, "str_med": 0.6, "str_high": 0.0})
    assert float(features[1, COLUMN["str_low"]]) == pytest.approx(0.9 ** (0.2 / 0.35))


def test_words_of_the_vocabulary_count_by_what_it_says_of_them(make_module, vocabulary):
    assert len(make_module().positive_ids) == 5
    known = ClauseVocabulary(held_out=("great", "terrible"))
    ids = make_module(vocabulary=known, uniformizer_words="trained").positive_ids.tolist()
    assert known.id("great") not in ids and len(ids) == 4
    assert len(make_module(vocabulary=known).positive_ids) == 5
    known = ClauseVocabulary({"intensifier": {"barely": 0.35, "rather": 0.65, "incredibly": 0.66}})
    for word, name in (("barely", "str_low"), ("rather", "str_med"), ("incredibly", "str_high"), ("very", "str_high")):
        ids_NT = torch.tensor([[1, *known.encode(f"Alice cooks the meal, {word} good."), 2]])
        table_NTF = hindsight(ids_NT, known)
        assert {n for n in GROUPS["strength"] if table_NTF[0, 0, COLUMN[n]]} == {name}


def test_centres_ascend_and_the_backbone_is_as_causal_as_the_model(make_module, vocabulary):
    for centres in ([1.0, 0.6, 0.2], [0.2, 0.6]):
        with pytest.raises(UserError, match="membership_centres"):
            make_module(membership_centres=centres)
    backbone = make_module().backbone
    with pytest.raises(UserError, match="causal"):
        make_module(backbone=backbone, causal=False)
