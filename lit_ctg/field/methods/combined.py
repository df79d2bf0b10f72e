"""Several methods at once, and controls that were made elsewhere and loaded as bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lit_ctg.control.bundle import load
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.method import ControlMethod, Method
from lit_ctg.limits import Positive


class Combined(Method):
    """Attaches the controls of several methods to the model; at strength s each has s times its unit.

    Args:
        parts: name -> method.
        units: name -> its strength when the combination's is 1.

        Raises:
            UserError: the names in ``units`` differ from those in ``parts``.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], parts: Mapping[str, Method], units: Mapping[str, float]
    ) -> None:
        super().__init__(strengths=strengths)
        self.parts, self.units = dict(parts), dict(units)
        if set(self.parts) != set(self.units) or len(self.parts) < 2:
            named = f"parts {', '.join(self.parts)} and units {', '.join(self.units)}"
            raise UserError(f"method: {named}: give the same two names or more")

    def fit(self, bench: Bench) -> None:
        for part in self.parts.values():
            part.fit(bench)

    def arm(self, bench: Bench, target: str) -> Arm:
        arms = {name: part.arm(bench, target) for name, part in self.parts.items()}
        # at most one part may have its own model
        changed = [name for name, arm in arms.items() if arm.model is not bench.model]
        if len(changed) > 1:
            raise UserError(f"method: {' and '.join(changed)} both change the model: combine one with controls")
        leading = arms[changed[0]] if changed else next(iter(arms.values()))
        unit = self.units[changed[0]] if changed else 1.0

        def settings(strength: float) -> dict[str, Any]:
            own = [arm.settings(strength * self.units[name]) for name, arm in arms.items()]
            return {key: value for each in own for key, value in each.items()}

        def prefix(strength: float, place: int) -> str:
            return "".join(arm.prefix(strength * self.units[name], place) for name, arm in arms.items())

        controls = [control for arm in arms.values() for control in arm.controls]
        return Arm(leading.model, controls, settings, prefix, lambda strength: leading.at(strength * unit))

    def read(self) -> str:
        return " ".join(filter(None, (part.read() for part in self.parts.values())))

    def parameters(self) -> int:
        return sum(part.parameters() for part in self.parts.values())


class Carried(ControlMethod):
    """A control that ``lit-ctg export`` (or ``save_pretrained``) wrote: any kind in docs/controls.md.

    Args:
        bundle: its folder or hub name; ``TARGET`` in it is replaced by the class.
        swept: settings that are multiplied by the strength, setting -> value at strength 1.
        fixed: further settings; ``TARGET`` in a name is replaced by the class.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], bundle: str, swept: Mapping[str, float], fixed: Mapping[str, Any]
    ) -> None:
        super().__init__(strengths=strengths)
        self.bundle, self.swept, self.fixed = bundle, dict(swept), dict(fixed)

    def fit(self, bench: Bench) -> None:
        folders = {target: self.bundle.replace("TARGET", target) for target in bench.task.targets}
        self.bundles = {folder: load(folder) for folder in sorted(set(folders.values()))}
        self.controls = {target: self.bundles[folder] for target, folder in folders.items()}

    def settings(self, control: Any, target: str, strength: float) -> dict[str, Any]:
        fixed = {key.replace("TARGET", target): value for key, value in self.fixed.items()}
        return {**fixed, **{key: value * strength for key, value in self.swept.items()}}

    def read(self) -> str:
        return " ".join(str(control.origin and control.origin.checksum) for control in self.bundles.values())
