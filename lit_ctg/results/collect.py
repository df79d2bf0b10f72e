"""`python -m lit_ctg.results.collect`: copy finished runs into ``experiments/<paper>/results``, as they are.

A record goes to ``<name>/<regime>-<size>-seed<seed>.json``, the run's generated samples beside it. A record that is
there already stays, unless ``--replace`` says otherwise; runs of uncommitted code are refused. Where the run wrote
(``output_root``) is nobody's business and changes no result: the copy says "outputs".
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from lit_ctg.errors import UserError
from lit_ctg.files import write_samples
from lit_ctg.results.record import RunRecord, load_records, write_record

# a record says itself where it belongs: it must not be able to say "../../elsewhere"
_PLAIN = re.compile(r"(?!\.)[\w.+=,-]+")


def collect(records: list[RunRecord], root: Path, *, replace: bool = False) -> list[Path]:
    """Write finished records below ``root`` and return the new files.

    Args:
        records: read from run directories.
        root: the ``experiments`` folder.
        replace: overwrite a record of the same experiment, regime, size and seed.

    Raises:
        UserError: a run of code that was not committed, or one whose name or paper is no plain folder name.
    """
    written = []
    for record in records:
        if record.status not in ("DONE", "DIVERGED"):
            continue
        if record.git.get("dirty") is not False:
            raise UserError(
                f"{record.source}: made with uncommitted changes, so nobody could repeat it: commit, run again"
            )
        for field in ("paper", "name"):
            if not _PLAIN.fullmatch(getattr(record, field)):
                raise UserError(f"{record.source}: its {field} is {getattr(record, field)!r}, no plain folder name")
        name = f"{record.regime}-{record.size}-seed{record.seed}"
        folder = root / record.paper / "results" / record.name
        target = folder / f"{name}.json"
        if target.exists() and not replace:
            continue
        samples, record.samples = record.samples, []
        record.config["output_root"] = "outputs"
        write_record(record, target)
        if samples:
            write_samples(samples, folder / f"{name}.samples.jsonl")
        written.append(target)
    return written


def main(words: list[str] | None = None) -> int:
    """Run ``python -m lit_ctg.results.collect [outputs] [--into experiments] [--replace]``."""
    parser = argparse.ArgumentParser(prog="python -m lit_ctg.results.collect")
    parser.add_argument("outputs", nargs="?", default="outputs", type=Path)
    parser.add_argument("--into", default=Path("experiments"), type=Path)
    parser.add_argument("--replace", action="store_true")
    options = parser.parse_args(words)
    try:
        written = collect(load_records([options.outputs]), options.into, replace=options.replace)
    except UserError as error:
        print(f"collect: {error}", file=sys.stderr)
        return 2
    print(f"{len(written)} records written below {options.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
