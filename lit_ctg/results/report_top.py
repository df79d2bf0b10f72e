"""The top of the report: the filter (radio buttons and style rules, no script) and the verdicts of all papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from lit_ctg.results.cell_text import REGIME_TITLES
from lit_ctg.results.table import Results
from lit_ctg.results.verdict import LABELS

ALL = "all"


def section_id(result: Results) -> str:
    """Return the anchor of a paper's section at one size."""
    return escape(f"{result.paper}-{result.size}", quote=True)


def runs_words(result: Results) -> str:
    """Return how many runs a paper has, and of which size."""
    count = len(result.pool.records())
    return f"{count} run{'s' * (count != 1)}, size {result.size}" if count else "no runs yet"


def slug(label: str) -> str:
    """Return a verdict's class name."""
    return label.replace(" ", "-")


def choices(results: Sequence[Results]) -> dict[str, dict[str, str]]:
    """Return what the page can be filtered by: group -> value -> words; groups with one value are left out."""
    groups = {
        "paper": {result.paper: result.paper.replace("_", " ") for result in results},
        "regime": {regime: title.lower() for regime, title in REGIME_TITLES.items()},
        "size": {result.size: result.size for result in results if result.pool.records()},
    }
    return {group: values for group, values in groups.items() if len(values) > 1}


def filter_rules(results: Sequence[Results]) -> str:
    """Return the style rules that hide what is not chosen."""
    rules = []
    for group, values in choices(results).items():
        for value in values:
            chosen = f"body:has(#show-{group}-{value}:checked)"
            if group == "regime":
                others = [other for other in values if other != value]
                hidden = [f"{chosen} {where}{other}" for other in others for where in (".in-", "svg .", ".key .for-")]
                rules.append(f"{', '.join(hidden)} {{ display: none; }}")
            else:
                rules.append(f"{chosen} .part:not(.{group}-{value}) {{ display: none; }}")
    return "\n".join(rules)


def filter_form(results: Sequence[Results]) -> str:
    """Return the radio buttons of the filter."""
    parts = []
    for group, values in choices(results).items():
        options = []
        for value, words in {ALL: "all", **values}.items():
            checked = " checked" if value == ALL else ""
            options.append(
                f'<label><input type="radio" name="{group}" id="show-{group}-{value}"{checked}>'
                f"<span>{escape(words)}</span></label>"
            )
        parts.append(f"<fieldset><legend>{group}</legend>{''.join(options)}</fieldset>")
    return f'<form class="filter">{"".join(parts)}</form>\n' if parts else ""


def share(counts: Counter[str]) -> str:
    """Return one bar split by verdict, and the counts in words."""
    shown = [(label, counts[label]) for label in LABELS if counts[label]]
    bar = "".join(
        f'<i class="{slug(label)}" style="flex:{count}" title="{escape(label)}"></i>' for label, count in shown
    )
    words = "".join(f'<span class="{slug(label)}"><b>{count}</b> {escape(label)}</span>' for label, count in shown)
    return f'<div class="share">{bar}</div><div class="counts">{words}</div>'


def verdicts(results: Sequence[Results]) -> str:
    """Return the verdicts of every paper and regime, as bars, with links to the papers."""
    rows = []
    for result in results:
        bars = "".join(
            f'<div class="in-{regime}">'
            f'<span class="muted">{escape(title)}, {sum(result.verdicts(regime).values())} statements</span>'
            f"{share(result.verdicts(regime))}</div>"
            for regime, title in REGIME_TITLES.items()
            if result.verdicts(regime)
        )
        rows.append(
            f'<div class="part paper-{result.paper} size-{result.size} verdicts">'
            f'<a href="#{section_id(result)}">{escape(result.paper.replace("_", " "))}</a> '
            f'<span class="muted">{escape(runs_words(result))}</span>{bars}</div>'
        )
    return f'<h2>Verdicts</h2>\n<div class="panel">{"".join(rows)}</div>\n'
