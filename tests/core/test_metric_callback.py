from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity


def test_results_and_history_are_the_metric_of_the_whole_split(tiny, trainer_of) -> None:
    module, data = tiny()
    callback = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer = trainer_of(callback, max_epochs=2)
    trainer.fit(module, data)
    trainer.validate(module, data, verbose=False)

    module.eval()
    nats, count = 0.0, 0
    for batch in data.rows:
        scores_BTV = module(batch).scores_BTV.double().log_softmax(-1)
        picked_BT = scores_BTV.gather(-1, batch["target_ids_BT"].unsqueeze(-1))
        nats, count = nats - float(picked_BT.detach().sum()), count + picked_BT.numel()
    result = callback.results["val/perplexity"]
    assert result["value"] == pytest.approx(math.exp(nats / count), rel=1e-9)
    assert result["n"] == count
    epochs = [epoch for epoch, _ in callback.history["val/perplexity"]]
    assert epochs == [1, 2]
    assert callback.history["val/perplexity"][-1][1] == pytest.approx(result["value"], rel=1e-9)
    assert float(trainer.callback_metrics["val/perplexity"]) == pytest.approx(result["value"], rel=1e-5)


def test_lightning_s_check_before_the_first_epoch_is_none(tiny, trainer_of) -> None:
    module, data = tiny()
    callback = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer_of(callback, max_epochs=2, num_sanity_val_steps=1).fit(module, data)
    assert [epoch for epoch, _ in callback.history["val/perplexity"]] == [1, 2]


def test_the_history_survives_a_restart() -> None:
    callback = MetricCallback({})
    callback.history = {"val/perplexity": [[1, 3.0]]}
    other = MetricCallback({})
    other.load_state_dict(callback.state_dict())
    assert other.history == callback.history


def test_a_metric_with_a_bind_method_is_told_about_the_data(tiny, trainer_of) -> None:
    seen = {}

    class Bound(Perplexity):
        def bind(self, datamodule, module=None):
            seen["datamodule"] = datamodule
            return self

    module, data = tiny()
    trainer_of(MetricCallback({"perplexity": Bound(mask="target")})).validate(module, data, verbose=False)
    assert seen["datamodule"] is data


def test_sums_start_anew_every_epoch(tiny, trainer_of) -> None:
    module, data = tiny()
    callback = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer = trainer_of(callback)
    trainer.validate(module, data, verbose=False)
    first = callback.results["val/perplexity"]["value"]
    with torch.no_grad():
        module.embedding.weight.mul_(3)
    trainer.validate(module, data, verbose=False)
    assert callback.results["val/perplexity"]["value"] != first
    assert callback.results["val/perplexity"]["n"] == sum(batch["target_ids_BT"].numel() for batch in data.rows)


def test_several_numbers_are_named_after_their_metric_and_what_is_none_is_told() -> None:
    one, logged = MetricResult(2.0, "rate", "higher", 3, None, 1), {}
    metrics = {
        "pair": SimpleNamespace(result=lambda: {"a": one, "b": one}),
        "single": SimpleNamespace(result=lambda: one),
    }
    callback = MetricCallback(metrics)
    trainer, module = SimpleNamespace(state=SimpleNamespace(fn="validate")), SimpleNamespace(log_dict=logged.update)
    callback.on_validation_epoch_end(trainer, module)
    assert list(callback.results) == ["val/pair/a", "val/pair/b", "val/single"] == list(logged)
    assert callback.history == {}
    with pytest.raises(UserError, match=r"metric odd: result\(\) must give a MetricResult"):
        MetricCallback({"odd": SimpleNamespace(result=lambda: 2.0)}).on_validation_epoch_end(trainer, module)
