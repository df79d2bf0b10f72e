"""The experiment files: what the paper and the authors' code state, at size=paper, and where the regimes differ."""

from __future__ import annotations

from lit_ctg.build import build_datamodule
from lit_ctg.config import compose


def test_published_validation_is_five_random_batches_and_corrected_the_whole_split(tmp_path) -> None:
    def validation(regime: str, seed: int = 0) -> tuple[float, list[int]]:
        words = ["experiment=idea_gate/main", f"regime={regime}", f"seed={seed}", f"+data.cache_root={tmp_path}"]
        cfg = compose([*words, "data.steps_per_epoch=5"])
        batches = list(build_datamodule(cfg).val_dataloader())
        return cfg.trainer.limit_val_batches, [int(batch["input_ids_BT"][0, 0]) for batch in batches]

    limit, published = validation("as_published")
    assert limit == 5 and len(published) == 5 and published != validation("as_published", seed=1)[1]
    limit, corrected = validation("corrected")
    assert limit == 1.0 and isinstance(limit, float) and corrected == validation("corrected", seed=1)[1]
    assert published != corrected[:5]
