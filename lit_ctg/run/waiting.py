"""Progress bars for slow steps; in a pipe or a file a line now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.packing import PackedCorpus
from lit_ctg.terminal import Bars, Console


def prepared(datamodule: CorpusDataModule, console: Console) -> PackedCorpus:
    """Fetch and pack a corpus, unless already done, with a bar for each file and split."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"),
               TimeElapsedColumn())  # fmt: skip
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def task(name: str) -> TaskID:
            if name not in tasks:
                tasks[name] = bars.add_task(escape(name), total=None, done="")
            return tasks[name]

        def fetching(name: str, done: int, total: int | None) -> None:
            read = f"{done / 1e6:.1f}" if total is None else f"{done / 1e6:.1f} of {total / 1e6:.1f}"
            bars.update(task(name), completed=done, total=total, done=f"{read} MB")

        def packing(name: str, documents: int) -> None:
            bars.update(task(name), completed=documents, done=f"{documents:,} documents")

        datamodule.fetching = fetching
        try:
            return datamodule.prepare(packing)
        finally:
            datamodule.fetching = None


@contextmanager
def tokens(most: int, console: Console) -> Iterator[Callable[[Tensor], None]]:
    """Yield a callback for ``Generator.generate`` (``watch``) that advances a bar of ``most`` tokens."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        task = bars.add_task("generating", total=most)
        yield lambda ids_BT: bars.advance(task)
