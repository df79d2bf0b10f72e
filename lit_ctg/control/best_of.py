"""Best of n: of several texts of a prompt, the one that a classifier takes for the class most clearly is kept.

Shape letters: B prompts, N texts, T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_ctg.control.base import NO_TOKEN, Prefix, Stage, Values, like_inputs
from lit_ctg.control.future import FutureClassifier, StateProbe, restored_classifier
from lit_ctg.control.token_bias import ClassControl, check_classes, check_count, class_settings, class_shares
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError, refuse

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

MOST = 1024


class BestOf(ClassControl):
    """Draws several texts and keeps the one that a classifier takes for the class most clearly; in ``Steered`` only.

    Args:
        classifier: of tokens, or of the model's own states; or any function of texts that returns log p(class), [N, C],
            which a bundle cannot hold.
        classes: names of its classes, in order.
    """

    kind, stage = "best_of", Stage.LOGITS
    excludes = frozenset({"best_of"})

    def __init__(
        self,
        classifier: FutureClassifier | StateProbe | Callable[[list[str]], Any],
        classes: Sequence[str],
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.classes, self.classifier = check_classes(classes), classifier
        if isinstance(classifier, torch.nn.Module):
            classifier.eval().requires_grad_(False)
            check_count(self.name, self.classes, classifier.head.out_features)  # type: ignore[union-attr,arg-type]

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "texts that are drawn, of which one is kept; 0: one, the bare model's"
        return (ControlSetting("strength", meaning, 4.0, low=0.0, high=MOST), *class_settings(self.classes))

    def draws(self, values: Values) -> Tensor:
        strength_B = values["strength"]
        whole = bool((strength_B == strength_B.round()).all())
        refuse({f"control {self.name}: strength={strength_B.tolist()}: give whole numbers of texts": not whole})
        return strength_B.masked_fill(self.off(values), 1).clamp(min=1).long()

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        return ()

    @torch.no_grad()
    def scores(self, model: Any, tokenizer: Any, ids_NT: Tensor, values: Values) -> Tensor:
        """Return [N], the log-probability of the requested classes (the mean of several), in float64.

        Args:
            ids_NT: texts, ``NO_TOKEN`` where there is none; the texts of a prompt are next to each other.
        """
        share_BC = class_shares(self.classes, values)
        share_NC = share_BC.repeat_interleave(len(ids_NT) // len(share_BC), dim=0)
        if isinstance(self.classifier, StateProbe):
            log_p_NC = self.classifier.of_texts(model, ids_NT)
        elif isinstance(self.classifier, FutureClassifier):
            log_p_NC = self.classifier.to(like_inputs(model).device)(ids_NT)[:, -1]
        elif tokenizer is None:
            raise UserError(f"control {self.name}: texts need a tokenizer: Steered(model, controls, tokenizer=...)")
        else:
            rows = [[number for number in row if number != NO_TOKEN] for row in ids_NT.tolist()]
            log_p_NC = torch.as_tensor(
                self.classifier([tokenizer.decode(row, skip_special_tokens=True) for row in rows])
            )
        return (log_p_NC.double().cpu() * share_NC).sum(1)

    def shape(self) -> dict[str, int]:
        return self.classifier.shape() if isinstance(self.classifier, FutureClassifier | StateProbe) else {}

    def config(self) -> dict[str, Any]:
        if not isinstance(self.classifier, FutureClassifier | StateProbe):
            raise UserError(f"control {self.name}: its classifier is a function, which a bundle cannot hold")
        return {"classes": list(self.classes), "block": getattr(self.classifier, "block", None)}

    def tensors(self) -> dict[str, Tensor]:
        assert isinstance(self.classifier, FutureClassifier | StateProbe)
        return dict(self.classifier.state_dict())

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> BestOf:
        return cls(restored_classifier(config, tensors), config["classes"])
