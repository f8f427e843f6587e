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
from xmcbench.evaluation import check_predictions, drop_ignored, rank
from xmcbench.evaluation.entries import Ranked
from xmcbench.evaluation.prediction_files import read_entries
from xmcbench_plugins.scoring.doubts import DoubtKind, Move, doubt_text, find_doubts

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


def write_fortran(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    np.savez(path, indices=np.asfortranarray(i.astype(np.int64)), scores=np.asfortranarray(s.astype(np.float64)))


def write_csc(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    sp.save_npz(path, csr(i, s).tocsc())


def write_coo(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    matrix = csr(i, s).tocoo()
    order = np.random.default_rng(0).permutation(matrix.nnz)
    parts = (matrix.data[order], (matrix.row[order], matrix.col[order]))
    sp.save_npz(path, sp.coo_matrix(parts, shape=matrix.shape))


def write_dense(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    scores = np.full((QUERIES, LABELS), -np.inf)
    rows, columns = np.nonzero(i >= 0)
    scores[rows, i[rows, columns]] = s[rows, columns]
    with path.open("wb") as file:
        np.save(file, np.asfortranarray(scores))


def write_run(path: Path, i: np.ndarray, s: np.ndarray) -> None:
    lines = [
        f"{query} Q0 {label} {rank} {score!r} mine"
        for query in range(QUERIES)
        for rank, (label, score) in enumerate(zip(i[query].tolist(), s[query].tolist(), strict=True), start=1)
        if label >= 0
    ]
    path.write_text("\n".join(np.random.default_rng(0).permutation(lines)) + "\n")


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


WRITERS = [
    write_csr, write_csc, write_coo, write_rows, write_fortran, write_dense, write_run, write_sparse, write_lines,
    write_lists, write_flat,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
def test_every_layout_gives_the_same_ranking(write: Callable[..., None], made: tuple, tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"  # the layout is known from the content, not from the name
    write(path, *made)
    for k in (3, K, K + 2):
        ranked = read_entries(path, QUERIES, LABELS).ranked(k).predictions()
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


@pytest.mark.parametrize(("column", "value"), [(0, np.inf), (-1, -np.inf)])
def test_an_infinite_score_is_named(made: tuple, tmp_path: Path, column: int, value: float) -> None:
    made[0][4, column] = max(made[0][4, column], 0)
    made[1][4, column] = value
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


def eye(size: int = 8, ignored: list[tuple[int, int]] | None = None, drawn: bool = False) -> Dataset:
    """A dataset whose test query i has the label i, or a `drawn` one; no two have the same."""
    true = np.random.default_rng(7).permutation(size) if drawn else np.arange(size)
    places = tuple(np.array(ignored or [], np.int64).reshape(-1, 2).T)
    ignore = sp.csr_array((np.ones(len(ignored or []), np.float32), places), shape=(size, size))
    card = DatasetCard(name="eye", num_train=size, num_test=size, num_labels=size, content_hash="c")
    texts = [str(i) for i in range(size)]
    split = Split(texts, sp.csr_array(np.eye(size, dtype=np.float32)[true]))
    return Dataset(card, split, split, texts, sp.csr_array((size, size), dtype=np.float32), ignore)


def doubts(labels: np.ndarray, scores: np.ndarray, dataset: Dataset | None = None, ordered: bool = False) -> str:
    dataset = dataset or eye()
    ranked = Ranked(labels.astype(np.int32), scores.astype(np.float64), ordered)
    kept = drop_ignored(ranked.predictions(), dataset.ignore_test, 8)
    return "\n".join(doubt_text(doubt) for doubt in find_doubts(ranked, kept, dataset))


def test_doubts_are_told_and_good_predictions_raise_none() -> None:
    best_first = (np.arange(8)[:, None] + np.arange(6)) % 8
    falling = np.tile(-np.arange(6.0), (8, 1))
    assert doubts(best_first, falling) == ""
    short = np.where(np.arange(6) < 2, best_first, -1)
    assert "1 predicted pairs are filtered" in doubts(best_first, falling, eye(8, [(2, 3)]))
    assert "8 of 8 queries have fewer than 5 labels" in doubts(short, falling)
    assert "8 of 8 queries have equal scores at ranks" in doubts(np.sort(best_first), np.zeros((8, 6)))
    rounded = doubts(best_first, falling * 1e-12 + 1)
    assert "8 of 8 queries have scores" in rounded
    assert "equal" not in rounded
    assert "contradict the scores" in doubts(best_first, -falling, ordered=True)


PERMUTED = {
    "shuffled": lambda rows: rows[np.random.default_rng(1).permutation(len(rows))],
    "halves swapped": lambda rows: np.roll(rows, len(rows) // 2, axis=0),
    "sorted by another key": lambda rows: rows[np.argsort(np.arange(len(rows)) % 7, kind="stable")],
    "labels renumbered": lambda rows: np.random.default_rng(2).permutation(200)[rows],
}
MOVED = {
    Move.ROWS_UP: lambda rows: np.roll(rows, -1, axis=0),
    Move.ROWS_DOWN: lambda rows: np.roll(rows, 1, axis=0),
    Move.ROWS_REVERSED: lambda rows: rows[::-1],
    Move.LABELS_FROM_1: lambda rows: np.minimum(rows + 1, 199),
}


def right_answers() -> np.ndarray:
    """Six labels of each query of `eye(200, drawn=True)`, of which the first is true."""
    true = np.argmax(eye(200, drawn=True).test.targets.toarray(), axis=1)
    rng = np.random.default_rng(8)
    return np.stack([[label, *rng.choice(np.delete(np.arange(200), label), 5, replace=False)] for label in true])


def kinds_of_order(labels: np.ndarray) -> list[tuple[DoubtKind, Move | None]]:
    scores = np.tile(-np.arange(labels.shape[1], dtype=float), (len(labels), 1))
    ranked = Ranked(labels.astype(np.int32), scores, ordered=True)
    found = find_doubts(ranked, ranked.predictions(), eye(200, drawn=True))
    return [(doubt.kind, doubt.move) for doubt in found if doubt.kind in (DoubtKind.ORDER, DoubtKind.MOVED)]


@pytest.mark.parametrize("change", PERMUTED)
def test_rows_in_any_other_order_are_noticed(change: str) -> None:
    assert kinds_of_order(right_answers()) == []
    assert kinds_of_order(PERMUTED[change](right_answers())) == [(DoubtKind.ORDER, None)]


@pytest.mark.parametrize("move", MOVED)
def test_a_mistake_of_numbering_is_named(move: Move) -> None:
    assert kinds_of_order(MOVED[move](right_answers())) == [(DoubtKind.MOVED, move)]


def test_the_same_answer_to_every_query_has_no_order() -> None:
    assert kinds_of_order(np.tile(np.arange(6), (200, 1))) == []


@pytest.mark.parametrize("step", [1e-9, 1e-12, 0.0])
@pytest.mark.parametrize("write", [write_rows, write_fortran, write_lists])
def test_a_ranked_file_is_ranked_as_it_is_ordered(write: Callable[..., None], step: float, tmp_path: Path) -> None:
    """Scores that are ties in float32, best first, in an order that is not that of the labels."""
    labels = np.stack([np.random.default_rng(i).permutation(LABELS)[:K] for i in range(QUERIES)])
    scores = np.tile(0.7 - step * np.arange(K), (QUERIES, 1))
    write(tmp_path / "p.npz", labels, scores)
    ranked = read_entries(tmp_path / "p.npz", QUERIES, LABELS).ranked(K)
    assert (ranked.labels_TK == labels).all()
    kept = ranked.predictions()
    assert (kept.indices == labels).all()
    check_predictions(kept, QUERIES, LABELS)
    np.testing.assert_allclose(kept.scores, scores, rtol=1e-6)
    assert ranked.ties((1, 3, 5)) == ((0, QUERIES) if step else (QUERIES, 0))


def test_a_matrix_of_float64_ranks_by_the_exact_scores(tmp_path: Path) -> None:
    labels = np.stack([np.random.default_rng(i).permutation(LABELS)[:K] for i in range(QUERIES)])
    write_csr(tmp_path / "p.npz", labels, np.tile(0.7 - 1e-9 * np.arange(K), (QUERIES, 1)))
    kept = read_entries(tmp_path / "p.npz", QUERIES, LABELS).ranked(K).predictions()
    assert (kept.indices == labels).all()
    check_predictions(kept, QUERIES, LABELS)


def test_whole_numbers_are_scores(made: tuple, tmp_path: Path) -> None:
    write_rows(tmp_path / "p.npz", made[0], (made[1] * 8).astype(np.int32) * (made[0] >= 0))
    assert (read_entries(tmp_path / "p.npz", QUERIES, LABELS).ranked(K).labels_TK == made[0]).all()


def test_a_matrix_of_ranked_labels_is_ranked_so(made: tuple, tmp_path: Path) -> None:
    with (tmp_path / "p.npy").open("wb") as file:
        np.save(file, made[0])
    assert (read_entries(tmp_path / "p.npy", QUERIES, LABELS).ranked(K).labels_TK == made[0]).all()


def test_a_run_ranks_by_its_ranks_and_not_by_its_scores(tmp_path: Path) -> None:
    order = list(enumerate((1, 4, 3)))
    lines = [f"{query}\tQ0\t{label}\t{rank}\t{label / 100}\tx" for query in range(3) for rank, label in order]
    (tmp_path / "run.trec").write_text("\n".join(lines))
    ranked = read_entries(tmp_path / "run.trec", 3, 5).ranked(3)
    assert ranked.labels_TK.tolist() == [[1, 4, 3]] * 3
    assert ranked.predictions().indices.tolist() == [[1, 4, 3]] * 3
    check_predictions(ranked.predictions(), 3, 5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 1 1 0.5 x", "expected numbers of test queries and labels"),
        ("0 Q0 d7 1 0.5 x", "expected numbers of test queries and labels"),
        ("3 Q0 1 1 0.5 x", "found query 3, expected 0 to 2"),
        ("0 Q0 9 1 0.5 x", "query 0: found label 9, expected 0 to 4"),
        ("0 Q0 1.5 1 0.5 x", "expected whole numbers"),
        ("0 Q0 1 1 0.5 x\n0 Q0 2 1 0.4 x", "query 0: found the rank 1 twice"),
        ("0 Q0 1 1 0.5 x\n0 Q0 2 0.4 x", "line 2: found 5 fields"),
        ("0 Q0 1 1 nan x", "not a finite number"),
    ],
)
def test_a_run_that_does_not_fit_is_one_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text(line + "\n")
    with pytest.raises(XMCBenchError, match=message):
        read_entries(tmp_path / "run.trec", 3, 5)
