"""Batches: content, order and masks, and that a resumed run reads what an uninterrupted one does."""

from __future__ import annotations

import itertools
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch

from lit_ctg.data.batching import ConsecutiveBatches, RandomWindows, StreamBatches, WholeBatches
from lit_ctg.data.document import Document
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.data.packing import PackedCorpus, ensure_packed
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError


def corpus(folder: Path, sizes: dict[str, list[int]]) -> PackedCorpus:
    """Documents of given sizes by source; the tokens count up from 0 over the whole text."""
    documents, number = [], 0
    for source, lengths in sizes.items():
        for length in lengths:
            documents.append(Document(" ".join(f"w{n:05d}" for n in range(number, number + length)), source))
            number += length
    tokenizer = WordTokenizer(eol=None, specials=("<unk>",))
    tokenizer.train(document.text for document in documents)
    packed = ensure_packed(folder, {"train": lambda: documents}, tokenizer, {})
    # sorted words: the id is the running number plus one for <unk>
    assert packed.ids("train").tolist() == list(range(1, number + 1))
    return packed


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> PackedCorpus:
    return corpus(tmp_path_factory.mktemp("packed") / "c", {"a": [10, 13], "b": [20], "c": [2]})


def targets(batches, epoch: int = 0) -> list[int]:
    found = []
    for index in range(len(batches)):
        batch = batches[epoch, index]
        mask_BT = batch["mask_target_BT"]
        assert (batch["target_ids_BT"] == batch["input_ids_BT"] + 1)[mask_BT].all()
        assert batch["input_ids_BT"].dtype == torch.long and mask_BT.dtype == torch.bool
        found += batch["target_ids_BT"][mask_BT].tolist()
    return found


def test_chunks_use_every_target_once_in_order(packed) -> None:
    batches = ConsecutiveBatches(packed, "train", length=4, batch_size=3)
    assert targets(batches) == list(range(2, 46))
    assert len(batches) == 4 and batches[0, 0]["input_ids_BT"].tolist()[1] == [5, 6, 7, 8]
    assert "control_code_B" not in batches[0, 0]


def test_chunks_of_one_source_never_cross_into_the_next(packed) -> None:
    batches = ConsecutiveBatches(packed, "train", length=4, batch_size=3, by_source=True, documents=True)
    edges = {0: (1, 23), 1: (24, 43), 2: (44, 45)}
    for index in range(len(batches)):
        batch = batches[0, index]
        (code,) = set(batch["control_code_B"].tolist())
        low, high = edges[code]
        # behind the end too: masked places repeat the source's last token and name an existing document
        ids = torch.cat([batch["input_ids_BT"], batch["target_ids_BT"]])
        assert low <= ids.min() and ids.max() <= high and batch["document_BT"].max() <= 3
        document_BT = batch["document_BT"][batch["mask_target_BT"]]
        expected = [0 if i <= 10 else 1 if i <= 23 else 2 if i <= 43 else 3
                    for i in batch["target_ids_BT"][batch["mask_target_BT"]].tolist()]  # fmt: skip
        assert document_BT.tolist() == expected
    assert sorted(targets(batches)) == [*range(2, 24), *range(25, 44), 45]


def test_a_text_that_ends_with_a_batch_has_no_empty_one(tmp_path: Path) -> None:
    """13 tokens are 12 targets: three chunks of four, one batch."""
    text = corpus(tmp_path / "c", {"a": [13]})
    for batches in (
        ConsecutiveBatches(text, "train", length=4, batch_size=3),
        WholeBatches(text, "train", length=4, batch_size=3),
    ):
        assert len(batches) == 1 and batches[0, 0]["input_ids_BT"][:, 0].tolist() == [1, 5, 9]
    assert ConsecutiveBatches(text, "train", length=4, batch_size=8)[0, 0]["input_ids_BT"].shape == (3, 4)


def test_the_shortest_text_of_windows(tmp_path: Path) -> None:
    text = corpus(tmp_path / "c", {"a": [5]})
    windows = RandomWindows(text, "train", length=4, batch_size=8, steps=None, seed=0)
    assert len(windows) == 1 and windows[0, 0]["target_ids_BT"].tolist() == [[2, 3, 4, 5]] * 8
    with pytest.raises(UserError, match="shorter than one window of 5"):
        RandomWindows(text, "train", length=5, batch_size=8, steps=None, seed=0)


def test_scattered_sources_are_refused(tmp_path: Path) -> None:
    documents = [Document("a b", "x"), Document("c d", "y"), Document("e f", "x")]
    mixed = ensure_packed(tmp_path / "c", {"train": lambda: documents}, WordTokenizer(), {})
    with pytest.raises(UserError, match="mixes its sources"):
        ConsecutiveBatches(mixed, "train", length=4, batch_size=2, by_source=True)


