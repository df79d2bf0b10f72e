from __future__ import annotations

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
    trainer = trainer_of(callback, other)
    trainer.fit(module, data)
    assert callback.collect(trainer) == ({"val/x": {"value": 1.0}}, {"val/x": [[1, 2.0]]}, [{"text": "a"}])


def test_memory_is_measured() -> None:
    assert 10 < peak_memory_mb() < 1e6
