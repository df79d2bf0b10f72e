"""The construction algorithm (Table 1) as an API: classes from YAML or Python, and their table over a vocabulary.

    my_classes.yaml
        verb:
          members: {measuring: 1, mixing: 2, baking: 3, cooling: 4}
          metrics: [difference, frequency]
          densities: [multinomial, unigram, gaussian]

    recognisers = {**read_classes("my_classes.yaml"), **number_classes}
    table = class_table(tokenizer.tokens, recognisers.values())
    chosen = select(table, train, validation)

A class has ``pattern`` (a regular expression), ``members`` (a list with values), ``kind`` (places) or ``_target_`` (a
``Recogniser`` of one's own). Metrics, densities and contexts are named; a dotted name is a class of one's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.nslm.class_table import ClassTable
from lit_ctg.papers.nslm.context import CONTEXTS, LeftContext
from lit_ctg.papers.nslm.recogniser import ListRecogniser, PatternRecogniser, PlaceRecogniser, Recogniser

Kind = TypeVar("Kind")
_BY_KEY: dict[str, type[Recogniser]] = {
    "pattern": PatternRecogniser,
    "members": ListRecogniser,
    "kind": PlaceRecogniser,
}


def candidate(known: Mapping[str, type[Kind]], name: str, base: type[Kind]) -> type[Kind]:
    """Return the class behind a name of ``known``, or behind a dotted name.

    Raises:
        UserError: there is none, or it is not derived from ``base``.
    """
    if name in known:
        return known[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise UserError(f"no {base.__name__} '{name}'; there are: {', '.join(known)}{did_you_mean(name, known)}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot import '{name}' as a {base.__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"'{name}' is not derived from {base.__module__}.{base.__name__}")
    return found


def class_table(tokens: Sequence[str], recognisers: Iterable[Recogniser]) -> ClassTable:
    """Sort a vocabulary into classes; the left contexts are those that the recognisers are bound to.

    Raises:
        UserError: see ``candidate`` and ``ClassTable.build``.
    """
    recognisers = list(recognisers)
    wanted = {recogniser.context for recogniser in recognisers if recogniser.context is not None}
    ordered = [name for name in CONTEXTS if name in wanted] + sorted(wanted - CONTEXTS.keys())
    contexts: list[LeftContext] = [candidate(CONTEXTS, name, LeftContext)() for name in ordered]  # type: ignore[type-abstract]
    return ClassTable.build(tokens, recognisers, contexts)


def read_classes(path: str | Path) -> dict[str, Recogniser]:
    """Read classes from a YAML file: name -> settings (see above).

    Raises:
        UserError: no such file, no YAML, or a class that lacks something.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read classes from {path}: {error.strerror}") from error
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(settings, Mapping):
        raise UserError(f"{path}: expected 'name: {{pattern: ..., metrics: [...], densities: [...]}}'")
    return {str(name): make_recogniser(str(name), entry) for name, entry in settings.items()}


def before_others(own: Mapping[str, Recogniser], others: Mapping[str, Recogniser]) -> list[Recogniser]:
    """Return the classes of ``own`` before the others; one that has the name of another takes its place."""
    new = [recogniser for name, recogniser in own.items() if name not in others]
    return new + [own.get(name, recogniser) for name, recogniser in others.items()]


def make_recogniser(name: str, settings: Any) -> Recogniser:
    """Build one class from plain settings.

    Raises:
        UserError: an unknown or a missing setting.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"class '{name}': expected settings such as pattern, metrics, densities, got {settings!r}")
    options = dict(settings)
    if "_target_" in options:
        kind = candidate({}, str(options.pop("_target_")), Recogniser)  # type: ignore[type-abstract]
    else:
        keys = [key for key in _BY_KEY if key in options]
        if len(keys) != 1:
            raise UserError(f"class '{name}' needs exactly one of {', '.join(_BY_KEY)} or _target_")
        kind = _BY_KEY[keys[0]]
    options = {"metrics": ("frequency",), "densities": ("unigram",)} | options
    try:
        return kind(name=name, **options)
    except TypeError as error:
        raise UserError(f"class '{name}': {error}") from error
