"""`lit-ctg field report`: tables, pictures and samples of the field's records (no torch)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from lit_ctg.errors import UserError
from lit_ctg.field.rank import (
    BARE,
    COST,
    HELD_OUT,
    HUMAN,
    MEASURES,
    Ranking,
    Sweep,
    above_bare,
    area,
    bench_key,
    check_record,
    curve,
    deciding_judges,
    describe,
    judges_of,
    longest,
    mean_ranks,
    method_of,
    mixed_area,
    over_tasks,
    ranking,
    sweeps,
    task_of,
)
from lit_ctg.figure import Bar, BarGroup, Line, Sheet, bar_chart, line_chart
from lit_ctg.files import reading, write_atomic
from lit_ctg.numbers import format_value
from lit_ctg.results.record import RECORDS, SIZES, RunRecord, load_records
from lit_ctg.results.render import escape_markdown
from lit_ctg.terminal import Console

PAPER, TABLES, JUDGES = "field", "tables.md", "judges"
LEAST_PROMPTS = 6  # that agree say something by the exact sign test, too; of fewer the bootstrap is sure too soon
CURVES = 6  # classes of lines that the drawing library has
LONGEST = 160  # letters of a sample


def report(
    records: Sequence[str] | None = None,
    out: str | None = None,
    size: str | None = None,
    *,
    console: Console | None = None,
) -> int:
    """Print the tables of every task; with ``out`` write them and the pictures there.

    Args:
        records: folders; by default ``outputs/field``, or the committed records if it does not exist.
        size: of the runs; by default the largest that was run.

    Raises:
        UserError: no records, or records that cannot be compared.
    """
    shown = console or Console(soft_wrap=True, highlight=False)
    found = load(records)
    chosen = size or next((each for each in reversed(SIZES) if any(record.size == each for record in found)), None)
    found = [record for record in found if record.size == chosen]
    if not found:
        raise UserError(f"no record of the field{f' of size={size}' if size else ''}: lit-ctg field run makes some")
    pages: list[str] = []
    pictures: dict[str, Sheet] = {}
    tasks: dict[str, dict[str, Sweep]] = {}
    judged = rejudged(records)
    for task in sorted({task_of(record) for record in found}):
        own = [record for record in found if task_of(record) == task]
        text, drawn = task_page(task, own, judged)
        pages.append(text)
        pictures |= drawn
        deciding, _ = deciding_judges(own[0])
        if deciding and BARE in map(method_of, own):
            tasks[task] = sweeps(own, deciding)
    text, drawn = tasks_page(tasks)
    pages, pictures = [*([text] if text else []), *pages], pictures | drawn
    whole = "# The level field: measured\n\nWritten by `lit-ctg field report`; do not edit.\n\n" + "\n".join(pages)
    if out is None:
        shown.print(whole, markup=False)
        return 0
    write_atomic(Path(out) / TABLES, whole)
    for name, sheet in pictures.items():
        sheet.save(Path(out) / "figures" / name)
    shown.print(f"{TABLES} and {len(pictures)} figures in {out}", markup=False)
    return 0


def folders_of(records: Sequence[str] | None) -> list[Path]:
    """Return the folders of ``records=``: by default ``outputs/field``, or the committed records where it is not."""
    from lit_ctg.results.spec import experiments_root

    places = [Path(folder) for folder in records or ()]
    for place in places:
        if not place.exists():
            raise UserError(f"no records at {place}: pass a folder of the field's runs with records=")
    if not places:
        places = [Path("outputs") / PAPER]
        if not places[0].is_dir():
            places = [experiments_root() / PAPER / RECORDS]
    return places


def load(records: Sequence[str] | None) -> list[RunRecord]:
    """Return the finished records of the field in some folders."""
    found = load_records(folders_of(records))
    return [check_record(record) for record in found if record.paper == PAPER and record.status == "DONE"]


def rejudged(records: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return what ``lit-ctg field rejudge`` left in the folders: rankings under judges of other seeds."""
    rankings = []
    for path in sorted(path for place in folders_of(records) for path in (place / JUDGES).glob("*.json")):
        kinds = (AttributeError, KeyError, TypeError)
        with reading(path, "a ranking under other judges", "delete it, or run field rejudge again", *kinds):
            each = json.loads(path.read_text(encoding="utf-8"))
            tables = {key: {str(name): float(value) for name, value in each[key].items()}
                      for key in ("balanced_accuracy", "areas")}  # fmt: skip
            names = {key: str(each[key]) for key in ("task", "bench")}
            rankings.append({**names, "seed": int(each["seed"]), **tables})
    return rankings


