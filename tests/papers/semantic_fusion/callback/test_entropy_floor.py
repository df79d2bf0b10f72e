from __future__ import annotations

from types import SimpleNamespace

from lit_ctg.papers.semantic_fusion.entropy_floor import EntropyFloorCallback


def test_floors_of_the_data_module_go_into_the_record(tiny, trainer_of) -> None:
    module, data = tiny()
    data.entropy_floor = lambda split: SimpleNamespace(
        metrics=lambda: {"floor/perplexity": 2.5 if split == "val" else 0}
    )
    callback = EntropyFloorCallback()
    trainer_of(callback).validate(module, data, verbose=False)
    entry = callback.results["floor/perplexity"]
    assert (entry["value"], entry["direction"], entry["ci95"]) == (2.5, "none", None)


def test_real_text_has_no_floor(tiny, trainer_of) -> None:
    module, data = tiny()
    callback = EntropyFloorCallback()
    trainer_of(callback).validate(module, data, verbose=False)
    assert callback.results == {}
