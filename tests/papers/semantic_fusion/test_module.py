"""The module: fusion off equals the bare network, losses restated, regimes, generation steps, control, checkpoints."""

from __future__ import annotations

import itertools

import lightning
import pytest
import torch
from torch import nn

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.channel import drop_and_replace
from lit_ctg.papers.semantic_fusion.features import COLUMN, NAMES
from lit_ctg.papers.semantic_fusion.losses import auxiliary_loss, token_loss, uniformizer_loss
from lit_ctg.papers.semantic_fusion.prefix_evaluation import prefix_scores

REGIMES = pytest.mark.parametrize("published", [True, False], ids=["as published", "corrected"])


@REGIMES
def test_output_has_the_contracts_shapes_and_is_zero_at_padding(published, make_module, make_batch):
    module = make_module(published).eval()
    batch = make_batch(module)
    output = module(batch)
    size, width = batch["input_ids_BT"].shape
    assert output.scores_BTV.shape == (size, width, 41)
    assert output.hidden_BTD.shape == (size, width, 16)
    for name in ("features_BTF", "aux_BTF", "aux_target_BTF"):
        assert output.extras[name].shape == (size, width, 22)
    padding = ~batch["mask_input_BT"]
    assert padding.any()
    for values in (output.scores_BTV, output.hidden_BTD, output.extras["features_BTF"]):
        assert not values[padding].any()


@REGIMES
def test_with_fusion_weights_zero_it_is_the_baseline_exactly(published, make_module, make_batch):
    fusion, baseline = make_module(published).eval(), make_module(published, fusion=False).eval()
    batch = make_batch(fusion)
    assert not torch.allclose(fusion(batch).scores_BTV, baseline(batch).scores_BTV)
    for parameter in fusion.fuse.project.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(fusion(batch).scores_BTV, baseline(batch).scores_BTV)


@REGIMES
def test_baseline_and_fusion_of_one_seed_start_from_the_same_shared_values(published, make_module):
    fusion, baseline = make_module(published).state_dict(), make_module(published, fusion=False).state_dict()
    assert set(baseline) < set(fusion)
    assert all(torch.equal(value, fusion[name]) for name, value in baseline.items())
    other = make_module(published, seed=6).state_dict()
    assert not torch.equal(other["embedding.weight"], fusion["embedding.weight"])
    assert not torch.equal(other["fuse.project.weight"], fusion["fuse.project.weight"])


def test_building_the_extras_leaves_the_dropout_stream_where_it_was(make_module):
    make_module(fusion=False)
    after_baseline = torch.rand(3)
    make_module()
    assert torch.equal(torch.rand(3), after_baseline)


@REGIMES
@pytest.mark.parametrize("std", [1.0, 0.02])
def test_embedding_starts_at_the_asked_scale(published, std, make_module):
    weight = make_module(published, embedding_std=std).embedding.weight
    assert float(weight.detach().std()) == pytest.approx(std, rel=0.1)


def test_the_head_is_tied(make_module, make_batch):
    module = make_module().eval()
    output = module(batch := make_batch(module))
    mask = batch["mask_input_BT"]
    assert torch.allclose(output.scores_BTV[mask], output.hidden_BTD[mask] @ module.embedding.weight.T, atol=1e-6)
    assert not [name for name, _ in module.named_parameters() if "head" in name or "output" in name]


@REGIMES
@pytest.mark.parametrize("fusion", [True, False])
def test_loss_is_equation_5_over_the_masked_positions(published, fusion, make_module, make_batch):
    """Without dropout the packed loss equals one computed from the padded forward pass."""
    module = make_module(published, fusion=fusion, feature_dropout=1.0)
    batch = make_batch(module)
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
        parts["auxiliary_loss"] = auxiliary_loss(logits, output.extras["features_BTF"][mask])
        expected = expected + 0.5 * parts["auxiliary_loss"]
    losses = module.losses(batch)
    assert set(losses) == {"loss", *parts}
    for name, value in parts.items():
        assert float(losses[name]) == pytest.approx(float(value), rel=1e-5), name
    assert float(losses["loss"]) == pytest.approx(float(expected), rel=1e-5)


def test_the_published_mask_counts_one_pad_target_a_sentence(make_module, make_batch):
    batch = make_batch(make_module(True))
    extra = batch["mask_input_BT"].sum(1) - batch["mask_target_BT"].sum(1)
    assert (extra == 1).all()
    last = batch["target_ids_BT"][batch["mask_input_BT"] & ~batch["mask_target_BT"]]
    assert (last == 0).all()


