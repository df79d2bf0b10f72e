"""The checkpoint to go on from: of this model and corpus, or told; a damaged one gives way to the one before it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.callback.checkpoint import AtomicCheckpointIO, previous
from lit_ctg.config import compose
from lit_ctg.core.checkpoint import FORMAT, load_checked
from lit_ctg.errors import UserError
from lit_ctg.run.checkpoint import Checkpoint, prepare_resume
from lit_ctg.run.directory import CHECKPOINT
from lit_ctg.run.train import train

CONFIG = {"paper": "x", "model": {"_target_": "a.b.Model", "dim": 4}, "backbone": None}
CORPUS = {"text": "1" * 64, "vocabulary": "2" * 64}


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that adds a checkpoint to a run directory and returns the directory."""

    def write(epoch: int, config: Any = CONFIG, corpus: Any = CORPUS) -> Path:
        ours = {"format": FORMAT, "config": config, "corpus": corpus}
        (tmp_path / CHECKPOINT).parent.mkdir(exist_ok=True)
        AtomicCheckpointIO().save_checkpoint({"lit_ctg": ours, "state_dict": {}, "epoch": epoch}, tmp_path / CHECKPOINT)
        return tmp_path

    return write


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) // 2])


def test_nothing_to_resume_is_nothing_to_tell(tmp_path: Path) -> None:
    assert prepare_resume(tmp_path, CONFIG, CORPUS) is None


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(save: Callable[..., Path]) -> None:
    save(1)
    last = save(2) / CHECKPOINT
    assert prepare_resume(last.parents[1], CONFIG, CORPUS) is None and load_checked(last)["epoch"] == 2
    damage(last)
    damaged = last.read_bytes()
    told = prepare_resume(last.parents[1], CONFIG, CORPUS)
    assert told and "last.ckpt" in told and told.endswith("resuming from the checkpoint before it")
    assert load_checked(last)["epoch"] == 1
    assert last.with_name("last.before-0.ckpt").read_bytes() == damaged
    assert prepare_resume(last.parents[1], CONFIG, CORPUS) is None


def test_a_process_killed_between_two_renames_has_lost_nothing(save: Callable[..., Path]) -> None:
    save(1)
    last = save(2) / CHECKPOINT
    last.unlink()
    assert prepare_resume(last.parents[1], CONFIG, CORPUS) is None
    assert load_checked(last)["epoch"] == 1


@pytest.mark.parametrize("both", [False, True])
def test_a_run_does_not_start_anew_over_what_it_cannot_read(save: Callable[..., Path], both: bool) -> None:
    last = save(1) / CHECKPOINT
    if both:
        save(2)
        damage(previous(last))
    damage(last)
    files = {path: path.read_bytes() for path in last.parent.iterdir()}
    with pytest.raises(UserError, match=r"last\.ckpt is not a readable checkpoint.*; delete .* to run from the start"):
        prepare_resume(last.parents[1], CONFIG, CORPUS)
    assert {path: path.read_bytes() for path in last.parent.iterdir()} == files


@pytest.mark.parametrize(
    ("config", "corpus", "words"),
    [
        ({**CONFIG, "model": {"_target_": "c.Model", "dim": 5}}, CORPUS, r"another model: model\.dim is 5 there and 4"),
        (CONFIG, {**CORPUS, "text": "3" * 64}, "other data: text is 333333333333 there and 111111111111 here"),
        (CONFIG, {**CORPUS, "vocabulary": "3" * 64}, "other data: vocabulary is 3333"),
    ],
)
def test_another_models_or_corpus_checkpoint_is_refused(
    save: Callable[..., Path], config: Any, corpus: Any, words: str
) -> None:
    save(1)
    folder = save(2, config, corpus)
    # not "train again", which is what has just been tried
    with pytest.raises(UserError, match=f"{words}.*[ro;] delete {re.escape(str(folder))} to run from the start$"):
        prepare_resume(folder, CONFIG, CORPUS)


def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    class Data:
        def fingerprint(self) -> dict[str, str]:
            return CORPUS

    module = torch.nn.Linear(2, 1)
    for wrong in ({}, {"weight": torch.ones(1, 2), "bias": torch.ones(3)}, {"weight": "text", "bias": torch.ones(1)}):
        checkpoint = Checkpoint(tmp_path / "last.ckpt", CONFIG, CORPUS, wrong)
        with pytest.raises(UserError, match=r"last\.ckpt does not fit this model"):
            checkpoint.load_into(module, Data())  # type: ignore[arg-type]


