"""`lit-ctg field add name=<name>`: the files of a new method, which runs as it is and changes nothing yet."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from lit_ctg.errors import UserError, refuse
from lit_ctg.field.command import options
from lit_ctg.files import config_folder, write_atomic

METHOD = '''"""{title}: describe here what it does, and by which equation of which paper."""

from __future__ import annotations

from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.method import Method


class {title}(Method):
    """Steers; its strength is ..."""

    def fit(self, bench: Bench) -> None:
        """Learn from the training split: ``bench.task.examples("train", label)``, ``bench.tuned(label)``, ..."""

    def arm(self, bench: Bench, target: str) -> Arm:
        # a control of lit_ctg.control belongs in the list, its settings at a strength into the function
        return Arm(bench.model, [], lambda strength: {{}})

    def parameters(self) -> int:
        return 0
'''
OPTION = """# {title}: one line for the list of methods
_target_: lit_ctg.field.methods.{name}.{title}
strengths: [1, 2]
"""
TEST = '''"""{title}: its equation against a slow restatement."""

from __future__ import annotations

from tests.field.conftest import MakeBench

from lit_ctg.field.methods.{name} import {title}


def test_it_writes_from_every_prompt(make_bench: MakeBench) -> None:
    bench, method = make_bench(), {title}(strengths=[1, 2])
    method.fit(bench)
    texts, _, _ = bench.write(method.arm(bench, bench.task.targets[0]), 1.0)
    assert len(texts) == len(bench.prompts)
'''


def add(name: str, root: Path | None = None) -> list[Path]:
    """Write a method, its option and its test; return the files.

    Args:
        root: of the checkout; None for the one that contains this package.

    Raises:
        UserError: not a plain lower-case word, a method of that name, or an installed package without a checkout.
    """
    root = root or config_folder().parent
    plain = re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) and not keyword.iskeyword(name)
    refuse({
        f"name={name[:80]}: give a word of at most 60 lower-case letters, digits and _, not a keyword of Python":
            not plain,
        f"name={name}: this method exists already; choose another name": name in options("method"),
        "lit-ctg field add writes into a checkout of the repository: clone it and install it with -e":
            not (root / "tests").is_dir(),
    })  # fmt: skip
    title = "".join(part.capitalize() for part in name.split("_"))
    made = {
        root / "lit_ctg" / "field" / "methods" / f"{name}.py": METHOD,
        root / "conf" / "field" / "method" / f"{name}.yaml": OPTION,
        root / "tests" / "field" / "methods" / f"test_{name}.py": TEST,
    }
    for path, content in made.items():
        if path.exists():
            raise UserError(f"{path} exists already: choose another name")
        write_atomic(path, content.format(name=name, title=title))
    return list(made)