def test_training_input_is_the_batch_with_hindsight_controls(make_module, make_batch):
    module = make_module(feature_dropout=0.5)
    batch = make_batch(module)
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
    module.auxiliary_weight = 0.0
    plain = module.losses({**batch, "features_BTF": asked})
    module.auxiliary_weight, module.feature_dropout = 0.5, 0.5
    module.channel_generator.manual_seed(9)
    again = module.losses(batch)
    assert float(again["loss"]) == float(drawn)
    assert float(again["token_loss"]) == pytest.approx(float(plain["token_loss"]), rel=1e-6)
    module.feature_dropout = 1.0
    assert float(module.losses(batch)["token_loss"]) != pytest.approx(float(again["token_loss"]), rel=1e-6)


def test_validation_never_sees_a_control(make_module, make_batch):
    module = make_module(feature_dropout=0.0).eval()
    batch = make_batch(module)
    without = {name: value for name, value in batch.items() if name != "hindsight_BTF"}
    assert torch.equal(module(batch).scores_BTV, module(without).scores_BTV)


@REGIMES
def test_features_come_from_the_ids_where_the_corpus_was_not_transformed(published, make_module, make_batch):
    module = make_module(published).eval()
    batch = make_batch(module)
    bare = {name: value for name, value in batch.items() if name not in ("features_BTF", "hindsight_BTF")}
    assert torch.equal(module(batch).scores_BTV, module(bare).scores_BTV)


def test_next_auxiliary_target_is_the_feature_vector_one_on(make_module, make_batch):
    module = make_module(auxiliary_target="next").eval()
    batch = make_batch(module)
    extras = module(batch).extras
    features, target = extras["features_BTF"], extras["aux_target_BTF"]
    counted = batch["mask_target_BT"][:, :-1]
    assert torch.equal(target[:, :-1][counted], features[:, 1:][counted])


@pytest.mark.parametrize("auxiliary_target", ["current", "next"])
def test_learnable_memberships_start_where_the_fixed_are_and_are_not_pulled_by_their_own_target(
    auxiliary_target, make_module, make_batch
):
    options = {"auxiliary_target": auxiliary_target, "feature_dropout": 1.0}
    fixed, learnable = make_module(**options).eval(), make_module(learnable_memberships=True, **options).eval()
    one, other = fixed(make_batch(fixed)), learnable(batch := make_batch(learnable))
    assert torch.allclose(one.scores_BTV, other.scores_BTV, atol=1e-4)
    assert torch.allclose(one.extras["features_BTF"], other.extras["features_BTF"], atol=1e-5)
    assert not other.extras["aux_target_BTF"].requires_grad
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
def test_cached_generation_steps_equal_the_full_pass(fusion, make_module, make_batch):
    module = make_module(fusion=fusion).eval()
    batch = make_batch(module)
    with torch.no_grad():
        full, stepped = module(batch).scores_BTV, prefix_scores(module, batch["input_ids_BT"])
    mask = batch["mask_input_BT"]
    assert torch.allclose(full[mask], stepped[mask], atol=1e-5)


@pytest.mark.parametrize("fusion", [True, False])
def test_published_generation_recomputes_the_prefix_as_a_sentence(fusion, make_module, make_batch):
    module = make_module(True, fusion=fusion).eval()
    batch = make_batch(module, size=8)
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


def test_a_step_does_not_change_the_state_it_takes(make_module):
    for published in (True, False):
        module = make_module(published).eval()
        _, state = module.step(torch.ones(3, 1, dtype=torch.long), module.start(3, None))
        newest = torch.full((3, 1), 4)
        first, _ = module.step(newest, state)
        second, _ = module.step(newest, state)
        assert torch.equal(first, second)


def test_channel_control_acts_on_its_row_only_and_on_nothing_it_does_not_name(make_module):
    module = make_module().eval()
    ids = torch.tensor([[1, 3], [1, 3], [1, 3]])

    def scores(controls):
        state = module.start(3, controls)
        for column in ids.unbind(1):
            out, state = module.step(column[:, None], state)
        return out

    plain = scores(None)
    steered = scores([{}, {"pos_high": 0.9}, {"neg_high": 0.9}])
    assert torch.equal(plain[0], steered[0])
    assert not torch.allclose(plain[1], steered[1])
    assert not torch.allclose(steered[1], steered[2])
    assert torch.equal(scores([{}, {}, {}]), plain)


def test_which_models_have_a_channel(make_module):
    assert make_module().has_channel
    assert not make_module(fusion=False).has_channel
    assert not make_module(True).has_channel


@pytest.mark.parametrize(("fusion", "aux"), [*itertools.product([True, False], ["current", "next"])])
def test_corrected_passes_the_probe(fusion, aux, make_module, make_batch):
    module = make_module(fusion=fusion, auxiliary_target=aux).eval()
    found = probe(module, make_batch(module), transform=module.corpus_transform, pad_id=0)
    assert found.is_causal