WORDS = [
    "experiment=control_code/transformer",
    "size=smoke",
    "logger=none",
    "metric=[perplexity]",
    "callback=[checkpoint]",
    "data=control_code/scripts",
    "data.source=local",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that writes a local corpus and gives the words that choose it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))

    def write(name: str) -> list[str]:
        (tmp_path / "texts").mkdir(exist_ok=True)
        for file, verb in (("news", "reports"), ("blog", "thinks")):
            text = "".join(f"{name} {verb} that {number % 7} days are long .\n" for number in range(400))
            (tmp_path / "texts" / f"{file}.txt").write_text(text, encoding="utf-8")
        return [*WORDS, f"data.root={tmp_path / 'texts'}"]

    return write


@pytest.mark.long
def test_a_run_knows_its_corpus(scripts: Callable[[str], list[str]], run_cli: Any, tmp_path: Path) -> None:
    """The text of a folder changes, one name for another: as many words, and each id means what it did but one."""
    words = scripts("carol")
    folder = train(compose([*words, "output_root=runs"])).folder
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    corpus = load_checked(folder / CHECKPOINT)["lit_ctg"]["corpus"]
    assert record["corpus"] == corpus and all(len(checksum) == 64 for checksum in corpus.values())
    prompted = [*words, "n=1", "prompt=days", "output_root=runs"]
    for command in ("generate", "evaluate"):
        assert run_cli(command, *prompted)[0] == 0
    assert train(compose([*words, "output_root=runs", "skip_completed=true"])).status == "SKIPPED"

    scripts("david")
    for command in ("generate", "evaluate"):
        code, _, err = run_cli(command, *prompted)
        assert code == 2 and "was trained on other data: vocabulary is" in err
        assert len(err.splitlines()) == 1
    other = train(compose([*words, "output_root=runs", "skip_completed=true"]))
    assert other.status == "DONE" and other.folder.name == f"{folder.name}-1"

    scripts("carol")
    again = train(compose([*words, "output_root=runs", "skip_completed=true"]))
    assert (again.status, again.folder) == ("SKIPPED", folder)
    (tmp_path / "texts" / "news.txt").unlink()  # not here any more, so nothing says that it was another one
    assert train(compose([*words, "output_root=runs", "skip_completed=true"])).status == "SKIPPED"


@pytest.mark.long
def test_a_leftover_checkpoint_of_another_corpus_is_not_resumed(scripts: Callable[[str], list[str]]) -> None:
    words = scripts("carol")
    folder = train(compose([*words, "output_root=runs"])).folder
    (folder / "run.json").unlink()
    scripts("david")
    with pytest.raises(UserError, match="was trained on other data"):
        train(compose([*words, "output_root=runs"]))
    assert json.loads((folder / "run.json").read_text(encoding="utf-8"))["status"] == "FAILED"
    scripts("carol")
    assert train(compose([*words, "output_root=runs"])).folder == folder


@pytest.mark.long
def test_other_data_that_is_asked_for_needs_the_same_words_only(
    scripts: Callable[[str], list[str]], run_cli: Any, tmp_path: Path
) -> None:
    words = scripts("carol")
    folder = train(compose([*words, "output_root=runs"])).folder
    path = f"ckpt_path={folder / CHECKPOINT}"
    code, _, err = run_cli("evaluate", *words, path, "data.val_fraction=0.1", "output_root=runs")
    assert code == 0, err
    scripts("david")
    code, _, err = run_cli("evaluate", *words, path, "data.val_fraction=0.1", "output_root=runs")
    assert code == 2 and "vocabulary is" in err and "text is" not in err


@pytest.mark.parametrize("word", ["seed=5", "training_seed=3", "+training_seed=3"])
def test_evaluating_a_run_keeps_its_seeds(word: str, run_cli: Any) -> None:
    """Its data and weights would be those of the old seed, and the record would say the new one."""
    code, _, err = run_cli("evaluate", "outputs/some/run", word)
    assert code == 2 and f"{word}: a finished run keeps the seeds" in err and len(err.splitlines()) == 1
