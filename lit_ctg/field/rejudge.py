"""`lit-ctg field rejudge`: the texts of the records, judged again with another seed. Does the ranking hold?

No text is generated again and no language model is needed: judges are trained with another seed, which draws other
pieces of the human texts and other starting weights, and read the texts beside the records. The result is kept as
``judges/<task>-seed<k>.json`` beside the records, and the report shows it under the task's ranking.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from lit_ctg.errors import UserError, refuse
from lit_ctg.field.bench import Bench
from lit_ctg.field.judge import successes
from lit_ctg.field.page import JUDGES, folders_of, load
from lit_ctg.field.rank import BARE, RESAMPLES, bench_key, method_of, ranking, sweeps, task_of
from lit_ctg.field.run import build_bench
from lit_ctg.files import write_atomic
from lit_ctg.results.record import SIZES, RunRecord
from lit_ctg.terminal import Console
from lit_ctg.trust import stored


def rejudge(
    seed: int,
    records: Sequence[str] | None = None,
    task: str | None = None,
    root: str | None = None,
    output_root: str = "outputs",
    console: Console | None = None,
) -> int:
    """Judge the texts of records again, write the results beside them and print the lines.

    Args:
        records: a folder; by default ``outputs/field``, or the committed records where there is none.
        task: of this task only; by default all that are judged by trained judges.
        root: the corpus's folder now, with ``task``; by default its folder when the records were made.

    Raises:
        UserError: no such records, the records' own seed, several folders, or other texts than the judges were to know.
    """
    places = folders_of(records)
    refuse({
        "root= is the corpus of one task: give task=, too": root is not None and task is None,
        "field rejudge writes beside the records: give one folder with records=":
            len(places) != 1 or not places[0].is_dir(),
    })  # fmt: skip
    found = load(records)
    size = next((each for each in reversed(SIZES) if any(record.size == each for record in found)), None)
    chosen = [record for record in found if record.size == size and task in (None, task_of(record))]
    tasks = sorted({task_of(record) for record in chosen if record.config["task"]["column"] not in ("words", "rules")})
    if not tasks:
        raise UserError("no records of a task with trained judges: those of words and rules have no seed")
    shown = console or Console(soft_wrap=True, highlight=False)
    for name in tasks:
        own = [record for record in chosen if task_of(record) == name]
        result = judged_anew(own, seed, output_root, root)
        path = places[0] / JUDGES / f"{name}-seed{seed}.json"
        write_atomic(path, json.dumps(result, indent=1) + "\n")
        shown.print(f"{name}: {result['areas'] or 'no judge decides'}; {path}", markup=False)
    return 0


def judged_anew(records: Sequence[RunRecord], seed: int, output_root: str, root: str | None) -> dict[str, Any]:
    """Return accuracies of judges of another seed, and the methods' areas by those that decide.

    Args:
        records: of one task and bench, with their texts.
        root: the corpus's folder; None for its folder when the records were made.
    """
    first = records[0]
    task, methods = task_of(first), sorted(set(map(method_of, records)))
    refuse({
        f"{task}: the records are of different benches: give records= of one of them":
            len({bench_key(record) for record in records}) > 1,
        f"seed={seed}: the records' judges are of this seed; give another one":
            int(first.config["judges"]["seed"]) == seed,
        f"{task}: areas are counted from the bare model: lit-ctg field run method=bare": BARE not in methods,
    })  # fmt: skip
    config = copy.deepcopy(first.config)
    config["judges"]["seed"], config["output_root"] = seed, output_root
    if root is not None:
        config["data"]["root"] = root
    bench = build_bench(stored(config, f"{task}: the record"))
    if bench.task.data.checksum() != first.corpus.get("text"):
        raise UserError(f"{task}: the corpus is not the records' (its checksum differs): give root=<folder>")
    judges, proofs = bench.judges
    known = {judge.name: proof.balanced for judge, proof in zip(judges, proofs, strict=True)}
    deciding = [name for name, value in known.items() if value >= float(first.config["judges"]["least_accuracy"])]
    anew = [_with_hits(record, bench) for record in records]
    ranked = ranking(sweeps(anew, deciding), resamples=RESAMPLES).standings if deciding else ()
    return {
        "task": task,
        "size": first.size,
        "seed": seed,
        "bench": bench_key(first),
        "balanced_accuracy": {name: round(value, 4) for name, value in known.items()},
        "methods": methods,
        "areas": {each.method: round(each.area, 4) for each in ranked},
    }


def _with_hits(record: RunRecord, bench: Bench) -> RunRecord:
    anew = copy.copy(record)
    anew.samples = [dict(row) for row in record.samples]
    texts, targets = [row["text"] for row in anew.samples], [row["target"] for row in anew.samples]
    for judge in bench.judges[0]:
        for row, hit in zip(anew.samples, successes(judge, texts, targets), strict=True):
            row[judge.name] = int(hit)
    return anew
