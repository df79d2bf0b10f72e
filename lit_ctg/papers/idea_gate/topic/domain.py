"""A domain that a text can stay in or leave: its terms, short and long list, and prompts that ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lit_ctg.errors import UserError, did_you_mean

FOLDER = Path(__file__).resolve().parent
LISTS = ("short", "long")


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        name: the file's stem.
        terms: list name (``short``, ``long``) -> terms, lower case, single words; the long list holds the short one.
        prompts: beginnings of texts; the first is the one the paper prints (or its stand-in).
    """

    name: str
    terms: dict[str, frozenset[str]]
    prompts: tuple[str, ...]


def known_domains() -> list[str]:
    """Return the names of the domains that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_domain(name: str | Path) -> Domain:
    """Load a domain by name, or from a YAML file of one's own (a path that ends in ``.yaml``).

    The file is a mapping: ``prompts`` (list of texts), ``short`` and ``long`` (list of terms, or one text with terms
    between blanks).

    Raises:
        UserError: no such domain or file, not a mapping of these keys, a term that is no single lower-case word.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        path = FOLDER / f"{name}.yaml"
        if not path.is_file():
            known = known_domains()
            raise UserError(f"no domain '{name}'{did_you_mean(str(name), known)}; there are: {', '.join(known)}")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"domain {path}: cannot be read ({' '.join(str(error).split())})") from None
    keys = {"prompts", *LISTS}
    if not isinstance(data, dict) or set(data) != keys:
        raise UserError(f"domain {path}: expected a mapping with {', '.join(sorted(keys))}")
    short, long = (_terms(data[key], key, path) for key in LISTS)
    prompts = tuple(str(prompt) for prompt in data["prompts"] or ())
    if not prompts:
        raise UserError(f"domain {path}: give at least one prompt")
    return Domain(path.stem, {"short": short, "long": short | long}, prompts)


def _terms(value: Any, key: str, path: Path) -> frozenset[str]:
    terms = value.split() if isinstance(value, str) else [str(term) for term in value or ()]
    for term in terms:
        if term != term.lower() or len(term.split()) != 1:
            raise UserError(f"domain {path}, {key}: '{term}' must be one lower-case word")
    if not terms:
        raise UserError(f"domain {path}, {key}: no terms")
    return frozenset(terms)