def test_windows_depend_on_seed_epoch_and_step_only(packed) -> None:
    make = lambda seed: RandomWindows(packed, "train", length=5, batch_size=4, steps=3, seed=seed)  # noqa: E731
    one, two, other = make(0), make(0), make(1)
    assert all(torch.equal(one[2, i]["input_ids_BT"], two[2, i]["input_ids_BT"]) for i in (2, 0, 1))
    assert not torch.equal(one[0, 0]["input_ids_BT"], one[1, 0]["input_ids_BT"])
    assert not torch.equal(one[0, 0]["input_ids_BT"], other[0, 0]["input_ids_BT"])
    assert one[0, 0]["mask_target_BT"].all()
    seen = {int(i) for e in range(200) for i in one[e, 0]["target_ids_BT"].flatten()}
    assert seen == set(range(2, 46)), "every place of the text can be drawn, its ends too"
    with pytest.raises(UserError, match="shorter than one window"):
        RandomWindows(packed, "train", length=50, batch_size=4, steps=3, seed=0)


def test_windows_of_one_source(packed, caplog: pytest.LogCaptureFixture) -> None:
    windows = RandomWindows(packed, "train", length=5, batch_size=64, steps=1, seed=0, by_source=True)
    batch = windows[0, 0]
    inputs_BT, code_B = batch["input_ids_BT"], batch["control_code_B"]
    assert set(code_B.tolist()) == {0, 1}, "source c is shorter than a window"
    assert caplog.messages == [
        "split 'train': no window holds c, with at most 5 tokens: lower data.length or give more text"
    ]
    assert (inputs_BT[code_B == 0] <= 23).all() and (inputs_BT[code_B == 1] >= 24).all()


def test_equal_windows_meet_a_short_source_as_often_as_a_long_one(tmp_path: Path) -> None:
    text = corpus(tmp_path / "c", {"long": [900], "short": [90]})
    shares = {}
    for equal in (False, True):
        options = {"length": 5, "batch_size": 8, "steps": None, "seed": 0, "by_source": True, "equal": equal}
        windows = RandomWindows(text, "train", **options)
        assert len(windows) == 990 // 40
        codes = torch.cat([windows[0, step]["control_code_B"] for step in range(len(windows))])
        shares[equal] = float((codes == 1).float().mean())
    assert shares[False] < 0.2 and 0.4 < shares[True] < 0.6


def test_whole_batches_go_across_sources_and_leave_the_rest_out(packed) -> None:
    batches = WholeBatches(packed, "train", length=4, batch_size=3)
    # source a has chunks at 1, 5, 9, 13, 17, source b at 24, 28, 32, 36, source c none: nine rows, three batches
    rows = [(first, 0) for first in (1, 5, 9, 13, 17)] + [(first, 1) for first in (24, 28, 32, 36)]
    found = []
    for index in range(len(batches)):
        batch = batches[0, index]
        assert batch["mask_target_BT"].all() and batch["input_ids_BT"].shape == (3, 4)
        assert torch.equal(batch["target_ids_BT"], batch["input_ids_BT"] + 1)
        found += zip(batch["input_ids_BT"][:, 0].tolist(), batch["control_code_B"].tolist(), strict=True)
    assert found == rows
    four = WholeBatches(packed, "train", length=4, batch_size=4)
    assert len(four) == 2, "the ninth row fills no batch"
    assert four[0, 1]["control_code_B"].tolist() == [0, 1, 1, 1]
    with pytest.raises(UserError, match=r"9 whole chunks of 4, fewer than data\.batch_size=10"):
        WholeBatches(packed, "train", length=4, batch_size=10)


@pytest.mark.parametrize(("batch_size", "length"), [(3, 4), (1, 7), (7, 5), (100, 3)])
def test_streams_go_on_from_batch_to_batch(packed, batch_size: int, length: int) -> None:
    streams = StreamBatches(packed, "train", length=length, batch_size=batch_size)
    assert sorted(targets(streams)) == list(range(2, 46))
    assert len(streams[0, 0]["reset_B"]) == min(batch_size, 44), "no stream without a target"
    last = None
    for index in range(len(streams)):
        batch = streams[0, index]
        assert batch["reset_B"].all() == (index == 0)
        if last is not None:
            went_on = batch["mask_target_BT"][:, 0]
            assert torch.equal(batch["input_ids_BT"][went_on, 0], last[went_on])
        last = batch["target_ids_BT"][:, -1]


def test_streams_of_varying_stretches(tmp_path: Path) -> None:
    long = corpus(tmp_path / "long", {"a": [9001]})
    streams = StreamBatches(long, "train", length=30, batch_size=3, vary=True, seed=5)
    sizes = []
    for epoch in range(3):
        assert sorted(targets(streams, epoch)) == list(range(2, 9002)), "every target once, in every epoch"
        batches = [streams[epoch, index] for index in range(len(streams))]
        for before, after in itertools.pairwise(batches):
            went_on = after["mask_target_BT"][:, 0]
            assert torch.equal(after["input_ids_BT"][went_on, 0], before["target_ids_BT"][went_on, -1])
        assert [bool(batch["reset_B"].all()) for batch in batches] == [True] + [False] * (len(batches) - 1)
        sizes.append([batch["input_ids_BT"].shape[1] for batch in batches])
    assert sizes[0] != sizes[1] and len({len(one) for one in sizes}) == 1
    again = StreamBatches(long, "train", length=30, batch_size=3, vary=True, seed=5)
    assert [again[1, index]["input_ids_BT"].shape[1] for index in range(len(again))] == sizes[1]
    # around 30 with a deviation of 5, and 5% of them around 15
    all_sizes = np.concatenate(sizes)
    assert 28 < all_sizes.mean() < 31 and 4 < all_sizes[all_sizes > 20].std() < 6
    assert 0.01 < (all_sizes <= 20).mean() < 0.12
    other = StreamBatches(long, "train", length=30, batch_size=3, vary=True, seed=6)
    assert [other[1, index]["input_ids_BT"].shape[1] for index in range(len(other))] != sizes[1]


