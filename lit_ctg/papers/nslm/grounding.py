"""External knowledge in the embeddings: fixed dimensions with values or coordinates, and vectors from a file (GloVe).

Shape letters: V vocabulary, G grounded dimensions, D embedding size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.class_table import ClassTable


def grounded_dimensions(table: ClassTable, size: int) -> Tensor:
    """Return what class tokens measure, [V, G] (sec. 6.2): a value, or latitude and longitude; zeros for other words.

    Values are log(1 + value), coordinates radians, each scaled to a largest absolute value of 1.
    """
    width = max((members.attributes_KD.shape[1] for members in table.classes), default=0)
    grounded_VG = np.zeros((size, width))
    for members in table.classes:
        columns = members.attributes_KD.shape[1]
        values_KD = np.nan_to_num(members.attributes_KD)
        scaled_KD = np.sign(values_KD) * np.log1p(np.abs(values_KD)) if columns == 1 else np.radians(values_KD)
        grounded_VG[members.ids_K, :columns] = scaled_KD
    largest_G = np.abs(grounded_VG).max(0, initial=0.0)
    return torch.from_numpy(grounded_VG / np.where(largest_G > 0, largest_G, 1.0)).float()


def read_vectors(path: str | Path, tokens: tuple[str, ...], dim: int) -> tuple[Tensor, Tensor]:
    """Return (vectors [V, D], found [V] bool) from a text file with a word and D numbers a line (GloVe's format).

    A token that is not there is looked up in lower case, as GloVe's 6B vocabulary is.

    Raises:
        UserError: no such file, a line with another number of values, or no word of the vocabulary in it.
    """
    vectors: dict[str, np.ndarray] = {}
    wanted = set(tokens) | {token.lower() for token in tokens}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                word, _, values = line.rstrip("\n").partition(" ")
                if word in wanted:
                    vectors[word] = _vector(values, dim, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"model.embedding_file={path} cannot be read: {error}") from error
    if not vectors:
        raise UserError(f"model.embedding_file={path} has no word of the vocabulary: is it a GloVe text file?")
    rows = [vectors.get(token, vectors.get(token.lower())) for token in tokens]
    found_V = torch.tensor([row is not None for row in rows])
    return torch.from_numpy(np.stack([np.zeros(dim) if row is None else row for row in rows])).float(), found_V


def _vector(values: str, dim: int, where: str) -> np.ndarray:
    try:
        vector = np.array(values.split(), dtype=np.float64)
    except ValueError as error:
        raise UserError(f"model.embedding_file: {where} holds something else than numbers") from error
    if len(vector) != dim:
        raise UserError(f"model.embedding_file: {where} has {len(vector)} numbers, the embedding trains {dim}: "
                        "set backbone.dim accordingly")  # fmt: skip
    return vector
