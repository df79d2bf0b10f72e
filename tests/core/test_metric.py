from __future__ import annotations

import copy
import json
import math
import os
import pickle
import subprocess
import sys
import textwrap
import warnings

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torchmetrics import MeanMetric, MetricCollection

from lit_ctg.core.metric import LitMetric, RateMetric, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.metric.control_success import ControlSuccess
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.numbers import format_value
from lit_ctg.papers.semantic_fusion.metrics import (
    FocusCE,
    OodHitRate,
    PolarityConfusion,
    SeenOnlyPerplexity,
    SemanticMSE,
    SemanticMSEConstant,
)

BATCH_METRICS = {
    "perplexity": lambda: Perplexity(mask="target"),
    "perplexity_input": lambda: Perplexity(mask="input"),
    "seen_only": lambda: SeenOnlyPerplexity(held_out_ids=[2, 3, 5]),
    "semantic_mse": lambda: SemanticMSE(),
    "semantic_mse_constant": lambda: SemanticMSEConstant(num_features=4),
    "focus_ce": lambda: FocusCE(tokens=["a", "b", "c"], token_ids=[1, 4, 7]),
}
TRIAL_METRICS = {
    "control": (ControlSuccess, [([True, False, True],), ([True],)]),
    "ood": (lambda: OodHitRate(held_out_ids=[3, 4]), [([3, 1, -1],), ([4, 4],)]),
    "confusion": (PolarityConfusion, [([0, 1, 1], [0, 2, 1]), ([0], [1])]),
}


def numbers(result):
    """All numbers of a result, flat."""
    named = result if isinstance(result, dict) else {"": result}
    rows = [(r.value, r.n, *(r.ci95 or ())) for _, r in sorted(named.items())]
    return [number for row in rows for number in row]


def values(result):
    named = result if isinstance(result, dict) else {"": result}
    return [r.value for _, r in sorted(named.items())]


@pytest.mark.parametrize("name", BATCH_METRICS)
def test_sum_over_batches_equals_one_batch(name, make_batch, split):
    output, batch = make_batch(sentences=12)
    whole, parts = BATCH_METRICS[name](), BATCH_METRICS[name]()
    whole.update_from(output, batch)
    for piece in split(output, batch, 5):
        parts.update_from(*piece)
    assert numbers(parts.result()) == pytest.approx(numbers(whole.result()), rel=1e-9)
    assert all(math.isfinite(value) for value in values(whole.result()))


@pytest.mark.parametrize("name", BATCH_METRICS)
def test_merge_state_adds_two_metrics(name, make_batch, split):
    output, batch = make_batch(sentences=12)
    whole, first, second = (BATCH_METRICS[name]() for _ in range(3))
    whole.update_from(output, batch)
    for metric, piece in zip((first, second), split(output, batch, 7), strict=True):
        metric.update_from(*piece)
        metric.compute()  # a cached value must not outlive the merge
    first.merge_state(second)
    assert numbers(first.result()) == pytest.approx(numbers(whole.result()), rel=1e-9)
    merged = first.compute()
    merged = list(merged.values()) if isinstance(merged, dict) else [merged]
    assert sorted(map(float, merged)) == pytest.approx(sorted(values(whole.result())), rel=1e-9)


@pytest.mark.parametrize("name", TRIAL_METRICS)
def test_merge_state_adds_two_trial_metrics(name):
    make, updates = TRIAL_METRICS[name]
    whole, first, second = make(), make(), make()
    for metric, update in zip((first, second), updates, strict=True):
        metric.update(*update)
        whole.update(*update)
    first.merge_state(second)
    assert numbers(first.result()) == numbers(whole.result())
    # torchmetrics warns of a metric that was never updated
    for state in (whole, {name: getattr(whole, name) for name in whole._defaults}):
        merged = make()
        merged.merge_state(state)
        with warnings.catch_warnings(action="error"):
            merged.compute()


@pytest.mark.parametrize("name", BATCH_METRICS)
def test_nothing_counted_is_nan_with_n_zero(name, make_batch):
    output, batch = make_batch()
    nothing = {k: torch.zeros_like(v) if k.startswith("mask") else v for k, v in batch.items()}
    fed, untouched = BATCH_METRICS[name](), BATCH_METRICS[name]()
    fed.update_from(output, nothing)
    for metric in (fed, untouched):
        result = metric.result()
        for one in result.values() if isinstance(result, dict) else [result]:
            assert math.isnan(one.value) and one.n == 0 and one.ci95 is None


@pytest.mark.parametrize("name", BATCH_METRICS)
def test_results_are_plain_and_torchmetrics_value_agrees(name, make_batch):
    metric = BATCH_METRICS[name]()
    metric.update_from(*make_batch())
    result, value = metric.result(), metric.compute()
    if not isinstance(result, dict):
        result, value = {"": result}, {"": value}
    for key, one in result.items():
        assert type(one) is MetricResult and type(one.value) is float and type(one.n) is int
        assert value[key].dtype == torch.float64 and float(value[key]) == one.value
        json.dumps(one.to_dict())
        if one.ci95 is not None:
            assert one.ci95[0] < one.value < one.ci95[1]


