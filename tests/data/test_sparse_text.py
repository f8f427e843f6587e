"""Sparse text read equals the matrix written, and every way it can be wrong is one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data import text_files
from xmcbench.data.text_files import read_blocks, read_pairs, read_rows, read_targets, read_texts
from xmcbench.errors import XMCBenchError

# A row is labels with the words written for their values; "0" and "-0.0e9" are stored zeros, which are no labels.
VALUES = st.sampled_from(["1", "1.00000", "0.25", "3e-2", "-2", "0", "-0.0e9"])
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 11), VALUES), max_size=5), max_size=9)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trn_X_Y.txt"


@given(
    rows=ROWS, newline=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block_bytes=st.sampled_from([5, 1 << 20])
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list, newline: str, last: bool, block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("sparse") / "trn_X_Y.txt"
    lines = [f"{len(rows)} 12", *(" ".join(f"{label}:{value}" for label, value in row) for row in rows)]
    path.write_bytes((newline.join(lines) + (newline if last or not rows or not rows[-1] else "")).encode())
    expected = np.zeros((len(rows), 12), np.float32)
    for i, row in enumerate(rows):
        for label, value in row:
            expected[i, label] = max(expected[i, label], float(value) != 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_blocks, "__defaults__", (block_bytes,))
        matrix = read_targets(path)
    assert (matrix.toarray() == expected).all()
    assert matrix.dtype == np.float32
    assert (matrix.data == 1).all()
    assert all((np.diff(matrix.indices[a:b]) > 0).all() for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False))


@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11)), max_size=15))
def test_pairs_written_are_read(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]) -> None:
    path = tmp_path_factory.mktemp("pairs") / "filter_labels_test.txt"
    path.write_text("".join(f"{row} {label}\n" for row, label in pairs))
    expected = sp.coo_array((np.ones(len(pairs)), tuple(np.array(pairs).reshape(-1, 2).T)), shape=(7, 12)).toarray() > 0
    assert (read_pairs(path, (7, 12)).toarray() == expected).all()


@pytest.mark.parametrize(
    ("content", "line", "found", "expected"),
    [
        ("2 4\n0:1\n4:1\n", "line 3", "label 4", "0 to 3"),
        ("2 4\n0:1 2\n1:1\n", "line 2", "'2'", "label:value"),
        ("2 4\n0:1\n1:2:3\n", "line 3", "'1:2:3'", "label:value"),
        ("2 4\n0:1\n-1:1\n", "line 3", "'-1'", "digits alone"),
        ("2 4\n0:1\n:1\n", "line 3", "':1'", "label:value"),
        ("2 4\n0:1\n1:\n", "line 3", "''", "finite number"),
        ("2 4\n0:1\n1:x 2:1\n", "line 3", "'x'", "finite number"),
        ("2 4\n0:nan\n1:1\n", "line 2", "'nan'", "finite number"),
        ("2 4\n0:1\n99999999999999999999:1\n", "line 3", "'99999999999999999999'", "digits alone"),
        ("3 4\n0:1\n1:1\n", "line 1", "a header of 3 rows", "expected 2"),
        ("1 4\n0:1\n1:1\n", "line 1", "a header of 1 rows", "expected 2"),
        ("0:1\n1:1\n", "line 1", "'0:1'", "a header 'rows labels'"),
        ("2 9 4\n0:1\n1:1\n", "line 1", "'2 9 4'", "a header 'rows labels'"),
        ("", "trn_X_Y.txt", "an empty file", "a header"),
    ],
)
def test_a_bad_target_file_is_one_line(file: Path, content: str, line: str, found: str, expected: str) -> None:
    file.write_text(content)
    with pytest.raises(XMCBenchError) as caught:
        read_targets(file)
    message = str(caught.value)
    assert str(file) in message
    assert all(part in message for part in (line, f"found {found}", expected)), message
    assert "\n" not in message


def test_line_numbers_count_over_blocks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("6 4\n0:1\n\n1:1\n2:1\n3:1\n4:1\n")
    monkeypatch.setattr(read_blocks, "__defaults__", (6,))
    with pytest.raises(XMCBenchError, match="line 7: found label 4"):
        read_targets(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0 1\n2 1\n", "line 2: found row 2, expected 0 to 1"),
        ("0 1\n1 3\n", "line 2: found label 3, expected 0 to 2"),
        ("0 1\n1\n", "line 2: found '1', expected two integers"),
        ("0 1\n\n1 1\n", "line 2: found '', expected two integers"),
        ("0 x\n", "line 1: found 'x', expected an integer"),
    ],
)
def test_a_bad_pair_file_is_one_line(file: Path, content: str, message: str) -> None:
    file.write_text(content)
    with pytest.raises(XMCBenchError, match=message):
        read_pairs(file, (2, 3))


def test_texts_that_are_not_utf8_name_line_and_byte(file: Path) -> None:
    file.write_bytes(b"hat\nm\xc3\xbctze\n" + "süß".encode("latin-1") + b"\n")
    with pytest.raises(XMCBenchError, match="line 3: found byte 0xfc at offset 12, expected UTF-8"):
        read_texts(file)


def test_texts_split_at_newlines_alone(file: Path) -> None:
    file.write_bytes("eins\u2028zwei\x0b\r\n\nlast".encode())
    assert list(read_texts(file)) == ["eins\u2028zwei\x0b", "", "last"]


def test_an_empty_text_file_is_an_error(file: Path) -> None:
    file.write_bytes(b"")
    with pytest.raises(XMCBenchError, match="found an empty file, expected one text a line"):
        read_texts(file)


def test_a_missing_file_is_one_line(file: Path) -> None:
    with pytest.raises(XMCBenchError, match=r"cannot be read \(No such file"):
        read_texts(file)


def test_block_size_is_a_default_that_tests_may_lower() -> None:
    assert read_blocks.__defaults__ == (text_files.BLOCK_BYTES,)


@pytest.mark.parametrize("digits", range(1, 19))
def test_numbers_of_every_length_are_read(tmp_path: Path, digits: int) -> None:
    rng = np.random.default_rng(digits)
    wanted = sorted({int("".join(map(str, rng.integers(0, 10, digits)))) for _ in range(20)})
    path = tmp_path / "rows.txt"
    path.write_text(" ".join(f"{label:0{digits}d}:1" for label in wanted) + "\n")
    assert read_rows(path, num_labels=10**18).labels.tolist() == wanted


@pytest.mark.parametrize("byte", [b"/", b";", b"x", b"\xff", b"\x00", b"-"])
@pytest.mark.parametrize("place", range(9))
def test_a_byte_that_is_no_digit_is_found_at_every_place(tmp_path: Path, byte: bytes, place: int) -> None:
    path = tmp_path / "rows.txt"
    number = bytearray(b"123456789")
    number[place : place + 1] = byte
    path.write_bytes(b"1:1 2:1\n3:1 " + bytes(number) + b":1\n")
    with pytest.raises(XMCBenchError, match=r"line 2: found .*digits alone"):
        read_rows(path, num_labels=10**18)


HOSTILE = {
    "a value of three million digits": b"1:" + b"1" * 3_000_000 + b"\n",
    "a label of three million digits": b"1" * 3_000_000 + b":1\n",
    "a line of 20 MB": b"1:1 " * 5_000_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_lines_are_named(tmp_path: Path, case: str) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(XMCBenchError, match="line 1: found") as caught:
        read_rows(path, num_labels=9)
    assert len(str(caught.value)) < 300


def test_a_gzip_of_nuls_is_not_unpacked_whole(tmp_path: Path) -> None:
    path = tmp_path / "trn_X.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    with pytest.raises(XMCBenchError, match="line 1: found a line of more than 16,777,216 bytes"):
        read_texts(path)