@pytest.mark.parametrize(
    "changes",
    [{"causal": False}, {"prefix_only_features": False}, {"causal": False, "fusion": False}],
    ids=["no mask", "leaking features alone", "baseline without mask"],
)
def test_the_probe_catches_each_published_leak(changes, make_module, make_batch):
    module = make_module(**changes).eval()
    found = probe(module, make_batch(module), transform=module.corpus_transform, pad_id=0)
    assert not found.is_causal


def trainer(folder, **options) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(default_root_dir=folder, gradient_clip_val=1.0, **quiet, **options)


class Loader:
    """The same batch over and over."""

    def __init__(self, batch, times):
        self.batch, self.times = batch, times

    def __iter__(self):
        return iter([self.batch] * self.times)

    def __len__(self):
        return self.times


@REGIMES
def test_it_learns(published, make_module, make_batch, tmp_path):
    module = make_module(published, dropout=0.1, learning_rate=1e-2)
    batch = make_batch(module)
    before = float(module.losses(batch)["loss"])
    trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(module, Loader(batch, 60))
    after = module.losses(batch)
    assert float(after["loss"]) < 0.6 * before
    for parameter in (module.fuse.project.weight, module.auxiliary[0].weight, module.embedding.weight):
        assert torch.isfinite(parameter).all()


def test_channel_draws_are_a_function_of_seed_and_epoch(make_module):
    module = make_module()
    draws = []
    for epoch in (0, 1, 0):
        module.trainer = type("T", (), {"current_epoch": epoch})()
        module.on_train_epoch_start()
        draws.append(torch.rand(4, generator=module.channel_generator))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


@REGIMES
def test_a_checkpoint_holds_plain_values_and_restores_the_scores(published, make_module, make_batch, tmp_path):
    module = make_module(published, learning_rate=1e-2)
    batch = make_batch(module)
    run = trainer(tmp_path, max_epochs=1, enable_checkpointing=False)
    run.fit(module, Loader(batch, 3))
    run.save_checkpoint(tmp_path / "model.ckpt")
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)
    other = make_module(published, seed=77)
    other.load_state_dict(saved["state_dict"])
    module.eval()
    other.eval()
    assert torch.equal(module(batch).scores_BTV, other(batch).scores_BTV)


def test_optimiser_follows_the_regime(make_module, tmp_path):
    for published, groups in ((True, 1), (False, 2)):
        module = make_module(published)
        module.trainer = type("T", (), {"estimated_stepping_batches": 750})()
        made = module.configure_optimizers()
        decays = sorted({group["weight_decay"] for group in made["optimizer"].param_groups})
        assert decays == ([0.01] if published else [0.0, 0.01])
        assert len(made["optimizer"].param_groups) == groups
        counted = sum(p.numel() for group in made["optimizer"].param_groups for p in group["params"])
        assert counted == sum(p.numel() for p in module.parameters())
        rate = made["lr_scheduler"]["scheduler"].get_last_lr()[0]
        assert rate == pytest.approx(0.0 if published else 3e-4 / 75)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": "inptu"}, "loss_mask"),
        ({"auxiliary_target": "last"}, "auxiliary_target"),
        ({"feature_dropout": 1.5}, r"feature_dropout=1.5 is outside \[0, 1\]"),
        ({"label_smoothing": -0.1}, "label_smoothing"),
    ],
)
def test_options_that_do_not_exist_are_named(changes, message, make_module):
    with pytest.raises(UserError, match=message):
        make_module(**changes)


def test_backbone_and_module_must_agree_about_causality(make_module, vocabulary):
    module = make_module()
    options = dict(compose(["experiment=semantic_fusion/main"]).model)
    options.pop("_target_")
    with pytest.raises(UserError, match="set only"):
        type(module)(vocabulary=vocabulary, backbone=module.backbone, **(options | {"causal": False}))


def test_the_configuration_says_what_the_regimes_are():
    published, corrected = (
        compose(["experiment=semantic_fusion/main", f"regime={regime}"]) for regime in ("as_published", "corrected")
    )
    assert published.model.causal is published.backbone.causal is False
    assert corrected.model.causal is corrected.backbone.causal is True
    assert (published.model.loss_mask, corrected.model.loss_mask) == ("input", "target")
    assert (published.model.feature_dropout, corrected.model.feature_dropout) == (1.0, 0.5)
    assert published.model.embedding_std == 1.0
    for name in ("label_smoothing", "auxiliary_weight", "uniformizer_weight", "learning_rate", "weight_decay"):
        assert published.model[name] == corrected.model[name]


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