@pytest.mark.parametrize("name", BATCH_METRICS)
def test_states_stay_float64_and_survive_copy_and_inference_mode(name, make_batch):
    metric = BATCH_METRICS[name]()
    for changed in (metric.half(), metric.to(torch.bfloat16), metric.set_dtype(torch.float32)):
        assert all(getattr(changed, state).dtype == torch.float64 for state in changed._defaults)
    with torch.inference_mode():
        metric.reset()
        metric.update_from(*make_batch(seed=0))
    metric.update_from(*make_batch(seed=1))  # outside of inference mode again
    expected = numbers(metric.result())
    assert numbers(copy.deepcopy(metric).result()) == expected
    assert numbers(pickle.loads(pickle.dumps(metric)).result()) == expected
    metric.reset()
    assert all(getattr(metric, state).dtype == torch.float64 for state in metric._defaults)


@pytest.mark.parametrize("name", [*BATCH_METRICS, *TRIAL_METRICS])
def test_plot_shows_the_result(name, make_batch):
    if name in BATCH_METRICS:
        metric = BATCH_METRICS[name]()
        metric.update_from(*make_batch())
    else:
        make, updates = TRIAL_METRICS[name]
        metric = make()
        metric.update(*updates[0])
    figure, own = plt.subplots()
    assert metric.plot(ax=own) == (figure, own)
    result = metric.result()
    values = [r.value for r in result.values()] if isinstance(result, dict) else [result.value]
    shown = [text.get_text().strip() for text in own.texts]
    plt.close(figure)
    if name == "confusion":
        assert [float(word.split()[0]) for word in shown] == [
            count for row in metric.compute().tolist() for count in row
        ]
    else:
        # behind each label the number
        assert shown[1::2] == [format_value(value, 3) if math.isfinite(value) else str(value) for value in values]


class Rate(RateMetric):
    def update(self, *args, **kwargs): ...


def test_a_collection_plots_ours_beside_others():
    """As torchmetrics calls it: values of ``compute``, axes given or made, one value or several moments."""
    both = MetricCollection({"ours": Rate(), "counts": PolarityConfusion(), "other": MeanMetric()})
    both["ours"].add_trials(torch.tensor([True, False]))
    both["counts"].update([0, 1], [0, 2])
    both["other"].update(2.0)
    _, three = plt.subplots(1, 3)
    for drawn in (both.plot(ax=list(three)), both.plot([both.compute(), both.compute()], ax=list(three)), both.plot()):
        assert len(drawn) == 3 and all(isinstance(axes, Axes) for _, axes in drawn)
        ours = [figure for figure, axes in drawn if axes.get_title(loc="left") in ("Rate", "PolarityConfusion")]
        assert len(ours) == 2 and all(isinstance(figure, Figure) for figure in ours)
    plt.close("all")


def test_a_result_within_the_merged_states_merges_no_second_time(make_batch) -> None:
    metric = Perplexity(dist_sync_fn=lambda state, group: [state, state], distributed_available_fn=lambda: True)
    metric.update_from(*make_batch())
    own = int(metric.count)
    with metric.merged():
        assert metric.number().n == int(metric.count) == 2 * own
    assert metric.number().n == 2 * own and int(metric.count) == own


# --- token_nll ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_token_nll_against_the_loop(dtype, scale, make_batch, counted_nlls):
    output, batch = make_batch(scale=scale, dtype=dtype)
    got = token_nll(output.scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
    assert got.dtype == torch.float64
    expected = [value for _, value in counted_nlls(output, batch, "target")]
    assert got[batch["mask_target_BT"]].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert torch.isfinite(got).all() and (got[~batch["mask_target_BT"]] == 0).all()


def test_token_nll_of_log_probabilities_equals_that_of_logits(make_batch):
    output, batch = make_batch(dtype=torch.float64)
    args = batch["target_ids_BT"], batch["mask_target_BT"]
    torch.testing.assert_close(
        token_nll(output.scores_BTV.log_softmax(-1), *args), token_nll(output.scores_BTV, *args), rtol=1e-12, atol=1e-12
    )


def test_token_nll_is_the_same_for_every_chunk_size(make_batch):
    output, batch = make_batch()
    args = output.scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"]
    for chunk in (1, 30, 10_000):
        assert torch.equal(token_nll(*args, chunk=chunk), token_nll(*args))


def test_token_nll_never_reads_masked_positions(make_batch):
    output, batch = make_batch()
    mask = batch["mask_target_BT"]
    clean = token_nll(output.scores_BTV, batch["target_ids_BT"], mask)
    spoiled = output.scores_BTV.masked_fill(~mask.unsqueeze(-1), float("nan"))
    targets = batch["target_ids_BT"].masked_fill(~mask, -100)
    assert (~mask).any()
    assert torch.equal(token_nll(spoiled, targets, mask), clean)


def test_token_nll_of_a_forbidden_target_is_infinite():
    scores = torch.tensor([[[0.0, float("-inf")], [0.0, float("-inf")]]])
    got = token_nll(scores, torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool))
    assert got.tolist() == [[0.0, math.inf]]