def task_page(
    task: str, records: Sequence[RunRecord], judged: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, dict[str, Sheet]]:
    """Return the page of one task as Markdown, and its pictures by file name.

    Args:
        judged: see ``rejudged``; those of other records are left out.

    Raises:
        UserError: records of different benches.
    """
    records = longest(records)
    if len({bench_key(record) for record in records}) > 1:
        raise UserError(f"{task}: the records are of different models, prompts or judges: give records= of one of them")
    deciding, failed = deciding_judges(records[0])
    lines = [f"## {task}", "", *about(records), ""]
    lines += [f"Judge {escape_markdown(name)}: {judge_line(records[0], name)}, decides." for name in deciding]
    lines += [f"Judge {escape_markdown(name)}: {judge_line(records[0], name)}, below "
              f"{records[0].config['judges']['least_accuracy']:g}: decides nothing." for name in failed]  # fmt: skip
    if not deciding:
        line = "No judge knows human texts well enough: this task decides nothing. What was measured, unranked:"
        heads = [*(f"success ({escape_markdown(judge)})" for judge in failed), "perplexity"]
        rows = []
        several = len({record.seed for record in records}) > 1
        for record in sorted(records, key=lambda each: (method_of(each), each.seed)):
            for strength in record.config["method"]["strengths"]:
                shown = [f"{describe(record, float(strength), f'success/{judge}'):.3f}" for judge in failed]
                shown.append(f"{describe(record, float(strength), 'perplexity'):.1f}")
                seed = f", seed {record.seed}" if several else ""
                rows.append([f"{method_of(record)} {strength:g}{seed}", *shown])
        return "\n".join([*lines, "", line, "", *_table(["method at strength", *heads], rows), ""]), {}
    found = sweeps(records, deciding)
    if BARE not in found:
        return "\n".join([*lines, "", "The bare model was not run, so nothing can be ranked.", ""]), {}
    ranked = ranking(found)
    lines += [*lacking_line(records), *mixed_lines(records)]
    lines += ["", *main_table(ranked, found), "", *judge_seed_lines(task, records, ranked, judged)]
    if any(name.startswith(f"{HELD_OUT}@") for name in records[0].metrics):
        lines += [*held_out_table(ranked, found, sweeps(records, [HELD_OUT])), ""]
    lines += [*cost_table(ranked, found), "", *pair_lines(ranked)]
    lines += ["", *sample_lines(ranked, found), ""]
    groups = [BarGroup(each.method, [Bar("series0" if each.method != BARE else "neutral", each.area, each.interval)])
              for each in ranked.standings]  # fmt: skip
    measure = f"mean best success within {COST:g} nats a token"
    drawn = bar_chart(f"Which control? {task}", groups, measure=measure, low=0.0, high=1.0)
    pictures = {
        f"{task}.svg": Sheet([drawn], (), f"field, {task}"),
        f"{task}_curves.svg": curve_picture(task, ranked, found),
    }
    return "\n".join(lines), pictures


