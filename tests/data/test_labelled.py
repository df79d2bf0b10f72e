"""Labels in columns: formats, separators, several attributes, grades, any label name, what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from lit_ctg.data.folder import FolderDataModule, read_labelled
from lit_ctg.data.labelled import attribute
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError

LABELS = ("sci-fi", "5 stars", "中文")


def rows(count: int = 60) -> list[dict[str, object]]:
    return [{"text": f"text {n}, by hand", "label": LABELS[n % 3], "stars": n % 5 + 1} for n in range(count)]


def write(path: Path, records: list[dict[str, object]], mark: str = ",") -> Path:
    names = list(records[0])
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    elif ".jsonl" in path.suffixes:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in records).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    else:
        lines = [mark.join(names), *(mark.join(f'"{row[name]}"' for name in names) for row in records)]
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "mark"),
    [("a.csv", ","), ("a.csv", ";"), ("a.csv", "|"), ("a.csv", "\t"), ("a.tsv", "\t"), ("a.jsonl.gz", ""),
     ("a.parquet", "")],
)  # fmt: skip
def test_every_format_gives_the_same_texts_and_labels(tmp_path: Path, name: str, mark: str) -> None:
    found = read_labelled(write(tmp_path / name, rows(), mark), label=["label", "stars"])
    assert found.texts == [row["text"] for row in rows()]
    assert found.labels["label"] == [row["label"] for row in rows()]
    assert found.labels["stars"] == [str(row["stars"]) for row in rows()]
    kind, stars = found.attributes
    assert set(kind.labels) == set(LABELS) and kind.grades is None
    assert stars.grades == (1, 2, 3, 4, 5) and stars.sides == {"low": ("1", "2"), "high": ("4", "5")}
    assert len(found.of("label")["中文"]) == 20
    between = {",": "comma", ";": "semicolon", "|": "bar", "\t": "tab"}.get(mark, "labels in label, stars)")
    assert between in found.report()[0]


def test_columns_are_found_or_named(tmp_path: Path) -> None:
    records = [{"id": n, "review": f"text {n}", "mood": "ab"[n % 2]} for n in range(20)]
    path = write(tmp_path / "a.csv", records)
    with pytest.raises(UserError, match=r"no column 'text' \(it has id, review, mood\).*text="):
        read_labelled(path)
    with pytest.raises(UserError, match=r"no column 'label'.*label="):
        read_labelled(path, "review")
    with pytest.raises(UserError, match=r"'id' has 20 different values in 20 texts.*label="):
        read_labelled(path, "review", ["id"])
    assert read_labelled(path, "review", ["mood"]).attributes[0].labels == ("a", "b")
    # one column beside the text needs no name
    usual = write(tmp_path / "b.csv", [{"text": row["review"], "mood": row["mood"]} for row in records])
    assert read_labelled(usual).attributes[0].labels == ("a", "b")


def test_rows_of_no_use_are_counted(tmp_path: Path) -> None:
    bad = [("", "a"), (" one\n", "a"), ("One", "a"), ("one", "b"), ("two", ""), ("three", " b "), ("four", "b")]
    path = write(tmp_path / "a.jsonl", [{"text": text, "label": label} for text, label in bad])
    found = read_labelled(path)
    assert found.texts == ["one", "three", "four"] and found.labels["label"] == ["a", "b", "b"]
    assert sorted(found.left_out.values()) == [1, 1, 1, 1]
    report = " ".join(found.report(tokens=len, longest=4))
    assert "b (2)" in report and "3 to 5 characters" in report and "longer than 4 tokens: 1" in report


def test_a_text_may_lack_one_of_several_labels(tmp_path: Path) -> None:
    records = [{"text": f"text {n}", "x": "ab"[n % 2], "y": "" if n < 5 else "cd"[n % 2]} for n in range(20)]
    found = read_labelled(write(tmp_path / "a.csv", records), label=["x", "y"])
    assert len(found.texts) == 20 and found.labels["y"].count(None) == 5


@pytest.mark.parametrize(
    ("labels", "grades"),
    [
        (["10 stars", "1 star", "2 stars"], (1, 2, 10)),
        (["-1", "0", "1.5"], (-1, 0, 1.5)),
        (["0", "1"], None),  # two labels have no order
        (["1 star", "2 moons", "3 suns"], None),
        (["1", "1.0", "2"], None),
    ],
)
def test_numbers_of_one_unit_are_grades(labels: list[str], grades: tuple[float, ...] | None) -> None:
    assert attribute("a", labels).grades == grades


def test_each_label_has_a_word_of_its_own() -> None:
    names = attribute("a", ["sci-fi", "sci fi", "strength", "5 stars", "中文"]).names
    assert len(set(names.values())) == 5
    assert all(f"_{word}".isidentifier() for word in names.values()) and names["中文"] == "中文"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\n" + "one,a\ntwo,a\n", "only the label 'a'"),
        ("text,label\n" + "one,\ntwo,\n", "no label"),
        ("text\none\n", "no column 'label'"),
        ("one,a\ntwo,b\n", "no column 'text'"),
    ],
)
def test_a_file_without_two_labels_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        read_labelled(tmp_path / "a.csv")


def test_a_folder_has_a_file_for_each_label(tmp_path: Path) -> None:
    for label in LABELS:
        (tmp_path / f"{label}.txt").write_text("\n".join(f"{label} {n}" for n in range(30)))
    found = read_labelled(tmp_path)
    assert {label: len(texts) for label, texts in found.of("label").items()} == dict.fromkeys(LABELS, 30)
    (only := tmp_path / "own").mkdir()
    write(only / "reviews.csv", rows())
    assert read_labelled(only).attributes[0].labels == read_labelled(only / "reviews.csv").attributes[0].labels


def test_a_corpus_reads_a_file_with_a_column_of_labels(tmp_path: Path) -> None:
    data = FolderDataModule(
        source="local", root=str(write(tmp_path / "a.csv", rows())), cache_root=tmp_path / "cache", val_fraction=0.1,
        test_fraction=0.1, tokenizer=WordTokenizer(eol=None), batching="chunks", length=8, batch_size=4, seed=0,
    )  # fmt: skip
    assert set(data.sources) == set(LABELS)
    assert sum(1 for split in data.splits for _ in data.documents(split)) == 60
