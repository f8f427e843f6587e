"""Whatever holds predictions in Python gives one ranking, or one line that says what is expected."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import check_predictions
from xmcbench.evaluation.entries import Expected
from xmcbench_plugins.scoring.prediction_values import entries_of

T, L, K = 6, 9, 4


def expected(queries: int = T, labels: int = L) -> Expected:
    return Expected("predictions", queries, labels)


def dense(rng: np.random.Generator, queries: int = T, labels: int = L) -> np.ndarray:
    """Distinct scores of all labels."""
    return np.stack([rng.permutation(labels) - 3.5 for _ in range(queries)])


def best(scores: np.ndarray, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return indices, np.take_along_axis(scores, indices, axis=1)


def sparse_of(scores: np.ndarray) -> sp.csr_array:
    """The best K labels of each row, stored 0s among them."""
    indices, values = best(scores)
    return sp.csr_array((values.ravel(), indices.ravel(), np.arange(0, values.size + 1, K)), shape=scores.shape)


def frame_of(scores: np.ndarray) -> pd.DataFrame:
    indices, values = best(scores)
    rows = np.repeat(np.arange(len(scores)), K)
    table = pd.DataFrame({"query": rows, "label": indices.ravel(), "score": values.ravel()})
    return table.sample(frac=1, random_state=0)


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda scores: scores,
    "float32": lambda scores: scores.astype(np.float32),
    "float16, columns first": lambda scores: np.asfortranarray(scores.astype(np.float16)),
    "transposed view": lambda scores: np.ascontiguousarray(scores.T).T,
    "masked array": lambda scores: np.ma.masked_less(scores, np.sort(scores, axis=1)[:, -K, None]),
    "tensor": lambda scores: torch.tensor(scores, requires_grad=True),
    "bfloat16": lambda scores: torch.tensor(scores, dtype=torch.bfloat16),
    "sparse tensor": lambda scores: torch.tensor(sparse_of(scores).toarray()).to_sparse_coo(),
    "sparse tensor in rows": lambda scores: torch.tensor(sparse_of(scores).toarray()).to_sparse_csr(),
    "frame": lambda scores: pd.DataFrame(scores),
    "frame with texts as names": lambda scores: pd.DataFrame(scores, columns=[str(i) for i in range(scores.shape[1])]),
    "frame of entries": frame_of,
    "frame of lists": lambda s: pd.DataFrame({"indices": best(s)[0].tolist(), "scores": best(s)[1].tolist()}),
    "series of lists": lambda scores: pd.Series(best(scores)[0].tolist()),
    "csr": sparse_of,
    "csr matrix": lambda scores: sp.csr_matrix(sparse_of(scores)),
    "csc": lambda scores: sparse_of(scores).tocsc(),
    "coo": lambda scores: sparse_of(scores).tocoo(),
    "lil": lambda scores: sparse_of(scores + 100).tolil(),
    "dok": lambda scores: sparse_of(scores + 100).todok(),
    "bsr": lambda scores: sparse_of(scores + 100).tobsr((1, 1)),
    "indices and scores": best,
    "values and indices": lambda scores: tuple(torch.topk(torch.tensor(scores), K)),
    "ranked labels": lambda scores: best(scores)[0],
    "dictionary of arrays": lambda scores: dict(zip(("indices", "scores"), best(scores), strict=True)),
    "lists of scores": lambda scores: scores.tolist(),
    "lists of labels": lambda scores: best(scores)[0].tolist(),
    "list of arrays": lambda scores: list(best(scores)[0]),
    "list of tensors": lambda scores: list(torch.tensor(best(scores)[0])),
    "list of dictionaries": lambda s: [dict(zip(*row, strict=True)) for row in zip(*best(s), strict=True)],
    "lists of pairs": lambda s: [list(zip(*row, strict=True)) for row in zip(*best(s), strict=True)],
    "run": lambda s: {
        str(q): {str(label): float(score) for label, score in zip(*row, strict=True)}
        for q, row in enumerate(zip(*best(s), strict=True))
    },
    "labels by query": lambda scores: dict(enumerate(best(scores)[0].tolist())),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), queries=st.integers(1, 9), labels=st.integers(5, 12))
def test_every_kind_gives_the_same_ranking(kind: str, seed: int, queries: int, labels: int) -> None:
    scores = dense(np.random.default_rng(seed), queries, labels)
    ranked = entries_of(KINDS[kind](scores), expected(queries, labels)).ranked(K).predictions()
    assert (ranked.indices == best(scores)[0]).all()
    check_predictions(ranked, queries, labels)


@pytest.mark.parametrize("width", [3, 200])
def test_the_best_of_many_labels_are_kept(width: int) -> None:
    scores = np.random.default_rng(0).integers(0, 4, (3, 5000)) / 4  # nearly all are ties
    ranked = entries_of(scores, expected(3, 5000)).ranked(width)
    assert (ranked.labels_TK == best(scores, width)[0]).all()


SCORES = dense(np.random.default_rng(0))
WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, "found builtins.NoneType, expected a matrix of scores"),
    "number": (3, "found builtins.int, expected a matrix"),
    "generator": ((row for row in SCORES), "found builtins.generator"),
    "function": (len, "found builtins.builtin_function_or_method"),
    "bytes": (b"abc", "found builtins.bytes"),
    "shape": (SCORES[:, :4], r"found the shape \(6, 4\), expected \(6, 9\)"),
    "transposed": (SCORES.T, "transposed"),
    "transposed csr": (sp.csr_array(SCORES.T), "transposed"),
    "one dimension": (SCORES[0], "found the shape"),
    "three dimensions": (SCORES[None], "found the shape"),
    "texts": (SCORES.astype(str), "found the type <U"),
    "objects": (np.array([[{}] * L] * T, dtype=object), "found the type object, expected numbers"),
    "complex": (SCORES.astype(complex), "found the type complex128, expected numbers"),
    "NaN": (np.where(SCORES > 4, np.nan, SCORES), "not a finite number"),
    "infinite": (np.where(SCORES > 4, np.inf, SCORES), "not a finite number"),
    "too few rows": ([[1]] * 5, "found 5 rows, expected one for each of 6"),
    "too many rows": ([[1]] * 7, "found 7 rows"),
    "row of a number": ([1, 2, 3, 4, 5, 6], "query 0: found 1, expected a matrix"),
    "label texts": ([["red"]] * 6, "found the label 'red', expected its number in the dataset, 0 to 8"),
    "mixed": ([[1, 2]] * 5 + [{1: 0.5}], "query 5: .* expected scores for each query, or for none"),
    "label twice": ([[1, 1]] * 6, "query 0: found label 1 twice"),
    "label outside": ([[9]] * 6, "query 0: found label 9, expected 0 to 8"),
    "score is text": ([{1: "high"}] * 6, "query 0: found {1: 'high'}"),
    "triples": ([[(1, 2, 3)]] * 6, "query 0: found"),
    "query outside": ({7: [1]}, "found query 7, expected 0 to 5"),
    "query texts": ({"q1": [1]}, "found the query 'q1', expected its number"),
    "ranks or scores": (np.argsort(SCORES, axis=1), "whole numbers that may be scores or labels"),
    "uneven parts": ((best(SCORES)[0], SCORES), r"found indices \(6, 4\) and scores \(6, 9\)"),
    "ascending": ((best(SCORES)[0], -best(SCORES)[1]), "expected the best label first"),
    "labels of floats": ((best(SCORES)[1], best(SCORES)[1]), "indices: found the type float64, expected integers"),
    "shuffled frame": (pd.DataFrame(SCORES).sample(frac=1, random_state=1), "index is not 0, 1, 2"),
    "shuffled columns": (pd.DataFrame(SCORES)[[3, 1, 2, 0, 4, 5, 6, 7, 8]], "columns are not 0, 1, 2"),
    "named columns": (pd.DataFrame(SCORES, columns=list("abcdefghi")), "columns are not 0, 1, 2"),
    "frame of texts": (pd.DataFrame({"query": ["a"], "label": [1], "score": [0.5]}), "column query: found the type"),
    "frame with gaps": (pd.DataFrame({"query": [0], "label": [None], "score": [0.5]}), "column label: found the type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line(case: str) -> None:
    value, message = WRONG[case]
    with pytest.raises(XMCBenchError, match=message) as caught:
        entries_of(value, expected())
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("predictions: ")


@settings(max_examples=150, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=6)
            | st.dictionaries(st.integers(0, 6) | st.text(max_size=2), inner, max_size=4)
            | st.tuples(inner, inner)
        ),
        max_leaves=20,
    )
)
def test_no_value_gives_a_traceback(value: Any) -> None:
    try:
        ranked = entries_of(value, expected()).ranked(K).predictions()
    except XMCBenchError:
        return
    assert ranked.indices.shape == (T, K)


# The Python door ----------------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> xb.data.Dataset:
    return xb.load("catalog-60", str(tmp_path), str(tmp_path / "cache"))


def truth_of(dataset: xb.data.Dataset) -> sp.csr_array:
    return dataset.test.targets


def test_the_truth_scores_full_marks_in_every_kind(catalog: xb.data.Dataset, tmp_path: Path) -> None:
    truth = truth_of(catalog)
    sp.save_npz(tmp_path / "truth.npz", truth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given_ in (
            truth,
            truth.tocsc(),
            truth.toarray(),
            torch.tensor(truth.toarray()),
            str(tmp_path / "truth.npz"),
        ):
            assert xb.score(given_, catalog, metrics="P@1").metrics["P@1"] == 1.0


def test_warnings_are_returned_and_warned_of(catalog: xb.data.Dataset, tmp_path: Path) -> None:
    shuffled = truth_of(catalog)[np.random.default_rng(0).permutation(len(catalog.test.texts))]
    sp.save_npz(tmp_path / "rows.npz", shuffled)
    for given_ in (shuffled, tmp_path / "rows.npz"):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            scored = xb.score(given_, catalog, metrics=["P@1"])
        assert tuple(str(warning.message) for warning in warned) == scored.warnings
        assert any("rows may not be in the order" in warning for warning in scored.warnings)
        assert any("fewer than 5 labels" in warning for warning in scored.warnings)


@pytest.mark.parametrize("truth", [3, None, np.eye(3), Path("catalog-60")])
def test_a_truth_that_is_none_is_one_line(truth: Any) -> None:
    with pytest.raises(XMCBenchError, match=r"truth: found .*, expected a dataset"):
        xb.score(np.eye(3), truth)


def test_a_name_that_is_none_is_one_line() -> None:
    with pytest.raises(XMCBenchError, match="dataset: found int, expected a name"):
        xb.load(5)  # type: ignore[arg-type]