def judge_seed_lines(
    task: str, records: Sequence[RunRecord], ranked: Ranking, judged: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return how the ranking changes under judges of other seeds, a line each, with Kendall's tau-b of the areas."""
    own = {each.method: each.area for each in ranked.standings}
    lines = []
    for each in judged:
        if each["task"] != task or each["bench"] != bench_key(records[0]):
            continue
        known = ", ".join(f"{escape_markdown(name)} {value:.3f}" for name, value in each["balanced_accuracy"].items())
        if not each["areas"]:
            lines.append(f"Judges of seed {each['seed']} ({known}): none decides.")
            continue
        shared = [method for method in own if method in each["areas"]]
        if len(shared) < 2:
            lines.append(f"Judges of seed {each['seed']} ({known}): no method but {BARE} is here and there.")
            continue
        tau = kendalltau([own[method] for method in shared], [each["areas"][method] for method in shared]).statistic
        order = sorted(shared, key=each["areas"].get, reverse=True)
        line = ", ".join(f"{method} {each['areas'][method]:.3f}" for method in order)
        lines.append(f"Judges of seed {each['seed']} ({known}) on the same texts: {line}; Kendall's tau with the table "
                     f"{tau:.2f}.")  # fmt: skip
    return [*lines, ""] if lines else []


def tasks_page(tasks: Mapping[str, Mapping[str, Sweep]]) -> tuple[str, dict[str, Sheet]]:
    """Return the ranking over tasks as Markdown and its picture; nothing where fewer than two tasks decide, or share
    fewer than two methods."""
    places = over_tasks(tasks)
    if not places:
        return "", {}
    rows = [[each.method, f"{each.rank:.2f} [{each.interval[0]:.2f}, {each.interval[1]:.2f}]",
             *(f"{rank:g}" for rank in each.ranks)] for each in places]  # fmt: skip
    lines = [
        "## Over tasks",
        "",
        f"Mean rank by the area among the {len(places)} methods that every task has, 1 the best; [95% bootstrap over "
        "each task's prompts, texts and training seeds; of other tasks it says nothing].",
        "",
        *_table(["method", "mean rank", *tasks], rows),
    ]
    count = len(places)
    groups = [
        BarGroup(
            each.method.replace("_", " "),
            [Bar("series0", count - each.rank, (count - each.interval[1], count - each.interval[0]))],
            digits=1,
        )
        for each in places
        if each.method != BARE
    ]
    title = f"Which control should I use? {len(tasks)} tasks, longer is better"
    measure = f"of {count - 1} others, how many a method beats in a task (mean)"
    drawn = bar_chart(title, groups, measure=measure, low=0.0, high=float(count - 1))
    lines += ["", *otherwise_table(tasks, {place.method: place.rank for place in places}), ""]
    return "\n".join(lines), {"over_tasks.svg": Sheet([drawn], (), "field, over tasks")}


# how else the same texts could be ranked: how dear a control may be, and whether strengths may be mixed
OTHERWISE: dict[str, Callable[[Any, Any, tuple[float, float]], Any]] = {
    "within 0.25 nats": partial(area, most=0.25),
    "within 1 nat": partial(area, most=1.0),
    "mixtures of strengths": mixed_area,
}


def otherwise_table(tasks: Mapping[str, Mapping[str, Sweep]], ranks: Mapping[str, float]) -> list[str]:
    """Return the mean ranks by other measures of the same texts beside ``ranks``, and how alike the orders are."""
    other = {name: mean_ranks(tasks, measure) for name, measure in OTHERWISE.items()}
    agree = [
        f"{name} {kendalltau(list(ranks.values()), [found[method] for method in ranks]).statistic:.2f}"
        for name, found in other.items()
    ]
    rows = [[method, f"{rank:.2f}", *(f"{found[method]:.2f}" for found in other.values())]
            for method, rank in ranks.items()]  # fmt: skip
    return [
        f"Measured otherwise, mean ranks of the same texts: with other costs than {COST:g} nats a token allowed, and "
        "where each text's strength may be drawn by lot, so that a coarse sweep is not worse for being coarse. "
        f"Kendall's tau with the order above: {', '.join(agree)}.",
        "",
        *_table(["method", f"within {COST:g} nats", *other], rows),
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def about(records: Sequence[RunRecord]) -> list[str]:
    """Return a description of the runs, with their size."""
    record = records[0]
    decode, base = record.config["decode"], record.config["base"]
    seeds = sorted({each.seed for each in records})
    source = record.config["data"]["source"]
    model = escape_markdown(str(record.config.get("model") or "")) or (
        f"trained here ({base['layers']} layers of {base['dim']}, {base['vocabulary']} tokens, {base['steps']} steps)"
    )
    # records from before ``min_new_tokens`` and ``top_k`` let a text end and drew from all tokens
    most = "" if decode.get("min_new_tokens") == decode["new_tokens"] else "at most "
    cut = f", each from the {decode['top_k']} likeliest" if decode.get("top_k") else ""
    return [
        f"Size {record.size}, texts: {escape_markdown(source)}, base model {model}; "
        f"{decode['prompts']} prompts, {decode['samples']} "
        f"texts of {most}{decode['new_tokens']} tokens{cut}, for each prompt, class and strength; training seeds "
        f"{', '.join(map(str, seeds))}."
    ]


def lacking_line(records: Sequence[RunRecord]) -> list[str]:
    """Return which methods lack a training seed that others have, in one line; none if all have the same."""
    seeds: dict[str, set[int]] = {}
    for record in records:
        seeds.setdefault(method_of(record), set()).add(record.seed)
    every = set.union(*seeds.values())
    lacking = [f"{method} {', '.join(map(str, sorted(every - own)))}" for method, own in sorted(seeds.items())
               if own != every]  # fmt: skip
    return [f"Training seeds that were not run: {'; '.join(lacking)}."] if lacking else []


def mixed_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return what records of one training seed do not share but should (weights of a model that all of them use).

    Older records do not tell all of it.
    """
    found: dict[tuple[int, str], dict[str, list[str]]] = {}
    for record in records:
        for key, value in record.corpus.items():
            found.setdefault((record.seed, key), {}).setdefault(value, []).append(method_of(record))
    return [
        f"Records of seed {seed} were made with different models or texts ({escape_markdown(key)}), so they are not "
        "comparable: "
        + "; ".join(", ".join(sorted(methods)) for methods in sorted(line.values(), key=len))
        + ". Run the methods of the shorter list again in the folder of the others."
        for (seed, key), line in sorted(found.items())
        if len(line) > 1
    ]


def judge_line(record: RunRecord, judge: str) -> str:
    """Return how well a judge knows held-out human texts; a rule that defines the task cannot be wrong about them."""
    rules = record.config["task"].get("rules")
    if judge == (next(iter(rules)) if rules else "exact"):
        return "the rule that defines the task, no check of it"
    accuracy = record.metrics[f"judge/{judge}/accuracy"]
    own = record.metrics[f"judge/{judge}/balanced_accuracy"]["value"]
    return f"balanced accuracy {own:.3f} on {accuracy['n']} held-out human texts"


def main_table(ranked: Ranking, found: dict[str, Sweep]) -> list[str]:
    """Return the ranking: area, rank, and the best strength within the allowed cost."""
    rows = []
    for each in ranked.standings:
        strength, success, cost = each.point
        rows.append([
            each.method, f"{each.area:.3f} [{each.interval[0]:.3f}, {each.interval[1]:.3f}]",
            f"{each.rank:g} [{each.ranks[0]:g}, {each.ranks[1]:g}]", "bare" if strength == 0 else f"{strength:g}",
            f"{success:.3f}", format_value(cost, 3, signed=True),
        ])  # fmt: skip
    lines = [
        f"Area: mean best success up to {COST:g} nats a token above the bare model, by the independent language model; "
        f"[95% bootstrap over {ranked.prompts} prompts, their texts"
        + (f" and {ranked.seeds} seeds].", "].")[ranked.seeds < 2],
        "",
        *_table(["method", "area", "rank", "best strength within the cost", "success there", "nats above bare"], rows),
    ]
    repeating = [f"{sweep.method} {', '.join(f'{value:g}' for value in sweep.repeating)}"
                 for sweep in found.values() if sweep.repeating]  # fmt: skip
    if repeating:
        why = "Strengths that do not count, for their texts have less than half of the bare model's distinct word pairs"
        lines += ["", f"{why}: {'; '.join(repeating)}."]
    return lines


def held_out_table(ranked: Ranking, found: dict[str, Sweep], words: dict[str, Sweep]) -> list[str]:
    """Return success, cost and held-out words of every method and strength beside the bare model's.

    Args:
        words: the same texts, where success is to hold a held-out word of the class.
    """
    bare_words = curve(words[BARE])[1][0]  # its strengths are all the same
    drawn = "prompts, texts and seeds" if ranked.seeds > 1 else "prompts and texts"
    lines = [
        f"Every strength beside the bare model, [95% bootstrap over {drawn}]. With two classes, twice the "
        "first number is how far the share of one class moves from asking for the other to asking for it. Held-out "
        "words: texts with a word of the class that nothing was trained to steer by; the bare model's share is "
        f"{bare_words:.3f}.",
        "",
        "| method at strength | success above bare | perplexity, of bare | held-out words above bare |",
        "|---|---|---|---|",
    ]
    bare_cost = curve(found[BARE])[0][0]

    def cell(value: float, interval: tuple[float, float]) -> str:
        return f"{value:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]"

    for each in ranked.standings:
        if each.method == BARE:
            continue
        rows = zip(above_bare(found, each.method), curve(found[each.method])[0], above_bare(words, each.method),
                   found[each.method].strengths, strict=True)  # fmt: skip
        for success, cost, held_out, strength in rows:
            ratio = math.exp(float(cost - bare_cost))
            lines.append(f"| {each.method} {strength:g} | {cell(*success)} | {ratio:.3f} | {cell(*held_out)} |")
    return lines


def cost_table(ranked: Ranking, found: dict[str, Sweep]) -> list[str]:
    """Return the other measures at each method's best strength within the cost, averaged over seeds; and human text."""
    judges = judges_of(found[BARE].records[0])
    heads = [*(f"success ({escape_markdown(judge)})" for judge in judges), "perplexity", "distinct-2", "repetition",
             "copied 5-grams", "attribute words", "CPU s/token, of bare", "parameters learned",
             "training s"]  # fmt: skip
    rows = []
    for each in ranked.standings:
        sweep = found[each.method]
        # a method that gains nothing within the cost is shown at its lowest strength
        strength = each.point[0] or (sweep.strengths or sweep.repeating)[0]
        names = [*(f"success/{judge}" for judge in judges), *MEASURES]
        cells = [_mean([describe(record, strength, name) for record in sweep.records]) for name in names]
        ends = [_mean([record.metrics[f"cost/{name}"]["value"] for record in sweep.records])
                for name in ("seconds_ratio", "parameters", "training_seconds")]  # fmt: skip
        shown = [*(f"{cell:.3f}" if name != "perplexity" else f"{cell:.1f}"
                   for cell, name in zip(cells, names, strict=True)),
                 f"{ends[0]:.2f}", f"{ends[1]:,.0f}", f"{ends[2]:,.0f}"]  # fmt: skip
        rows.append([f"{each.method} {strength:g}", *shown])
    human = [row for record in found[BARE].records for row in record.samples if row.get("kind") == HUMAN]
    if human:
        tokens = sum(row["tokens"] for row in human)
        cost = math.exp(sum(row["nats"] for row in human) / max(tokens, 1))
        shown = [f"{sum(row[judge] for row in human) / len(human):.3f}" for judge in judges]
        shown += [f"{cost:.1f}", ""]
        shown += [
            f"{sum(row[n] for row in human) / len(human):.3f}" for n in ("repetition", "overlap", "attribute_words")
        ]
        rows.append(["human text", *shown, "", "", ""])
    return _table(["method at strength", *heads], rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def pair_lines(ranked: Ranking) -> list[str]:
    """Return which differences of areas remain after Holm's correction for all pairs, a line for each better method."""
    sure: dict[str, dict[str, list[str]]] = {}
    for (better, worse), p in ranked.p_values.items():
        if p < 0.05:
            sure.setdefault(better, {}).setdefault(f"{p:.3f}", []).append(worse)
    if ranked.prompts < LEAST_PROMPTS:
        return [f"{ranked.prompts} prompts decide nothing: no p-values below {LEAST_PROMPTS}."]
    line = f"{len(ranked.p_values)} pairs, p-values by bootstrap, Holm-adjusted for all of them. Below 0.05: "
    if not sure:
        return [f"{line}none."]
    lines = [
        f"- {better} above " + "; ".join(f"{', '.join(names)} ({p})" for p, names in found.items())
        for better, found in sure.items()
    ]
    return [line.strip(), "", *lines]


def sample_lines(ranked: Ranking, found: dict[str, Sweep], prompts: int = 1) -> list[str]:
    """Return texts of all methods from the same prompt side by side, each at its best strength within the cost.

    The prompt is the first one, not a selected one.
    """
    lines = [f"Texts at the best strength within {COST:g} nats, first prompt, first text of each class:", ""]
    rows = []
    for each in ranked.standings:
        sweep = found[each.method]
        strength = each.point[0] or (sweep.strengths or sweep.repeating)[0]
        for row in found[each.method].records[0].samples:
            if row.get("kind") != HUMAN and row["place"] < prompts and row["copy"] == 0 and row["strength"] == strength:
                text = " ".join((row["prompt"] + row["text"]).split())
                shown = escape_markdown(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
                rows.append([each.method, escape_markdown(row["target"]), shown])
    return [*lines, *_table(["method", "class", "text"], rows)]


def curve_picture(task: str, ranked: Ranking, found: dict[str, Sweep]) -> Sheet:
    """Return success over perplexity, of the best methods and the bare model."""
    best = [each.method for each in ranked.standings if each.method != BARE][: CURVES - 1]
    lines = []
    for place, method in enumerate([*best, BARE]):
        costs, successes = curve(found[method])
        # sorted by strength
        points = list(zip(map(float, map(math.exp, costs)), map(float, successes), strict=True))
        lines.append(Line(f"series{place}", points, name=method))
    drawn = line_chart(f"{task}: strength sweeps", lines, x="perplexity, independent model", y="success", limits=(0, 1))
    return Sheet([drawn], (), f"field, {task}: success over perplexity")