@pytest.mark.parametrize("size", [2, 3, 21, 60, 61])
def test_short_texts_have_no_empty_stretch(tmp_path: Path, size: int) -> None:
    short = corpus(tmp_path / "short", {"a": [size]})
    streams = StreamBatches(short, "train", length=20, batch_size=1, vary=True)
    for epoch in range(20):
        assert targets(streams, epoch) == list(range(2, size + 1))
        assert all(streams[epoch, index]["input_ids_BT"].shape[1] for index in range(len(streams)))


def test_a_split_without_text(tmp_path: Path) -> None:
    splits = {"val": lambda: [], "train": lambda: [Document("a b", "")]}
    packed = ensure_packed(tmp_path / "c", splits, WordTokenizer(), {})
    with pytest.raises(UserError, match="split 'val' has 0 tokens"):
        StreamBatches(packed, "val", length=2, batch_size=2)
    one, two = (corpus(tmp_path / str(size), {"a": [size]}) for size in (1, 2))
    with pytest.raises(UserError, match="split 'train' has 1 tokens"):
        StreamBatches(one, "train", length=2, batch_size=2)
    assert targets(StreamBatches(two, "train", length=2, batch_size=2)) == [2]


def test_state_counts_batches_given_out(packed) -> None:
    loader = ResumableLoader(ConsecutiveBatches(packed, "train", length=4, batch_size=1))
    walk = iter(loader)
    given = [next(walk) for _ in range(3)]
    again = ResumableLoader(loader.dataset)
    again.load_state_dict(loader.state_dict())
    rest = list(again)
    assert loader.state_dict() == {"epoch": 0, "position": 3} and len(given) + len(rest) == len(loader)
    assert len(list(again)) == len(loader), "only the first pass is shortened"


def test_processes_share_the_streams_by_row(packed) -> None:
    alone = StreamBatches(packed, "train", length=4, batch_size=3)
    shared = [StreamBatches(packed, "train", length=4, batch_size=3, rank=rank, world_size=2) for rank in range(2)]
    for step in range(len(alone)):
        whole = alone[0, step]
        for rank, streams in enumerate(shared):
            part = streams[0, step]
            assert set(part) == set(whole)
            assert all(torch.equal(part[key], whole[key][rank::2]) for key in whole)
    assert len(StreamBatches(packed, "train", length=4, batch_size=2, rank=1, world_size=2)[0, 0]["reset_B"]) == 1
    with pytest.raises(UserError, match="1 streams for 2 processes"):
        StreamBatches(packed, "train", length=4, batch_size=1, rank=0, world_size=2)
    with pytest.raises(UserError, match="batches for 99 processes"):
        ResumableLoader(ConsecutiveBatches(packed, "train", length=3, batch_size=2), world_size=99)


class Recorder(lightning.LightningModule):
    """Learns nothing; keeps (epoch, first id) of its batches; stores a checkpoint at a step, in or after an epoch."""

    def __init__(self, path: Path | None = None, step: int = 0, epoch_end: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.path, self.step, self.epoch_end = path, step, epoch_end
        self.met: list[tuple[int, int]] = []

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        self.met.append((self.current_epoch, int(batch["input_ids_BT"][0, 0])))
        return self.weight * 1.0

    def save(self, epoch_end: bool) -> None:
        if self.path and epoch_end == self.epoch_end and self.trainer.global_step == self.step:
            self.trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, *arguments: object) -> None:
        self.save(False)

    def on_train_epoch_end(self) -> None:
        self.save(True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("step", "epoch_end"), [(4, False), (15, False), (11, True), (22, True)])
def test_a_resumed_run_reads_the_batches_of_an_uninterrupted_one(
    packed, tmp_path: Path, trainer_of, step: int, epoch_end: bool
) -> None:
    batches, path = ConsecutiveBatches(packed, "train", length=4, batch_size=1), tmp_path / "cut.ckpt"
    whole, rest = Recorder(path, step, epoch_end), Recorder()
    for module, resume in ((whole, None), (rest, path)):
        trainer_of(max_epochs=3).fit(module, ResumableLoader(batches, seed=5, shuffle=True), ckpt_path=resume)
    assert len(batches) == 11 and [epoch for epoch, _ in whole.met] == [0] * 11 + [1] * 11 + [2] * 11
    assert rest.met == whole.met[step:]
