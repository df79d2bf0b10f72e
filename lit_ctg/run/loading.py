"""``lit_ctg.load``: a model and its data in Python, for a Trainer of Lightning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lit_ctg.config import compose, experiments, quoted
from lit_ctg.core.build import build_datamodule, equip
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.run.build import build_model
from lit_ctg.run.checkpoint import compose_with_checkpoint
from lit_ctg.run.corpus import fingerprint, given_weights
from lit_ctg.run.waiting import prepared
from lit_ctg.terminal import Console


def load(name: str | Path, *words: str, **settings: Any) -> tuple[Any, Any]:
    """Return the model and the data module of an experiment, or those of a run with the trained weights.

    ``model, data = lit_ctg.load("semantic_fusion/main", size="small", seed=0)``, then
    ``lightning.Trainer(max_epochs=2).fit(model, data)``. The model logs ``val/loss``, ``test/loss`` and the metrics of
    the experiment. Its checkpoints are those of ``lit-ctg train``: commands and ``load_from_checkpoint`` read them.

    Args:
        name: of an experiment (``lit-ctg list``), a run directory, or a checkpoint.
        words: settings as on the command line: ``"model.gate=false"``.
        settings: the same as arguments: ``seed=0``, ``**{"model.gate": False}``.

    Raises:
        UserError: no such experiment or checkpoint, or a setting that does not fit.
    """
    given = [*words, *(f"{key}={_value(value)}" for key, value in settings.items())]
    checkpoint = None
    if str(name) not in experiments() and Path(name).exists():
        cfg, checkpoint = compose_with_checkpoint([str(name), *given])
    else:
        cfg = compose([f"experiment={name}", *given])
    data = build_datamodule(cfg)
    if isinstance(data, CorpusDataModule):
        prepared(data, Console(stderr=True))
    model = build_model(cfg, data)
    if checkpoint is not None:
        checkpoint.load_into(model, data)
        model.train()
    equip(model, data, cfg, {**fingerprint(data), **given_weights(model)})
    return model, data


def _value(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, str | Path):
        return str(value) if re.fullmatch(r"[\w./:-]+", str(value)) else quoted(str(value))
    return json.dumps(value)