def test_token_nll_refuses_what_does_not_fit(make_batch):
    output, batch = make_batch()
    mask = batch["mask_target_BT"]
    with pytest.raises(ValueError, match="do not fit"):
        token_nll(output.scores_BTV[:, :-1], batch["target_ids_BT"], mask)
    with pytest.raises(ValueError, match="do not fit"):
        token_nll(output.scores_BTV, batch["target_ids_BT"], mask[:, :-1])
    assert mask[0, 0]
    for wrong in (-1, 13):
        targets = batch["target_ids_BT"].clone()
        targets[0, 0] = wrong
        with pytest.raises(ValueError, match="outside the 13 scores"):
            token_nll(output.scores_BTV, targets, mask)


# --- two processes ---

# runs as a program of its own: a forked test process would inherit torch's threads
WORKER = """
    import json, sys
    import torch
    import torch.distributed as dist
    from lit_ctg.papers.semantic_fusion.metrics import FocusCE
    from lit_ctg.metric.perplexity import Perplexity
    from lit_ctg.papers.semantic_fusion.metrics import PolarityConfusion
    from lit_ctg.papers.semantic_fusion.metrics import SemanticMSEConstant

    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    data = torch.load(f"{folder}/data.pt")
    metrics = {
        "perplexity": Perplexity(),
        "focus": FocusCE(tokens=["a", "b"], token_ids=[1, 4]),
        "constant": SemanticMSEConstant(num_features=4),
        "confusion": PolarityConfusion(),
    }
    rows = slice(0, 3) if rank == 0 else slice(3, None)
    scores, targets, mask = (data[key][rows] for key in ("scores", "targets", "mask"))
    metrics["perplexity"].update(scores, targets, mask)
    metrics["focus"].update(scores, targets, mask)
    metrics["confusion"].update(data["intended"][rows], data["realized"][rows])
    if rank == 1:  # the other process has seen nothing of this one
        metrics["constant"].update(data["features"], data["mask"])
    dump = {}
    for name, metric in metrics.items():
        local = {state: getattr(metric, state).clone() for state in metric._defaults}
        result = metric.result()
        value = metric.compute()
        named = result if isinstance(result, dict) else {"": result}
        dump[name] = {key: one.to_dict() for key, one in named.items()}
        if torch.is_tensor(value) and value.ndim == 0:
            assert float(value) == result.value
        # after the result each process has its own sums back and can go on
        assert all(torch.equal(getattr(metric, state), kept) for state, kept in local.items())
    with open(f"{folder}/{rank}.json", "w") as handle:
        json.dump(dump, handle)
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_two_processes_give_the_result_of_one(tmp_path, make_batch):
    output, batch = make_batch(sentences=8)
    gen = torch.Generator().manual_seed(5)
    intended, realized = torch.randint(0, 3, (2, 8), generator=gen)
    data = {
        "scores": output.scores_BTV, "targets": batch["target_ids_BT"], "mask": batch["mask_target_BT"],
        "features": output.aux_target_BTF, "intended": intended, "realized": realized,
    }  # fmt: skip
    torch.save(data, tmp_path / "data.pt")
    perplexity, focus = Perplexity(), FocusCE(tokens=["a", "b"], token_ids=[1, 4])
    constant, confusion = SemanticMSEConstant(num_features=4), PolarityConfusion()
    for metric in (perplexity, focus):
        metric.update(data["scores"], data["targets"], data["mask"])
    constant.update(data["features"], data["mask"])
    confusion.update(intended, realized)
    one: dict[str, LitMetric] = {
        "perplexity": perplexity, "focus": focus, "constant": constant, "confusion": confusion
    }  # fmt: skip

    command = [sys.executable, "-c", textwrap.dedent(WORKER)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    for rank in range(2):
        got = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, metric in one.items():
            result = metric.result()
            named = result if isinstance(result, dict) else {"": result}
            assert list(got[name]) == list(named)
            for key, expected in named.items():
                assert got[name][key]["n"] == expected.n > 0 or name == "confusion"
                assert got[name][key]["value"] == pytest.approx(expected.value, rel=1e-12)
                if expected.ci95 is not None:
                    assert got[name][key]["ci95"] == pytest.approx(expected.ci95, rel=1e-9)
