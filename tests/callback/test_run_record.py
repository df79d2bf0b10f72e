from __future__ import annotations

from types import SimpleNamespace

import torch
from lightning import Callback

from lit_ctg.callback.run_record import RunRecordCallback, peak_memory_mb


def test_tokens_are_counted_over_all_attempts(tiny, trainer_of) -> None:
    module, data = tiny()
    callback = RunRecordCallback()
    trainer_of(callback).fit(module, data)
    once = sum(int(batch["mask_target_BT"].sum()) for batch in data.rows)
    assert int(callback.tokens) == once
    resumed = RunRecordCallback()
    resumed.load_state_dict(callback.state_dict())
    trainer_of(resumed).fit(module, data)
    assert int(resumed.tokens) == 2 * once
    assert resumed.fit_seconds > callback.fit_seconds > 0


def test_results_of_all_callbacks_are_gathered(tiny, trainer_of) -> None:
    module, data = tiny()
    callback, other = RunRecordCallback(), Callback()
    other.results = {"val/x": {"value": 1.0}}
    other.history = {"val/x": [[1, 2.0]]}
    other.samples = [{"text": "a"}]
    third = Callback()
    third.results, third.samples = {"val/y": {"value": 3.0}}, [{"text": "b"}]
    trainer = trainer_of(callback, other, third)
    trainer.fit(module, data)
    results = {"val/x": {"value": 1.0}, "val/y": {"value": 3.0}}
    assert callback.collect(trainer) == (results, {"val/x": [[1, 2.0]]}, [{"text": "a"}, {"text": "b"}])


def test_the_clock_starts_with_the_training_and_a_checkpoint_inside_it_has_its_seconds(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("lit_ctg.callback.run_record.time", SimpleNamespace(monotonic=lambda: now[0]))
    callback = RunRecordCallback()
    callback.load_state_dict({"seconds": 5.0, "tokens": 7})
    now[0] += 1000  # the data are loaded meanwhile
    callback.on_fit_start(None, SimpleNamespace(device=torch.device("meta")))
    assert callback.tokens.device.type == "meta", "counted where the batches are"
    now[0] += 30
    callback.load_state_dict({"seconds": 5.0, "tokens": 7})
    assert callback.state_dict() == {"seconds": 35.0, "tokens": 7}


def test_memory_is_measured() -> None:
    assert 10 < peak_memory_mb() < 1e6


def test_tokens_that_count_are_added_up_over_processes() -> None:
    callback = RunRecordCallback()
    mask_BT = torch.tensor([[True, True, False], [True, False, False]])
    for batch in ({"mask_target_BT": mask_BT}, {"input_ids_BT": mask_BT}, mask_BT):
        callback.on_train_batch_end(None, None, None, batch, 0)
    assert int(callback.tokens) == 3, "a batch without targets has none"
    two_processes = SimpleNamespace(reduce=lambda tokens, reduce_op: {"sum": 2 * tokens}[reduce_op])
    callback.on_fit_end(SimpleNamespace(strategy=two_processes), None)
    assert int(callback.tokens) == 6
