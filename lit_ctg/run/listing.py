"""`lit-ctg list`: what there is to choose from, one line each; `lit-ctg completion`: the same for the shell.

Nothing here imports torch: descriptions are the first comment of an option's YAML file, or the first line of the
docstring of the class it builds, read from the source.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lit_ctg.config import Regime, Size, composed, config_folder, experiments, prepare_overrides, variants
from lit_ctg.results.spec import experiments_root, load_manifest, papers

PACKAGE = Path(__file__).resolve().parents[1]
# the kinds that can be listed, and the folder of conf/ that holds each; controls are classes
PAPERS, CONTROLS = "papers", "controls"
KINDS = {
    PAPERS: "",
    "experiments": "experiment",
    "data": "data",
    "models": "model",
    "backbones": "backbone",
    "metrics": "metric",
    "callbacks": "callback",
    "tokenizers": "data/tokenizer",
    "sweeps": "sweep",
    "loggers": "logger",
    "trainers": "trainer",
    CONTROLS: "",
}


def options(kind: str) -> dict[str, str]:
    """Return ``{name: description}`` of everything of one kind, by name."""
    if kind == CONTROLS:
        return controls()
    if kind == PAPERS:
        root = experiments_root()
        manifests = {name: load_manifest(root, name) for name in papers(root)}
        return {name: f"{found.title}: {found.about.does if found.about else ''}" for name, found in manifests.items()}
    if kind == "experiments":
        said = {name: variant["says"] for name, variant in variants().items()}
        folder = config_folder() / "experiment"
        return {
            name: _sentence(said[name]) if name in said else description(folder / f"{name}.yaml")
            for name in experiments()
        }
    folder = config_folder() / KINDS[kind]
    files = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if kind == "data":  # options in subfolders, such as data=control_code/books2
        inner = sorted(path for path in folder.glob("*/*.yaml") if path.parent.name != "tokenizer")
        files |= {path.relative_to(folder).with_suffix("").as_posix(): path for path in inner}
    return {name: description(path) for name, path in files.items()}


def controls() -> dict[str, str]:
    """Return ``{kind: description}`` of the controls that ``lit-ctg export`` writes and ``controls=[...]`` takes."""
    found = {}
    for path in [*sorted(PACKAGE.glob("control/*.py")), *sorted(PACKAGE.glob("papers/*/control.py"))]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (kind := _kind(node)):
                paper = f" ({path.parent.name})" if path.parent.parent.name == "papers" else ""
                found[kind] = _sentence((ast.get_docstring(node) or "").split("\n")[0]) + paper
    return found


def _kind(node: ast.ClassDef) -> str:
    """Return what a class assigns to ``kind``, alone or among others; "" if it is not a control that can be made."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for name, given in pairs:
                if isinstance(name, ast.Name) and name.id == "kind" and isinstance(given, ast.Constant):
                    return str(given.value)
    return ""


def description(path: Path) -> str:
    """Return the first comment of a YAML file, else the first docstring line of what it builds, else ""."""
    text = path.read_text(encoding="utf-8")
    said = []
    for line in text.splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        said.append(line.lstrip("# ").rstrip())
    if said:
        return _sentence(" ".join(said))
    target = re.search(r"_target_:\s*(lit_ctg[\w.]+)", text)
    return docstring(target[1]) if target else ""


