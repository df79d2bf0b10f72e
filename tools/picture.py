"""The picture at the top of the README: the same prompt under different controls, from the README's first run.

    python tools/picture.py        (writes docs/control.svg)

A test runs the commands of "First run" and compares what they write with the README, so the texts are those of a run.
The picture has a ground of its own and reads on light and on dark pages.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "control.svg"
WIDTH, MARGIN, LINE, LETTERS = 760, 20, 21, 88
COLOURS = ("#0b6bcb", "#a8500c", "#6639a6")


def examples(readme: str) -> list[tuple[str, str, str]]:
    """Return control, prompt and text of every `lit-ctg generate` in the section "First run"."""
    section = readme.partition("## First run")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, flags=re.S)
    found = []
    for part in re.split(r"^(?=lit-ctg )", block, flags=re.M):
        command, _, text = part.partition("\n")
        options = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
        controls = [f"{key}={value}" for key, value in options.items() if key.startswith("control.")]
        if text.strip():
            found.append((", ".join(controls) or "no control", options["prompt"], " ".join(text.split())))
    return found


def picture(rows: list[tuple[str, str, str]]) -> str:
    """Return the SVG: a card for each control with its text."""
    parts, y = [], MARGIN
    for (control, prompt, text), colour in zip(rows, COLOURS, strict=False):
        lines = textwrap.wrap(text, LETTERS)
        height = LINE * (len(lines) + 1) + 22
        parts.append(f'<rect x="{MARGIN}" y="{y}" width="4" height="{height - 8}" fill="{colour}"/>')
        label = f'<tspan font-weight="600" fill="{colour}">{escape(control)}</tspan>'
        parts.append(f'<text x="{MARGIN + 16}" y="{y + 16}">{label}</text>')
        for number, line in enumerate(lines, 1):
            words = escape(line)
            if number == 1 and line.startswith(prompt):
                words = f'<tspan font-weight="600">{escape(prompt)}</tspan>{escape(line.removeprefix(prompt))}'
            parts.append(f'<text x="{MARGIN + 16}" y="{y + 20 + LINE * number}">{words}</text>')
        y += height
    label = escape("; ".join(f"{control}: {text}" for control, _, text in rows), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{label}" '
        'font-family="system-ui, sans-serif" font-size="15" fill="#1f2328">\n'
        f'<rect width="{WIDTH}" height="{y}" rx="8" fill="#f6f8fa" stroke="#8c959f"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(picture(examples((ROOT / "README.md").read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written: {OUT}")
