"""How large the project is: each number of the design's table with its limit.

    make size            (or: python tools/size.py [--names])

``--names`` also prints what is counted where that is a list: parsers, keys of a row, circles. It reads tracked files.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "lit_ctg"
# a file with one of these parses a command line: a parser of the library, a composition by Hydra, a word by its place,
# or key=value split with a check for the equals sign
PARSER = re.compile(r"ArgumentParser\(|hydra\.compose\(|sys\.argv\[\d\]|\w+, (?!_,)\w+, \w+ = .*\.partition\(\"=\"\)")
# these read something else: Hydra's experiments and sweeps, arguments of our own process, words of the shell's
# completion, a number on the page, name=folder
OTHERS = {
    f"{PACKAGE}/{name}.py" for name in ("config", "run/sweep", "run/lab", "run/listing", "run/play", "control/bundle")
}
Edges = dict[str, set[str]]


def tracked(*patterns: str) -> list[Path]:
    """Return the tracked files that are there."""
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def lines(paths: Iterable[Path]) -> int:
    return sum(text_of(path).count("\n") for path in paths)


def words(paths: Iterable[Path]) -> int:
    return sum(len(text_of(path).split()) for path in paths)


def row_keys(path: Path) -> list[str]:
    """Return the keys that a table's row may be written with: its fields but those written with another, and bounds."""
    (row,) = (node for node in tree(path).body if isinstance(node, ast.ClassDef) and node.name == "RowSpec")
    fields = [
        line.target.id for line in row.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]
    assigned = {
        node.targets[0].id: node.value
        for node in tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    def words_in(node: ast.AST) -> set[str]:
        parts = list(ast.walk(node))
        own = {part.value for part in parts if isinstance(part, ast.Constant)}
        return own.union(*(words_in(assigned[part.id]) for part in parts if isinstance(part, ast.Name)))

    with_another = words_in(assigned["_WRITTEN_WITH_ANOTHER"])
    return [*(name for name in fields if name not in with_another), "bounds"]


def parsers(paths: Iterable[Path], root: Path) -> list[str]:
    """Return the files that parse a command line beside Hydra's."""
    names = [path.relative_to(root).as_posix() for path in paths if PARSER.search(text_of(path))]
    return [name for name in names if name not in OTHERS]


def user_errors(path: Path) -> int:
    """Return how often a file raises ``UserError``."""
    calls = (node.exc for node in ast.walk(tree(path)) if isinstance(node, ast.Raise))
    return sum(isinstance(call, ast.Call) and ast.unparse(call.func).endswith("UserError") for call in calls)


def imports(tree: ast.AST, typed: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module, lazy ones too; those below ``if TYPE_CHECKING`` only if ``typed``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typed:
            for other in node.orelse:
                yield from imports(other, typed)
        else:
            yield from imports(node, typed)


def edges(paths: Iterable[Path], root: Path, typed: bool = False) -> Edges:
    """Return of each module the modules that it imports by name, among ``paths``."""
    modules = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    found: Edges = {}
    for module, path in modules.items():
        names = set()
        for node in imports(tree(path), typed):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
                continue
            package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            base = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            below = {f"{source}.{alias.name}" for alias in node.names}
            names |= below & modules.keys()
            # names that are no modules come from the package itself
            names |= {source} if below - modules.keys() else set()
        found[module] = names & modules.keys() - {module}
    return found


def circles(found: Edges) -> list[list[str]]:
    """Return the groups of modules that import each other, however many others lie between."""
    reach: Edges = {}
    for start in found:
        seen, todo = set(), [start]
        while todo:
            for name in found[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        reach[start] = seen
    groups = {frozenset([name, *(other for other in reach[name] if name in reach[other])]) for name in found}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def main(arguments: list[str]) -> int:
    """Print the table."""
    code = tracked(f"{PACKAGE}/*.py")
    # by hand: not the tables of records, nor the cards that a build writes beside a control
    markdown = [path for path in tracked("*.md") if path.name != "tables.md" and ROOT / PACKAGE not in path.parents]
    records = tracked("experiments")
    kept = sum(path.stat().st_size for path in records) / 1e6
    # of each row: name, number, limit after "A smaller house", limit at the end of the round, names
    named = {
        "command line parsers": parsers(code, ROOT),
        "keys of a table row": row_keys(ROOT / PACKAGE / "results" / "spec.py"),
        "import circles": circles(edges(code, ROOT)),
        "import circles, type-only imports too": circles(edges(code, ROOT, typed=True)),
    }
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("lines in lit_ctg/", lines(code), 46_000, 51_000),
        ("lines in tests/", lines(tracked("tests/*.py")), 37_000, 42_000),
        ("files conf/experiment/*/*.yaml", len(tracked("conf/experiment/*/*.yaml")), 45, 50),
        ("files in experiments/", len(records), 250, 250),
        ("MB in experiments/", kept, 35, 30),
        ("command line parsers", len(named["command line parsers"]), 1, 1),
        ("keys of a table row", len(named["keys of a table row"]), 30, 30),
        ("raise UserError sites", sum(map(user_errors, code)), 400, 450),
        ("import circles", len(named["import circles"]), 0, 0),
        ("import circles, type-only imports too", len(named["import circles, type-only imports too"]), None, None),
        ("words of Markdown by hand", words(markdown), None, 22_000),
        ("words of CHANGELOG.md", words([ROOT / "CHANGELOG.md"]), None, 1_500),
        ("pages in docs/", len(tracked("docs/*.md")), None, 16),
    ]
    print(f"{'':38}{'now':>8}{'limit':>9}{'at the end':>12}")
    for name, number, limit, last in rows:
        cells = ["-" if bound is None else f"{bound:,}" for bound in (limit, last)]
        over = limit is not None and number > limit
        print(f"{name:38}{number:8,.0f}{cells[0]:>9}{cells[1]:>12}{'  over' if over else ''}")
    if "--names" in arguments:
        for name, items in named.items():
            print(
                f"\n{name}:", *(f"  {item if isinstance(item, str) else ', '.join(item)}" for item in items), sep="\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
