"""Models of counts of an experiment's corpus: the numbers by a plain loop, and the record they leave."""

from __future__ import annotations

import io
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.data.wikitext import WikiTextDataModule
from lit_ctg.errors import UserError
from lit_ctg.metric.bigram import Bigrams
from lit_ctg.results.record import load_records
from lit_ctg.run import counts as module
from lit_ctg.run.counts import counts, main


def test_perplexities_are_those_of_a_loop_over_the_held_out_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)  # several chunks, the last one short
    data = WikiTextDataModule(
        source="sample", cache_root=tmp_path, tokenizer=WordTokenizer(), version=2, raw=False, batching="streams",
        length=5, batch_size=2, seed=0, sample_size=3000,
    )  # fmt: skip
    found = counts(data)
    assert sorted(found) == [f"reference/{s}/{m}_perplexity" for s in ("test", "val") for m in ("bigram", "unigram")]
    train, held = (np.asarray(data.packed.ids(split)).tolist() for split in ("train", "val"))
    seen, size = Counter(train), len(data.vocabulary)
    frequencies = [math.log((seen[token] + 1) / (len(train) + size)) for token in held[1:]]
    unigram = found["reference/val/unigram_perplexity"]
    assert unigram.n == len(held) - 1
    assert unigram.value == pytest.approx(math.exp(-sum(frequencies) / len(frequencies)))
    pairs = Bigrams(np.array(train), size).nll(np.array(held[:-1]), np.array(held[1:]))
    assert found["reference/val/bigram_perplexity"].value == pytest.approx(math.exp(pairs.mean()))


@pytest.mark.long
def test_it_leaves_a_record_beside_the_experiments_own(tmp_path: Path) -> None:
    words = [
        "experiment=nslm/numbers",
        "size=smoke",
        f"output_root={tmp_path}",
        f"data.cache_root={tmp_path / 'cache'}",
    ]
    stream = io.StringIO()
    main(words, console=Console(file=stream, width=200))
    (record,) = load_records([tmp_path / "nslm"])
    assert (record.name, record.status, record.regime) == ("counts_numbers", "DONE", "corrected")
    assert record.processor and record.threads and record.corpus
    assert record.metrics["reference/test/bigram_perplexity"]["value"] > 1
    assert "reference/test/bigram_perplexity" in stream.getvalue() and "run.json" in stream.getvalue()
    words[0] = "experiment=idea_gate/main"
    gate = main(words, console=Console(file=stream, width=200))
    found = {name for name in gate.metrics if name.endswith("/all/long/stickiness")}
    assert found == {"topic/text/all/long/stickiness", "topic/random/all/long/stickiness"}
    with pytest.raises(UserError, match="not a text corpus"):
        main(["experiment=nslm/increment", "size=smoke", f"output_root={tmp_path}"])
