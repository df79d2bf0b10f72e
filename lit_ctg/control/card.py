"""The model card of a bundle: the README that the hub shows, written from the control and its run record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lit_ctg.control.shipped import score

if TYPE_CHECKING:
    from lit_ctg.control.base import Control
    from lit_ctg.core.generation import ControlSetting

_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_ctg.control import Control, Steered

model = AutoModelForCausalLM.from_pretrained("<model>")
tokenizer = AutoTokenizer.from_pretrained("<model>")
control = Control.from_pretrained("<this folder>")
steered = Steered(model, [control], tokenizer=tokenizer)
print(steered.write(["<prompt>"], max_new_tokens=20))
```

If the folder `custom_generate` is beside this file, transformers alone is enough (it runs the code in that folder:
read it first):

```python
model.generate(
    **tokenizer(["<prompt>"], return_tensors="pt"),
    custom_generate="<this folder>",
    trust_remote_code=True,
    tokenizer=tokenizer,
    settings={},
)
```"""


def card(control: Control, record: Mapping[str, Any] | None) -> str:
    """Return the text of ``README.md``; its facts about the run come only from the record."""
    lines = ["---", "library_name: lit_ctg", "tags: [text-generation, controlled-generation, lit_ctg]", "---", ""]
    paper = f" ({control.paper.replace('_', ' ')})" if control.paper else ""
    lines += [f"# {control.name}: a control of the kind {control.kind}{paper}", ""]
    about = (type(control).__doc__ or "").strip().splitlines()
    lines += [about[0] if about else "", "", "## Use", "", _USE, "", "## Settings", ""]
    lines += ["| setting | meaning | range | default |", "|---|---|---|---|"]
    lines += [f"| `{s.name}` | {s.meaning} | {_range(s)} | {_default(s)} |" for s in control.settings]
    lines += ["", f"`{control.strength}=0` is the bare model, exactly.", ""]
    if shape := control.shape():
        needs = ", ".join(f"{name} {value}" for name, value in shape.items())
        lines += [f"Fits a model with {needs} and the tokenizer it was made with.", ""]
    return "\n".join([*lines, *_of_recipe(record), *of_record(record)])


def _of_recipe(record: Mapping[str, Any] | None) -> list[str]:
    """Return the lines about a control of ``lit-ctg control build``: its effect, a text, and what it is made of."""
    if not (known := (record or {}).get("zoo")):
        return []
    steps = f", {known['steps']} steps" if known["steps"] else ""
    lines = ["## Effect", "", f"{known['about'][:1].upper()}{known['about'][1:]}. Score: {score(known['score'])}.", ""]
    lines += ["| settings | text |", "|---|---|"]
    lines += [f"| {settings} | {known['prompt']} {' '.join(text.split())} |" for settings, text in known["sample"]]
    lines += ["", "```sh", known["use"], "```", ""]
    lines += [f"Made by `{known['command']}`{steps}, seed {known['seed']}, {known['minutes']} minutes."]
    lines += [f"Model: {known['model']} ({known['origin'] or 'a folder'}). Texts: {known['corpus']}.", ""]
    return lines


def of_record(record: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a card about the run."""
    if record is None:
        return ["Not made from a recorded run.", ""]
    metrics = record.get("metrics") or {}
    if record.get("regime") is not None:
        lines = ["## Training", ""]
        lines += [
            f"Exported from `{record.get('experiment')}`, regime {record.get('regime')}, size {record.get('size')}, "
        ]
        lines[-1] += f"seed {record.get('seed')}, commit {str((record.get('git') or {}).get('commit'))[:12]}."
        trained = (record.get("zoo") or {}).get("trained")
        of = f" (of {trained})" if trained else ""
        lines += [f"The run's whole record is `run.json` beside this file. Its metrics{of}:", ""]
    elif metrics:
        lines = ["## Held-out text", ""]
    else:
        return []
    lines += ["| metric | value | 95% interval | n |", "|---|---:|---|---:|"]
    for name, metric in metrics.items():
        value, interval = metric.get("value"), metric.get("ci95")
        shown = "-" if value is None else f"{value:.5g} {metric.get('unit', '')}".strip()
        bounds = f"{interval[0]:.4g} to {interval[1]:.4g}" if interval else ""
        lines.append(f"| {name} | {shown} | {bounds} | {metric.get('n', '')} |")
    return [*lines, ""]


def _range(setting: ControlSetting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    low = "" if math.isinf(setting.low) else f"from {setting.low:g}"
    high = "" if math.isinf(setting.high) else f"to {setting.high:g}"
    return f"{low} {high}".strip() or "any number"


def _default(setting: ControlSetting) -> str:
    if setting.default is None:
        return "not set"
    return f"{setting.default:g}" if isinstance(setting.default, float | int) else str(setting.default)
