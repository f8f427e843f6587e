"""Predictions in each layout are read alike, and a file that does not fit is one line that says where."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import drop_ignored, rank
from xmcbench.evaluation.imported import find_warnings, read_entries
from xmcbench.trial.predictions import Predictions

QUERIES, LABELS, K = 30, 50, 8


@pytest.fixture
def made() -> tuple[np.ndarray, np.ndarray]:
    """Ranked labels and scores [30, 8] with ties, negative scores, short rows and an empty one."""
    rng = np.random.default_rng(3)
    indices = np.stack([rng.permutation(LABELS)[:K] for _ in range(QUERIES)])
    indices[5, 3:] = indices[9] = -1
    ranked = rank(indices, rng.integers(-4, 9, (QUERIES, K)) / 8, K)
    return ranked.indices, ranked.scores


def csr(indices: np.ndarray, scores: np.ndarray) -> sp.csr_array:
    held = indices >= 0
    indptr = np.concatenate([[0], np.cumsum(held.sum(1))])
    matrix = sp.csr_array((scores[held], indices[held], indptr), shape=(len(indices), LABELS))
    matrix.sort_indices()
    return matrix


def lines(indices: np.ndarray, scores: np.ndarray) -> list[str]:
    """Entries as text, the labels of a row in ascending order."""
    rows = (sorted(zip(i.tolist(), s.tolist(), strict=True)) for i, s in zip(indices, scores, strict=True))
    return [" ".join(f"{label}:{score!r}" for label, score in row if label >= 0) for row in rows]


def write_csr(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    sp.save_npz(path, csr(i, s))


def write_rows(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    np.savez_compressed(path, indices=i, scores=s)


def write_sparse(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    path.write_text("\n".join([f"{QUERIES} {LABELS}", *lines(i, s)]) + "\n")


def write_lines(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    path.write_text("\n".join(lines(i, s)) + "\n")


def write_lists(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    held = [row >= 0 for row in i]
    columns = {
        name: [row[h].tolist() for row, h in zip(x, held, strict=True)] for name, x in (("indices", i), ("scores", s))
    }
    pq.write_table(pa.table(columns), path)


def write_flat(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    rows, columns = np.nonzero(i >= 0)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, columns = rows[order], columns[order]
    pq.write_table(pa.table({"query": rows, "label": i[rows, columns], "score": s[rows, columns]}), path)


WRITERS = [write_csr, write_rows, write_sparse, write_lines, write_lists, write_flat]


@pytest.mark.parametrize("write", WRITERS)
def test_every_layout_gives_the_same_ranking(write: Callable[..., None], made: tuple, tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"  # the layout is known from the content, not from the name
    write(path, *made)
    for k in (3, K, K + 2):
        ranked = read_entries(path, QUERIES, LABELS).ranked(k)
        assert (ranked.indices[:, :K] == made[0][:, :k]).all()
        assert (ranked.scores[:, :K] == made[1][:, :k]).all()
        assert (ranked.indices[:, K:] == -1).all()


@pytest.mark.parametrize("write", WRITERS)
def test_labels_and_rows_that_the_dataset_lacks_are_named(
    write: Callable[..., None], made: tuple, tmp_path: Path
) -> None:
    path = tmp_path / "p.npz"
    write(path, *made)
    with pytest.raises(XMCBenchError, match=r"p\.npz.*expected"):
        read_entries(path, QUERIES, LABELS - 20)
    with pytest.raises(XMCBenchError, match=r"p\.npz.*expected"):
        read_entries(path, QUERIES - 4, LABELS)


def test_a_transposed_matrix_is_told(made: tuple, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "p.npz", csr(*made).T.tocsr())
    with pytest.raises(XMCBenchError, match=r"found the shape \(50, 30\), expected \(30, 50\).*transposed"):
        read_entries(tmp_path / "p.npz", QUERIES, LABELS)


@pytest.mark.parametrize(
    ("array", "value", "message"),
    [
        ("scores", 9.0, r"query 4: found score .* before 9, expected the best label first"),
        ("indices", 77, r"query 4: found label 77, expected 0 to 49"),
        ("indices", -2, r"query 4: found label -2, expected 0 to 49"),
        ("indices", None, r"query 4: found label \d+ twice"),
        ("scores", np.nan, r"query 4: found label \d+ with a score that is not a finite number"),
    ],
)
def test_a_broken_row_is_named_with_its_value(
    array: str, value: float | None, message: str, made: tuple, tmp_path: Path
) -> None:
    values = made[array == "scores"]
    values[4, 1] = values[4, 0] if value is None else value
    write_rows(tmp_path / "p.npz", *made)
    with pytest.raises(XMCBenchError, match=message):
        read_entries(tmp_path / "p.npz", QUERIES, LABELS)


def test_an_infinite_score_is_named(made: tuple, tmp_path: Path) -> None:
    made[1][4, 0] = np.inf
    write_rows(tmp_path / "p.npz", *made)
    with pytest.raises(XMCBenchError, match=r"query 4: found label \d+ with a score that is not a finite number"):
        read_entries(tmp_path / "p.npz", QUERIES, LABELS)


def write_members(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An array as a file; with `shape`, of a header that claims this shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    )
    return file.getvalue() + array.tobytes()


def test_a_file_that_claims_or_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    some = np.zeros((QUERIES, 2), np.float32)
    write_members(path, indices=npy(some.astype(np.int32), (QUERIES, 1 << 40)), scores=npy(some))
    with pytest.raises(XMCBenchError, match=r"array indices: found .* entries, expected at most 1,500"):
        read_entries(path, QUERIES, LABELS)
    write_members(path, indices=npy(np.zeros((QUERIES, 100_000), np.int32)), scores=npy(some))
    assert path.stat().st_size < 50_000  # of 12 MB
    with pytest.raises(XMCBenchError, match="array indices: found 3,000,000 entries, expected at most 1,500"):
        read_entries(path, QUERIES, LABELS)
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.write(b" " * 50_000_000)
    with pytest.raises(XMCBenchError, match=r"more than .* bytes of text"):
        read_entries(tmp_path / "bomb.gz", QUERIES, LABELS)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", indices=np.array([{}], dtype=object), scores=np.zeros((1, 1)))
    with pytest.raises(XMCBenchError, match="found the type object, expected integers"):
        read_entries(tmp_path / "p.npz", QUERIES, LABELS)


@pytest.mark.parametrize("write", WRITERS)
def test_no_damage_gives_a_traceback(write: Callable[..., None], made: tuple, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "damaged"
    write(whole.with_suffix(".npz"), *made)
    content = bytearray(whole.with_suffix(".npz").read_bytes())
    rng, told = np.random.default_rng(0), []
    for cut in range(40):
        damaged = bytearray(content)
        damaged[int(rng.integers(4, len(content)))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged if cut % 2 else damaged[: int(rng.integers(4, len(content)))])
        try:
            read_entries(path, QUERIES, LABELS)
        except XMCBenchError as problem:
            told.append(str(problem))
    assert all(line.startswith(str(path)) and "\n" not in line for line in told)


def small_dataset(ignored: list[tuple[int, int]]) -> Dataset:
    targets = sp.csr_array(np.eye(8, dtype=np.float32))
    none = sp.csr_array((8, 8), dtype=np.float32)
    ignore = sp.csr_array((np.ones(len(ignored), np.float32), tuple(np.array(ignored).reshape(-1, 2).T)), shape=(8, 8))
    card = DatasetCard(name="eye", num_train=8, num_test=8, num_labels=8, content_hash="c")
    split = Split(list("abcdefgh"), targets)
    return Dataset(card, split, split, list("abcdefgh"), none, ignore)


def warnings(indices: np.ndarray, scores: np.ndarray, ignored: list[tuple[int, int]] | None = None) -> str:
    dataset = small_dataset(ignored or [])
    ranked = Predictions(indices.astype(np.int32), scores.astype(np.float32))
    return "\n".join(find_warnings(ranked, drop_ignored(ranked, dataset.ignore_test, 8), dataset))


def test_doubts_are_told_and_good_predictions_raise_none() -> None:
    best_first = (np.arange(8)[:, None] + np.arange(6)) % 8
    falling = np.tile(-np.arange(6.0), (8, 1))
    assert warnings(best_first, falling) == ""
    short = np.where(np.arange(6) < 2, best_first, -1)
    assert "1 predicted pairs are filtered" in warnings(best_first, falling, [(2, 3)])
    assert "8 of 8 queries have fewer than 5 labels" in warnings(short, falling)
    assert "8 of 8 queries have equal scores at ranks 5 and 6" in warnings(np.sort(best_first), np.zeros((8, 6)))
    assert "order" in warnings(np.roll(best_first[:, :1], 1, 0), falling[:, :1])
