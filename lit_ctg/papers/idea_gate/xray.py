"""X-ray of the gate: which tokens it boosts and which it suppresses after a prompt, and by what factor.

Source: idea gate, sec. 5.4 and Fig. 3. Shape letters: V vocabulary.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.figure import Bar, BarGroup, Drawing, bar_chart

COLUMNS = ("prompt", "kind", "token", "factor", "probability_before", "probability_after", "idea_probability")
BOOSTED, SUPPRESSED, NAMED = "boosted", "suppressed", "named"


@dataclass(frozen=True)
class Picture:
    """What the gate does after one prompt.

    Attributes:
        before_V, after_V: probability of each token without and with the gate, float64.
        idea_V: the idea head's probability that the token is coming.
        clamped: share of the vocabulary whose gate stands at its lower bound; 0 where the bound is out of reach.
    """

    before_V: Tensor
    after_V: Tensor
    idea_V: Tensor
    clamped: float

    @property
    def factor_V(self) -> Tensor:
        """After divided by before: the gate, exp(gate), over its mean under the token head.

        The gate itself is never above 0 (the logarithm of a probability), so a token is boosted only where the
        gate takes less from it than from the rest.
        """
        return self.after_V / self.before_V


class XRay(Callback):
    """Look at the gate in ``trainer.validate``, which ends every run; a model without a gate gives nothing.

    Args:
        prompts: name -> ``{prompt, words}``: where to look, and words whose factors are recorded. Of a word that is
            several tokens the first is taken.
        top: tokens shown at either end.
        minimum: tokens to which the token head gives less than this are not ranked: their factors say nothing of text.

    Attributes:
        results: run-record entries ``xray/<name>/<word>`` (factor) and ``xray/<name>/clamped``.
        samples: dicts with path ``xray``, setting (name), prompt and text (the table in one line).

    Written to the run directory: ``xray.csv`` and ``xray.html``; a W&B logger gets the same rows and plots.

    Raises:
        UserError: a prompt without text.
    """

    def __init__(self, *, prompts: Mapping[str, Mapping[str, Any]], top: int = 10, minimum: float = 1e-4) -> None:
        super().__init__()
        for name, entry in prompts.items():
            if not str(entry.get("prompt") or "").strip():
                raise UserError(f"callback.xray.prompts.{name}: give a prompt that is not empty")
        self.prompts, self.top, self.minimum = dict(prompts), top, minimum
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look, write the files, then log."""
        if trainer.state.fn != "validate":
            return
        self.run(pl_module, trainer.datamodule.vocabulary)  # type: ignore[attr-defined]
        if self.rows and trainer.is_global_zero:
            self.write_files(Path(trainer.default_root_dir))
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    self.log_to_wandb(logger)

    def run(self, module: Any, vocabulary: Any) -> None:
        """Fill ``rows``, ``results`` and ``samples`` anew."""
        self.results, self.samples, self.rows = {}, [], []
        for name, entry in self.prompts.items():
            picture = look(module, vocabulary.encode(entry["prompt"]))
            if picture is None:
                return
            words = {word: first_token(vocabulary, word) for word in entry.get("words", ())}
            rows = self._rows(name, picture, vocabulary, words)
            self.rows += rows
            for word, number in words.items():
                self._keep(f"xray/{name}/{word}", float(picture.factor_V[number]), "factor")
            self._keep(f"xray/{name}/clamped", picture.clamped, "share of vocabulary")
            text = "; ".join(
                f"{kind} " + ", ".join(f"{row['token']!r} x{row['factor']:.2f}" for row in rows if row["kind"] == kind)
                for kind in (BOOSTED, SUPPRESSED)
            )
            self.samples.append({"path": "xray", "setting": name, "prompt": entry["prompt"], "text": text})

    def _rows(self, name: str, picture: Picture, vocabulary: Any, words: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the rows of one prompt: the ends of the ranking, then the words asked for."""
        likely = (picture.before_V >= self.minimum).nonzero().squeeze(1)
        ranked = likely[picture.factor_V[likely].argsort(descending=True)].tolist()
        top = min(self.top, len(ranked) // 2)
        chosen = [(BOOSTED, number) for number in ranked[:top]]
        chosen += [(SUPPRESSED, number) for number in reversed(ranked[len(ranked) - top :])]
        chosen += [(NAMED, number) for number in words.values()]
        return [
            {
                "prompt": name,
                "kind": kind,
                "token": vocabulary.decode([number]),
                "factor": float(picture.factor_V[number]),
                "probability_before": float(picture.before_V[number]),
                "probability_after": float(picture.after_V[number]),
                "idea_probability": float(picture.idea_V[number]),
            }
            for kind, number in chosen
        ]

    def _keep(self, name: str, value: float, unit: str) -> None:
        self.results[name] = MetricResult(value, unit, "none", 1, None, 1).to_dict()

    def write_files(self, folder: Path) -> None:
        """Write ``xray.csv`` and ``xray.html`` (no script, no network)."""
        with open(folder / "xray.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)
        Drawing(tuple(figure(rows, name) for name, rows in self._by_prompt().items())).save(folder / "xray.html")

    def log_to_wandb(self, logger: WandbLogger) -> None:
        """Log the rows as a table and each prompt's plot."""
        import wandb

        logger.log_table("xray/table", columns=list(COLUMNS), data=[[row[key] for key in COLUMNS] for row in self.rows])
        for name, rows in self._by_prompt().items():
            logger.experiment.log({f"xray/{name}": wandb.Html(Drawing((figure(rows, name),)).html)})

    def _by_prompt(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [row for row in self.rows if row["prompt"] == name] for name in self.prompts}


@torch.no_grad()
def look(module: Any, ids: Sequence[int]) -> Picture | None:
    """Return what the gate does to the token after the prompt ``ids``; None for a model without a gate.

    The caller has the module in evaluation mode.
    """
    ids_1T = torch.tensor([list(ids)], device=module.device)
    mask_1T = torch.ones_like(ids_1T, dtype=torch.bool)
    batch = {"input_ids_BT": ids_1T, "target_ids_BT": ids_1T, "mask_input_BT": mask_1T, "mask_target_BT": mask_1T}
    output = module(batch)
    idea_BTV = output.extras.get("idea_logits")
    if idea_BTV is None:
        return None
    before_V = output.extras["token_logits"][0, -1].cpu().double().softmax(-1)
    after_V = output.scores_BTV[0, -1].cpu().double().softmax(-1)
    idea_V = idea_BTV[0, -1]
    clamped = float(module.form.clamped(idea_V, module.alpha, module.beta).double().mean())
    return Picture(before_V, after_V, idea_V.cpu().double().sigmoid(), clamped)


def first_token(vocabulary: Any, word: str) -> int:
    """Return the first token of a word as it stands inside a sentence (a blank before it)."""
    return int(vocabulary.encode(f" {word}")[0])


def figure(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Draw the factors of one prompt as SVG: a bar a token on a log axis around 1, boosted above, suppressed below."""
    groups = []
    for number, kind in enumerate((BOOSTED, NAMED, SUPPRESSED)):
        some = sorted((row for row in rows if row["kind"] == kind), key=lambda row: -row["factor"])
        bars = [(repr(row["token"]), Bar(f"series{number}", row["factor"])) for row in some]
        groups += [BarGroup(token, [bar], section=kind) for token, bar in bars]
    factors = [row["factor"] for row in rows if row["factor"] > 0]
    low, high = min([0.5, *factors]), max([2.0, *factors])
    words = "probability with the gate over that without"
    return bar_chart(f"Gate after: {name}", groups, measure=words, low=low, high=high, log=True, base=1.0)
