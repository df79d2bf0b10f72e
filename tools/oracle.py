"""What moving code must not change: `python tools/oracle.py [PART ...] [write]` compares it with ``tests/oracle``.

- ``cells``: digests of the numbers and verdicts in every row of the papers' tables
- ``configs``: the hash of each experiment in both regimes and at all sizes, and of each group of runs in ``paper.yaml``
- ``verify``: what `lit-ctg verify` recomputes of the committed records, and that they are unchanged
- ``texts``: digests of the texts of a smoke run of each paper

Without a part: all of them. The first training losses are held by ``tests/golden``. ``write`` sets the oracle anew: a
commit that does so says why.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from rich.console import Console

from lit_ctg.config import Regime, Size, compose, experiments, plain
from lit_ctg.results.gather import AUTO, all_results
from lit_ctg.results.record import REGIMES, config_hash, load_records
from lit_ctg.results.spec import load_manifest, papers
from lit_ctg.results.table import Cell
from lit_ctg.results.verify import folders_of
from lit_ctg.results.verify import main as verify_command
from lit_ctg.run.reproduce import load_groups

ROOT = Path(__file__).resolve().parents[1]
ORACLE, RECORDS = ROOT / "tests" / "oracle", ROOT / "experiments"
# a short run of each paper that generates
SMOKE = ("control_code/transformer", "graphmax/review", "idea_gate/main", "nslm/numbers", "semantic_fusion/main")


def digest(data: bytes | str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def cells() -> list[str]:
    """Return a line a table: paper, size, name, and a digest for each row."""
    lines = []
    for paper in papers(RECORDS):
        for results in all_results(paper, RECORDS, folders_of(RECORDS, paper)[:1], AUTO):
            for table in results.shown:
                rows = [
                    json.dumps(
                        [
                            row.spec.section,
                            row.spec.label,
                            row.printed.text if row.printed else None,
                            {regime: verdict.label for regime, verdict in sorted(row.impossible.items())},
                            {regime: _numbers(cell) for regime, cell in sorted(row.cells.items()) if cell is not None},
                        ]
                    )
                    for row in table.rows
                ]
                lines.append(f"{paper} {results.size} {table.spec.name}: {' '.join(digest(row)[:6] for row in rows)}")
    return lines


def _numbers(cell: Cell) -> list[Any]:
    """Return what a cell says, numbers to 12 digits: other processors add up in another order."""
    numbers = [*sorted(cell.values.items()), cell.mean, cell.interval, sorted(cell.bounds.items())]
    counts = [cell.trials, cell.folds, cell.cells, cell.hole is None, len(cell.texts), bool(cell.finding)]
    return [_short(numbers), counts, cell.verdict.label if cell.verdict else None]


def _short(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    return f"{value:.12g}" if isinstance(value, float) else value


def configs() -> list[str]:
    """Return a line for each experiment, regime and size, and one for each group of runs in the papers' manifests."""
    lines = []
    for name in experiments():
        cfg = compose([f"experiment={name}"])
        for regime, size in itertools.product(Regime, Size):
            # what is chosen by regime and size are values, resolved last: one composition serves all
            cfg.regime, cfg.size = regime, size
            lines.append(f"{name} {regime.name} {size.name} {config_hash(plain(cfg))[:16]}")
    for paper in papers(RECORDS):
        stored = {record.source: config_hash(record.config) for record in load_records(folders_of(RECORDS, paper))}
        for size in load_manifest(RECORDS, paper).runs:
            for group in load_groups(RECORDS, paper, size):
                words = [*group.words, f"seed={group.seeds[0]}"]
                today = config_hash(plain(compose(words)))
                known = "recorded" if today in stored.values() else "not recorded"
                lines.append(f"{paper}/paper.yaml {digest(' '.join(words))[:8]} {group.name} {today[:16]} {known}")
    return lines


def verify() -> list[str]:
    """Return the lines of `lit-ctg verify`."""
    told = io.StringIO()
    verify_command(console=Console(file=told, width=1000))
    return told.getvalue().splitlines()


def texts() -> list[str]:
    """Return a line for each paper and regime: how many texts its smoke run wrote, and their digest."""
    from lit_ctg.run.train import train

    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in SMOKE:
            for regime in REGIMES:
                words = [f"experiment={name}", f"regime={regime}", "size=smoke", f"output_root={scratch}", "threads=1"]
                words += ["trainer.accelerator=cpu"]
                (record,) = load_records([train(compose(words)).folder])
                written = [sample["text"] for sample in record.samples]
                lines.append(f"{name} {regime}: {len(written)} texts {digest(json.dumps(written))}")
    return lines


PARTS: dict[str, Callable[[], list[str]]] = {each.__name__: each for each in (cells, configs, verify, texts)}


def main(words: Sequence[str]) -> int:
    """Compare or write the parts; return 1 where one differs."""
    chosen = [word for word in words if word != "write"] or list(PARTS)
    code = 0
    for part in chosen:
        made, path = PARTS[part](), ORACLE / f"{part}.txt"
        if "write" in words:
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(made) + "\n", encoding="utf-8")
        kept = path.read_text(encoding="utf-8").splitlines()
        changes = [
            line for line in unified_diff(kept, made, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))
        ]
        print(f"{part}: {len(made)} lines, {len(changes)} differ", *changes[:20], sep="\n  ", flush=True)
        code = max(code, bool(changes))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
