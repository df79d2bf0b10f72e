"""One source file from definitions of this package with all that they use and nothing else, not importing the package.

Definitions are copied verbatim, comments included, dependencies first. Names used only in annotations are left out:
annotations are not evaluated. So is what reads annotations (``limits.py``): settings are checked before an export.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lit_ctg
from lit_ctg.errors import UserError

HEADER = '''"""{title}

Written by lit_ctg {version} from its own source (Apache-2.0), definitions copied verbatim; lit_ctg is not needed.
"""

from __future__ import annotations

'''


@dataclass(frozen=True)
class _Module:
    """A parsed module: its top-level definitions and the names that its imports bind."""

    lines: tuple[str, ...]
    definitions: dict[str, ast.stmt]
    ours: dict[str, tuple[str, str]]  # name -> (module, name there); "" for a module itself
    others: dict[str, str]  # name -> import statement


def standalone(
    module: str,
    names: Sequence[str],
    title: str,
    *,
    also: Sequence[tuple[str, str]] = (),
    without: Collection[str] = (),
) -> str:
    """Return the source of some definitions of a module with all that they use.

    Args:
        title: first line of the docstring of the file.
        also: further definitions, as (module, name).
        without: methods to leave out of every class, or ``<class>.<method>``.

    Raises:
        UserError: two things share a name.
    """
    found: dict[str, tuple[str, str]] = {}  # name -> (module, source)
    imports: set[str] = set()
    done: set[tuple[str, str]] = set()

    def take(place: str, name: str) -> None:
        if (place, name) in done:
            return
        done.add((place, name))
        read = _read(place)
        if name in read.others:
            imports.add(read.others[name])
        elif name in read.ours:
            target, original = read.ours[name]
            if original:
                take(target, original)
        elif name in read.definitions:
            copy(read, place, name)

    def copy(read: _Module, place: str, name: str) -> None:
        source = _source(read, read.definitions[name], without)
        for used in _used(place, name, frozenset(without)):
            owner, _, attribute = used.partition(".")
            alias = read.ours.get(owner)
            if attribute and alias is not None and not alias[1]:  # something from a module of ours
                take(alias[0], attribute)
                source = re.sub(rf"(?<![\w.]){owner}\.{attribute}\b", attribute, source)
            elif owner != name:
                take(place, owner)
        if (place, source) in found.values():
            return  # one of several names defined on one line
        if name in found and found[name][0] != place:
            raise UserError(f"{place} and {found[name][0]} both define {name}: give one of them another name")
        found[name] = place, source

    for place, name in [*((module, name) for name in names), *also]:
        take(place, name)
    text = HEADER.format(title=title, version=lit_ctg.__version__) + "\n".join(sorted(imports)) + "\n"
    for name, (place, source) in found.items():
        text += f"\n\n# {place}: {name}\n{source}\n"
    return text


@cache
def _read(module: str) -> _Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    definitions: dict[str, ast.stmt] = {}
    ours: dict[str, tuple[str, str]] = {}
    others: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
            definitions |= {part.id: node for part in stored if isinstance(part.ctx, ast.Store)}
        elif isinstance(node, ast.Import):
            others |= {
                alias.asname or alias.name.partition(".")[0]: ast.unparse(ast.Import([alias])) for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            place = str(node.module)
            for alias in node.names:
                bound, inner = alias.asname or alias.name, f"{place}.{alias.name}"
                if place.partition(".")[0] != "lit_ctg":
                    others[bound] = ast.unparse(ast.ImportFrom(place, [alias], 0))
                else:
                    ours[bound] = (inner, "") if _is_module(inner) else (place, alias.name)
    return _Module(tuple(text.splitlines()), definitions, ours, others)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a package
        return False


def _source(read: _Module, node: ast.stmt, without: Collection[str]) -> str:
    methods = node.body if isinstance(node, ast.ClassDef) else []
    left_out = [_lines(one) for one in methods if _left_out(node, one, without)]
    kept = [number for number in _lines(node) if not any(number in one for one in left_out)]
    checks = [_lines(one) for one in ast.walk(node) if _is_check(one)]
    kept = [number for number in kept if not any(number in one for one in checks)]
    text = re.sub(r" *@checked\n|\(Checked\)|\bChecked, ", "", "\n".join(read.lines[number - 1] for number in kept))
    return re.sub(r"\n{3,}", "\n\n", text).rstrip()


def _left_out(owner: Any, part: ast.stmt, without: Collection[str]) -> bool:
    """Return whether a part of a class is a method to leave out: ``<method>`` of any class, or ``<class>.<method>``."""
    return isinstance(part, ast.FunctionDef) and not {part.name, f"{owner.name}.{part.name}"}.isdisjoint(without)


def _is_check(node: ast.AST) -> bool:
    """Return whether a statement only checks values against annotations, a loop or a condition over such checks too."""
    if isinstance(node, ast.For | ast.If):
        return not node.orelse and all(map(_is_check, node.body))
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check_value"


def _lines(node: Any) -> range:
    """Return the line numbers of a definition, including its decorators."""
    decorators = getattr(node, "decorator_list", [])
    return range(min([node.lineno, *(one.lineno for one in decorators)]), (node.end_lineno or node.lineno) + 1)


@cache
def _used(module: str, name: str, without: frozenset[str]) -> tuple[str, ...]:
    """Return the names that a definition of a module uses, those of some methods apart."""
    node = _read(module).definitions[name]
    if not isinstance(node, ast.ClassDef):
        return tuple(_names(node))
    kept = [one for one in node.body if not _left_out(node, one, without)]
    return tuple(used for part in [*node.bases, *node.keywords, *node.decorator_list, *kept] for used in _names(part))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a definition uses at run time; for an attribute of a name, both ``a.b`` and ``a``."""
    if _is_check(node):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
        return
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store) and node.id not in ("checked", "Checked"):  # or a class's attribute
            yield node.id
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.AST):
                yield from _names(inner)
