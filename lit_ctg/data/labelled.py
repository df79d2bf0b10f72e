"""Texts with labels in columns: one file of rows, with one column of text and one or more of labels."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_ctg.data.source import TEXT_COLUMNS, Row, check_column, column_names, read_records, separator
from lit_ctg.errors import refuse

# usual names of a column of labels
LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "topic", "stars", "rating", "score")
# labels with fewer texts are named: nothing is learned from so few
FEW = 20
# labels that the report lists
_SHOWN = 12
_GRADE = re.compile(r"([+-]?\d+(?:[.,]\d+)?)\s*(\D*)")
_MARKS = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}


@dataclass(frozen=True)
class Attribute:
    """One column of labels.

    Attributes:
        name: of the column; ``label`` for a folder.
        labels: as they are written, ordered by name; by number where they are grades.
        grades: the number of each label where all are numbers of one unit (1 to 5, "5 stars"); None otherwise.
    """

    name: str
    labels: tuple[str, ...]
    grades: tuple[float, ...] | None = None

    @property
    def names(self) -> dict[str, str]:
        """Label -> a word that can name a setting of a control; different for each label."""
        found: dict[str, str] = {}
        for label in self.labels:
            word = class_name(label)
            numbered = itertools.chain([word], (f"{word}_{number}" for number in itertools.count(2)))
            found[label] = next(name for name in numbered if name not in found.values())
        return found

    @property
    def sides(self) -> dict[str, tuple[str, ...]]:
        """``low`` and ``high``: the labels below and above the middle of the grades; {} without grades."""
        if self.grades is None:
            return {}
        middle, graded = (self.grades[0] + self.grades[-1]) / 2, list(zip(self.labels, self.grades, strict=True))
        low, high = (tuple(la for la, grade in graded if sign * grade > sign * middle) for sign in (-1, 1))
        return {"low": low, "high": high}


@dataclass(frozen=True)
class Labelled:
    """Texts, the labels of each, and what was left out.

    Attributes:
        where: the file or folder and how it was read, in words.
        texts: without blanks at their ends; none empty, none twice.
        labels: attribute -> the label of each text, None where it has none.
        attributes: in the order of their columns.
        left_out: why -> how many rows.
    """

    where: str
    texts: list[str]
    labels: dict[str, list[str | None]]
    attributes: tuple[Attribute, ...]
    left_out: dict[str, int]

    def of(self, attribute: str) -> dict[str, list[str]]:
        """Return label -> its texts."""
        (found,) = (each for each in self.attributes if each.name == attribute)
        texts: dict[str, list[str]] = {label: [] for label in found.labels}
        for text, label in zip(self.texts, self.labels[attribute], strict=True):
            if label is not None:
                texts[label].append(text)
        return texts

    def report(self, tokens: Callable[[str], int] | None = None, longest: int | None = None) -> list[str]:
        """Return what was found, a line each.

        Args:
            tokens: counts the tokens of a text.
            longest: tokens of a text that are read.
        """
        lines = [f"{self.where}: {len(self.texts)} texts"]
        for each in self.attributes:
            counts = {label: len(texts) for label, texts in self.of(each.name).items()}
            listed = ", ".join(f"{label} ({count})" for label, count in list(counts.items())[:_SHOWN])
            more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
            lines.append(f"{each.name}: {listed}{more}" + "; graded, low to high" * (each.grades is not None))
            if few := [label for label, count in counts.items() if count < FEW]:
                lines.append(f"{each.name}: fewer than {FEW} texts: {', '.join(few[:_SHOWN])}; better hundreds")
            if alike := [labels for labels in _grouped(str.casefold, counts) if len(labels) > 1]:
                lines.append(f"{each.name}: {' and '.join(alike[0])} differ in case only: are they one label?")
        sizes = sorted(map(len, self.texts))
        lines.append(f"lengths: {sizes[0]} to {sizes[-1]} characters, half below {sizes[len(sizes) // 2] + 1}")
        if tokens is not None and longest is not None:
            over = sum(tokens(text) > longest for text in self.texts)
            lines.append(
                f"longer than {longest} tokens: {over or 'none'}" + " (the rest of them is not read)" * bool(over)
            )
        if left := [f"{count} {why}" for why, count in self.left_out.items() if count]:
            lines.append(f"left out: {', '.join(left)}")
        return lines


def _grouped(key: Callable[[str], str], words: Iterable[str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        found.setdefault(key(word), []).append(word)
    return list(found.values())


def class_name(label: str) -> str:
    """Return a label as a word that can name a setting of a control and a folder: ``sci-fi`` is ``sci_fi``."""
    letters = unicodedata.normalize("NFC", label)
    name = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in letters)
    return f"{name}_" if name == "strength" else name  # every control has a setting of that name


def attribute(name: str, labels: Iterable[str]) -> Attribute:
    """Return an attribute of these labels, which are grades if all are numbers of one unit, at least three."""
    ordered = sorted(set(labels))
    found = [_GRADE.fullmatch(label) for label in ordered]
    units = {match and match[2].strip().casefold().removesuffix("s") for match in found}
    values = {label: float(match[1].replace(",", ".")) for label, match in zip(ordered, found, strict=True) if match}
    if len(units) > 1 or len(set(values.values())) < max(3, len(ordered)):
        return Attribute(name, tuple(ordered))
    ordered.sort(key=values.__getitem__)
    return Attribute(name, tuple(ordered), tuple(values[label] for label in ordered))


def read_file(path: Path, text: str | None = None, label: Sequence[str] = ()) -> Labelled:
    """Read a file of rows (.csv .tsv .jsonl .parquet, also compressed).

    Args:
        text: the column of the text; by default ``text`` or another usual name.
        label: the columns of labels; by default one of a usual name, or the only other column.

    Raises:
        UserError: no such column, fewer than two labels, labels that are as many as the texts; see ``read_records``.
    """
    names = column_names(path)
    chosen = text or next((name for name in TEXT_COLUMNS if name in names), TEXT_COLUMNS[0])
    check_column(path, chosen, names, chosen in names, "; text=<column> names another")
    others = [name for name in names if name != chosen]
    usual = [name for name in LABEL_COLUMNS if name in others][:1] or (others if len(others) == 1 else ["label"])
    columns = list(dict.fromkeys(label)) or usual
    for name in columns:
        check_column(path, name, others, name in others, "; label=<column> names another, label=[<column>,...] several")
    rows = read_records(path, [], [chosen, *columns])
    between = f"; {_MARKS[mark]}s between" if (mark := separator(path)) else ""
    where = f"{path} (text in {chosen}, labels in {', '.join(columns)}{between})"
    return gathered(where, columns, ((row.text(chosen), [_label(row, name) for name in columns]) for row in rows))


def _label(row: Row, column: str) -> str:
    """Return a label as text: of a number without a fraction its whole number."""
    value = row.get(column)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return "" if value != value else f"{value:g}"
    return " ".join(unicodedata.normalize("NFC", row.text(column)).split())


def gathered(where: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Labelled:
    """Return the rows that have a text and a label, each text once.

    Args:
        names: of the attributes.
        rows: a text and its label for each attribute, "" where it has none.

    Raises:
        UserError: fewer than two labels, or as many as texts.
    """
    first: dict[str, tuple[str, list[str]]] = {}
    left = Counter[str]()
    for text, labels in rows:
        key = " ".join(unicodedata.normalize("NFC", text).casefold().split())
        before = first.get(key, ("", list(labels)))[1]
        why = "without text" if not key else "" if any(labels) else "without a label"
        why = why or ("" if key not in first else "twice" if before == list(labels) else "twice, under other labels")
        left[why] += 1
        if not why:
            first[key] = text.strip(), list(labels)
    del left[""]
    kept = list(first.values())
    found: dict[str, list[str | None]] = {
        name: [labels[number] or None for _, labels in kept] for number, name in enumerate(names)
    }
    attributes = tuple(attribute(name, [each for each in labels if each]) for name, labels in found.items())
    for each in attributes:
        count = sum(label is not None for label in found[each.name])
        only = f"only the label {each.labels[0]!r}" if each.labels else "no label"
        most = max(2, count - 1 if each.grades else count // 2)
        refuse({
            f"{only} in {count} texts: give two labels or more": len(each.labels) < 2,
            f"{len(each.labels)} different values in {count} texts, so they are no labels: name their column with "
            "label=<column>": len(each.labels) > most,
        }, f"{where}: '{each.name}' has ")  # fmt: skip
    return Labelled(where, [text for text, _ in kept], found, attributes, dict(left))