def docstring(target: str) -> str:
    """Return the first line of the docstring of ``lit_ctg.module.Class`` without importing it."""
    module, _, name = target.rpartition(".")
    file = PACKAGE.parent / Path(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        return ""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _sentence((ast.get_docstring(node) or "").split("\n")[0])
    return ""


def _sentence(text: str) -> str:
    """Return the first sentence, without a trailing command; a full stop in "sec. 3" and the like does not end it."""
    first = re.split(r"(?<!sec)(?<!Eq)(?<!Fig)(?<!App)\.\s+(?=[A-Z`])", text)[0]
    return re.split(r":?\s+lit-ctg ", first)[0].rstrip(". ").replace("``", "")


def lines(what: str | None = None) -> list[str]:
    """Return one line for each option of a kind, or without a kind one for each kind."""
    found = options(what) if what else {
        f"lit-ctg list {kind}": textwrap.shorten(", ".join(options(kind)), 80, placeholder=" ...") for kind in KINDS
    }  # fmt: skip
    width = max(map(len, found), default=0)
    return [f"{name:{width}}  {text}".rstrip() for name, text in found.items()]


def candidates(words: Sequence[str], commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the completions of the last word after ``lit-ctg``.

    Args:
        words: as typed so far; the last one may be empty or incomplete.
        commands: command -> its settings.
    """
    *before, last = words or [""]
    command = next((name for count in (2, 1) if (name := " ".join(before[:count])) in commands), None)
    if command is None:
        inner = [name.split() for name in commands if name.split()[: len(before)] == before]
        return list(dict.fromkeys(name[len(before)] for name in inner if name[len(before)].startswith(last)))
    key, equals, _ = last.partition("=")
    given = {word.partition("=")[0] for word in before}
    groups = {folder: kind for kind, folder in KINDS.items() if folder}
    overridden = "experiment" in commands[command]
    if not equals:
        known = [*commands[command], *(groups if overridden else ())]
        found = [f"{name}=" for name in dict.fromkeys(known) if name.startswith(last) and name not in given]
        return found + (_settings(before, last) if overridden else [])
    values: Iterable[str] = options(groups[key]) if key in groups else []
    if key in ("regime", "size"):
        values = Regime if key == "regime" else Size
    elif key == "what":
        values = KINDS
    elif key == "paper":
        values = sorted(path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py"))
    return [f"{key}={value}" for value in values if f"{key}={value}".startswith(last)]


def _settings(words: Sequence[str], typed: str) -> list[str]:
    """Return the settings of the configuration that the words choose, one level below what was typed."""
    parent, dot, _ = typed.rpartition(".")
    try:
        cfg = composed(prepare_overrides(word for word in words if "=" in word))
        node = OmegaConf.select(cfg, parent) if dot else cfg
    except Exception:  # an unfinished line may hold anything
        return []
    if not isinstance(node, DictConfig):
        return []
    below = {f"{parent}{dot}{key!s}": isinstance(node._get_node(key), DictConfig) for key in node}
    names = (f"{name}{'.' if inner else '='}" for name, inner in below.items() if dot or inner)
    return [name for name in names if name.startswith(typed) and not name.endswith("_target_=")]


SCRIPTS = {
    "bash": """\
_lit_ctg() {
    local IFS=$'\\n'
    local line="${COMP_LINE:0:COMP_POINT}"
    local words=($(COMP_TYPED="$line" lit-ctg complete))
    local current="${COMP_WORDS[COMP_CWORD]}"
    # bash breaks words at "=": the text before it is not part of the word it completes
    if [[ "$line" == *=* && "${line##* }" == *=* ]]; then
        local prefix="${line##* }"; prefix="${prefix%%=*}="
        words=("${words[@]#$prefix}")
    fi
    COMPREPLY=("${words[@]}")
    [[ "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
}
complete -F _lit_ctg lit-ctg
""",
    "zsh": """\
_lit_ctg() {
    local -a words_found
    words_found=(${(f)"$(COMP_TYPED="${(j: :)words[1,CURRENT]}" lit-ctg complete)"})
    compadd -S '' -a words_found
}
compdef _lit_ctg lit-ctg
""",
    "fish": """\
complete -c lit-ctg -f -a '(COMP_TYPED=(commandline -cp | string collect) lit-ctg complete)'
""",
}


def typed(line: str) -> list[str]:
    """Return the words after ``lit-ctg`` of an unfinished command line; the last one is "" after a space."""
    return line.split(" ")[1:] if " " in line else [""]
