"""Every layout gives the same dataset, and every damaged file is an error of one line that says where."""

from __future__ import annotations

import gzip
import json
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmcbench.data import Dataset
from xmcbench.data.formats import detect, read_directory
from xmcbench.data.source import Draft
from xmcbench.errors import XMCBenchError

DRAFT = Draft(name="made")


def fails(directory: Path, *parts: str) -> None:
    """Reading `directory` is an error of one line that holds all of `parts`."""
    with pytest.raises(XMCBenchError) as caught:
        read_directory(directory, DRAFT.text, DRAFT.card)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def edit_line(path: Path, line: int, change: Callable[[str], str]) -> None:
    """Change one line, counted from 1, of a plain or gzip file."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")
    lines[line - 1] = change(lines[line - 1])
    changed = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(changed) if path.suffix == ".gz" else changed)


def test_every_layout_gives_the_same_dataset(
    tmp_path: Path, small: Dataset, write: Callable[[Path, Dataset], None]
) -> None:
    write(tmp_path, small)
    parts = read_directory(tmp_path, DRAFT.text, DRAFT.card)
    assert list(parts.train.texts) == list(small.train.texts)
    assert list(parts.test.texts) == list(small.test.texts)
    assert list(parts.label_texts) == list(small.label_texts)
    for found, expected in (
        (parts.train.targets, small.train.targets),
        (parts.test.targets, small.test.targets),
        (parts.ignore_train, small.ignore_train),
        (parts.ignore_test, small.ignore_test),
    ):
        assert found.dtype == np.float32
        assert (found.toarray() == expected.toarray()).all()
        assert (found.data == 1).all()


def test_a_byte_order_mark_is_no_text(tmp_path: Path, small: Dataset, write: Callable[[Path, Dataset], None]) -> None:
    write(tmp_path, small)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".npz":
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rb") as file:
                content = BOM_UTF8 + file.read()
            with opened(path, "wb") as file:
                file.write(content)
    parts = read_directory(tmp_path, DRAFT.text, DRAFT.card)
    assert [*parts.train.texts, *parts.label_texts] == [*small.train.texts, *small.label_texts]
    assert (parts.ignore_test.toarray() == small.ignore_test.toarray()).all()


def test_title_alone_or_with_content(json_folder: Path) -> None:
    edit_line(json_folder / "tst.json.gz", 1, lambda line: json.dumps({**json.loads(line), "content": "more"}))
    assert list(read_directory(json_folder, DRAFT.text, DRAFT.card).test.texts) == ["a more", "b", "c"]
    assert list(read_directory(json_folder, "title", DRAFT.card).test.texts) == ["a", "b", "c"]


def test_stored_zeros_and_repeats_are_no_labels_more(xr: Path, small: Dataset) -> None:
    parts = np.array([1.0, 0.0, 2.0, 1.0]), np.array([4, 2, 1, 1]), np.array([0, 4, 4, 4])
    sp.save_npz(xr / "Y.tst.npz", sp.csr_array(parts, shape=small.test.targets.shape))
    targets = read_directory(xr, DRAFT.text, DRAFT.card).test.targets
    assert targets.indices.tolist() == [1, 4]
    assert targets.data.tolist() == [1.0, 1.0]


def test_truncated_gzip(json_folder: Path) -> None:
    path = json_folder / "trn.json.gz"
    path.write_bytes(path.read_bytes()[:-12])
    fails(json_folder, str(path), "ends early")


def test_damaged_gzip(json_folder: Path) -> None:
    path = json_folder / "trn.json.gz"
    data = bytearray(path.read_bytes())
    data[20:24] = b"\xff\xff\xff\xff"
    path.write_bytes(bytes(data))
    fails(json_folder, str(path), "expected a whole file")


def test_a_gz_that_is_plain_text(json_folder: Path) -> None:
    (json_folder / "trn.json.gz").write_text("{}")
    fails(json_folder, "trn.json.gz", "damaged compressed data")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"target_ind": [0, 5]}, "target_ind 0 to 5 where labels are 0 to 4"),
        ({"target_ind": [-1, 2]}, "target_ind -1 to 2"),
        ({"target_ind": [0], "target_rel": [1.0, 1.0]}, "1 target_ind and 2 target_rel"),
        ({"target_ind": ["0", "1"]}, "a target_ind that is not an integer"),
        ({"target_ind": 3}, "the target_ind 3, which is no list"),
        ({"target_ind": None}, "the target_ind None, which is no list"),
        ({"target_rel": [float("nan"), 1.0]}, "NaN, which is not a number"),
        ({"title": None}, "a title or content that is not text"),
        ({"title": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_json_row(json_folder: Path, change: dict, found: str) -> None:
    edit_line(json_folder / "trn.json.gz", 1, lambda line: json.dumps({**json.loads(line), **change}))
    fails(json_folder, "trn.json.gz: line 1: found", found, "expected a JSON object with title")


@pytest.mark.parametrize("name", ["trn.json.gz", "lbl.json.gz"])
def test_a_key_that_is_there_twice(json_folder: Path, name: str) -> None:
    edit_line(json_folder / name, 2, lambda line: line.replace("{", '{"title": "another", ', 1))
    fails(json_folder, f"{name}: line 2: found 'title' twice, expected each column or key once")


@pytest.mark.parametrize(
    ("line", "found"), [("{", "Expecting"), ("", "Expecting"), ("[1]", "[1]"), ("null", "None"), ("{}", "no key")]
)
def test_a_line_that_is_no_json_object(json_folder: Path, line: str, found: str) -> None:
    edit_line(json_folder / "trn.json.gz", 3, lambda _: line)
    fails(json_folder, "trn.json.gz: line 3: found", found)


def test_json_that_is_not_utf8(json_folder: Path) -> None:
    (json_folder / "lbl.json.gz").write_bytes(gzip.compress(b'{"title": "a"}\n{"title": "\xe9"}\n'))
    fails(json_folder, "lbl.json.gz: line 2: found byte 0xe9 at offset 26, expected UTF-8")


def test_an_empty_json_file(json_folder: Path) -> None:
    (json_folder / "tst.json.gz").write_bytes(gzip.compress(b""))
    fails(json_folder, "tst.json.gz", "found an empty file")


def test_a_label_file_of_the_wrong_length(raw: Path) -> None:
    (raw / "Y.txt").write_text("rot\ngrün\nblau\n")
    fails(raw, "trn_X_Y.txt", "found 7 rows and 5 labels", "expected 7 rows", "3 labels")


def test_a_text_file_of_the_wrong_length(raw: Path) -> None:
    (raw / "tst_X.txt").write_text("a\nb\n")
    fails(raw, "tst_X_Y.txt", "found 3 rows", "expected 2 rows (texts in tst_X.txt)")


def test_a_header_that_lies(raw: Path) -> None:
    edit_line(raw / "trn_X_Y.txt", 1, lambda _: "8 5")
    fails(raw, "trn_X_Y.txt: line 1", "a header of 8 rows", "expected 7")


def test_an_unreadable_file(raw: Path) -> None:
    (raw / "trn_X.txt").unlink()
    (raw / "trn_X.txt").symlink_to(raw / "trn_X.txt")
    fails(raw, "found part of the raw text layout, expected also trn_X.txt")


def test_a_file_that_may_not_be_read(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    fails(raw, "Y.txt: cannot be read (Permission denied)")


def test_an_npz_that_holds_a_pickle(xr: Path) -> None:
    one = np.ones(1, int)
    arrays = {"format": np.array(b"csr"), "shape": np.array([3, 5]), "indptr": np.zeros(4, int), "indices": one}
    np.savez(xr / "Y.trn.npz", **arrays, data=np.array([{}], dtype=object))
    fails(xr, "Y.trn.npz", "array data: found the type object, expected floats or integers")


def test_an_npz_that_unpacks_to_too_much(xr: Path, small: Dataset) -> None:
    """20 MB of zeros in a file of 20 kB."""
    many = np.zeros(5_000_000, np.int32)
    shape = np.array(small.train.targets.shape)
    np.savez_compressed(xr / "Y.trn.npz", format=b"csr", shape=shape, indptr=np.zeros(8), indices=many, data=many)
    fails(xr, "Y.trn.npz", "array indptr: found the type float64")
    np.savez_compressed(xr / "Y.trn.npz", format=b"csr", shape=shape, indptr=np.zeros(8, int), indices=many, data=many)
    fails(xr, "Y.trn.npz", "array indices: found 5,000,000 entries, expected at most 48")


def test_an_npz_of_other_dimensions(xr: Path) -> None:
    one = np.zeros(1, np.int32)
    np.savez(xr / "Y.trn.npz", format=b"csr", shape=np.array([3]), indptr=np.zeros(4, int), indices=one, data=one)
    fails(xr, "Y.trn.npz", "found arrays of other dimensions")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing"])
def test_an_npz_that_is_none(xr: Path, content: bytes) -> None:
    (xr / "Y.trn.npz").write_bytes(content)
    fails(xr, "Y.trn.npz", "damaged: ")


@pytest.mark.parametrize("form", ["csc", "coo"])
def test_an_npz_in_another_format_is_the_same_matrix(xr: Path, small: Dataset, form: str) -> None:
    for path, split in ((xr / "Y.trn.npz", small.train), (xr / "Y.tst.npz", small.test)):
        sp.save_npz(path, split.targets.asformat(form))
    parts = read_directory(xr, DRAFT.text, DRAFT.card)
    for found, expected in ((parts.train, small.train), (parts.test, small.test)):
        assert (found.targets.toarray() == expected.targets.toarray()).all()


def test_an_npz_in_a_format_of_blocks_is_refused(xr: Path, small: Dataset) -> None:
    sp.save_npz(xr / "Y.trn.npz", small.train.targets.tobsr((1, 1)))
    fails(xr, "Y.trn.npz", "found a matrix in 'bsr' format, expected 'csr', 'csc' or 'coo'")


@pytest.mark.parametrize("rows", [[0, 7], [-1, 0], [0]])
def test_a_coo_matrix_whose_rows_do_not_fit_is_refused(xr: Path, rows: list[int]) -> None:
    arrays = {"row": np.array(rows), "col": np.zeros(2, int), "data": np.ones(2), "shape": np.array([7, 5])}
    np.savez(xr / "Y.trn.npz", **arrays, format=np.array(b"coo"))
    fails(xr, "Y.trn.npz", "rows")


def test_an_npz_whose_values_are_no_numbers(xr: Path, small: Dataset) -> None:
    sp.save_npz(xr / "Y.trn.npz", small.train.targets * np.nan)
    fails(xr, "Y.trn.npz", "found a value that is not finite")


@pytest.mark.parametrize(
    ("indices", "indptr", "found"),
    [
        ([0, 5], [0, 1, 2, 2], "labels 0 to 5, expected 0 to 4"),
        ([0, -1], [0, 1, 2, 2], "labels -1 to 0"),
        ([0, 1], [0, 2, 1, 2], "row pointers"),
        ([0, 1], [0, 1, 2], "row pointers"),
        ([0, 1], [0, 1, 2, 3], "row pointers"),
    ],
)
def test_an_npz_that_is_not_sound(xr: Path, indices: list[int], indptr: list[int], found: str) -> None:
    arrays = {"data": np.ones(2), "indices": np.array(indices), "indptr": np.array(indptr)}
    np.savez(xr / "Y.tst.npz", **arrays, shape=np.array([3, 5]), format=np.array(b"csr"))
    fails(xr, "Y.tst.npz", found)


def test_ignored_pairs_out_of_range(raw: Path) -> None:
    (raw / "tst_filter_labels.txt").write_text("0 1\n3 0\n")
    fails(raw, "tst_filter_labels.txt: line 2: found row 3, expected 0 to 2")


def test_two_files_of_ignored_pairs(raw: Path) -> None:
    (raw / "filter_labels_test.txt").write_text("")
    fails(raw, "found filter_labels_test.txt and tst_filter_labels.txt, expected one")


@pytest.mark.parametrize("name", ["filter_labels_test.txt.gz", "tst_filter_labels.txt.gz"])
def test_compressed_ignored_pairs_are_read(raw: Path, small: Dataset, name: str) -> None:
    pairs = (raw / "tst_filter_labels.txt").read_bytes()
    (raw / "tst_filter_labels.txt").unlink()
    assert read_directory(raw, DRAFT.text, DRAFT.card).ignore_test.nnz == 0
    (raw / name).write_bytes(gzip.compress(pairs))
    assert (read_directory(raw, DRAFT.text, DRAFT.card).ignore_test.toarray() == small.ignore_test.toarray()).all()
    (raw / name.removesuffix(".gz")).write_bytes(pairs)
    fails(raw, f"found {name.removesuffix('.gz')} and {name}, expected one")


@pytest.mark.parametrize(
    "name",
    [
        "filter_labels_test.txt.xz",
        "filter_labels_tst.txt",
        "Filter_Labels_Test.npz",
        "test_filters.txt.bz2",
        "raw/filter_labels_test.txt",
    ],
)
def test_a_file_like_one_of_ignored_pairs_is_never_left_unread(raw: Path, name: str) -> None:
    (raw / name).parent.mkdir(exist_ok=True)
    (raw / name).write_bytes(b"")
    fails(raw, name, "seems to list pairs to ignore and would not be read, expected the names filter_labels_train.txt")


@pytest.mark.parametrize(
    "name", ["trn_X.txt", "trn_X_Y.txt", "Y.txt", "tst_filter_labels.txt", "trn.json.gz", "Y.trn.npz"]
)
@settings(max_examples=25)
@given(content=st.binary(max_size=60) | st.text("0123 :\n.e-", max_size=40).map(str.encode))
def test_no_bytes_give_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, written: Callable[[Path, str], None]
) -> None:
    directory = tmp_path_factory.mktemp("any")
    written(directory, {"trn.json.gz": "json", "Y.trn.npz": "xr"}.get(name, "raw"))
    (directory / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    try:
        parts = read_directory(directory, DRAFT.text, DRAFT.card)
    except XMCBenchError as problem:
        message = str(problem)
    else:
        message = f"{directory}: read"
        assert parts.train.targets.shape == (len(parts.train.texts), len(parts.label_texts))
    assert message.startswith(str(directory))
    assert "\n" not in message


def test_a_folder_without_a_dataset_names_what_is_expected(tmp_path: Path) -> None:
    fails(tmp_path, "found no dataset", "trn.json", "trn_X_Y.txt", "raw/trn_X.txt", "output-items.txt")


def test_part_of_a_layout_names_what_is_missing(raw: Path) -> None:
    (raw / "Y.txt").unlink()
    fails(raw, "found part of the raw text layout, expected also Y.txt")


def test_two_layouts_at_once_are_ambiguous(raw: Path) -> None:
    for name in ("trn.json", "tst.json", "lbl.json"):
        (raw / name).write_text("{}\n")
    fails(raw, "found the files of JSON and raw text, expected those of one layout")


def test_one_file_in_two_forms_is_ambiguous(raw: Path) -> None:
    (raw / "Y.txt.gz").write_bytes(gzip.compress(b""))
    fails(raw, "found both Y.txt and Y.txt.gz")


@pytest.mark.parametrize(("name", "layout"), [("lf-tate-titles-16k", "raw text"), ("lf-tibkat-15k", "JSON")])
def test_the_real_datasets_are_recognised(shared: Path, name: str, layout: str) -> None:
    assert detect(shared / "datasets" / name).name == layout
