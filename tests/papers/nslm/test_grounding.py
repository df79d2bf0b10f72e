"""Fixed dimensions and vectors from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.construction import class_table
from lit_ctg.papers.nslm.grounding import grounded_dimensions, read_vectors
from lit_ctg.papers.nslm.recogniser import ListRecogniser, PatternRecogniser

TOKENS = ("<unk>", "the", "Paris", "Lima", "10", "1,000")
NAMED = {"metrics": ["frequency"], "densities": ["unigram"]}


def test_values_grow_with_the_number_and_other_words_have_none() -> None:
    table = class_table(TOKENS, [PatternRecogniser(name="n", pattern=r"[\d,]+", **NAMED)])
    grounded = grounded_dimensions(table, len(TOKENS))
    assert grounded.shape == (6, 1)
    assert grounded[:4].abs().max() == 0
    assert float(grounded[5]) == 1.0
    assert float(grounded[4]) == pytest.approx(np.log(11) / np.log(1001))


def test_coordinates_have_two_dimensions() -> None:
    places = {"Paris": (48.9, 2.3), "Lima": (-12.0, -77.0)}
    table = class_table(TOKENS, [ListRecogniser(name="city", members=places, **NAMED)])
    grounded = grounded_dimensions(table, len(TOKENS))
    torch.testing.assert_close(grounded[2], torch.tensor([1.0, 2.3 / 77.0]))
    torch.testing.assert_close(grounded[3], torch.tensor([-12.0 / 48.9, -1.0]))


def test_vectors_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\nparis 4 5 6\nunused 7 8 9\n", encoding="utf-8")
    vectors, found = read_vectors(path, TOKENS, 3)
    assert found.tolist() == [False, True, True, False, False, False]
    assert vectors[1].tolist() == [1, 2, 3] and vectors[2].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [("the 1 2\n", "has 2 numbers"), ("the 1 x 3\n", "line 1 holds"), ("other 1 2 3\n", "no word of the vocabulary")],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_vectors(path, TOKENS, 3)
    with pytest.raises(UserError, match="cannot be read"):
        read_vectors(tmp_path / "none.txt", TOKENS, 3)
