"""Predictions as Python programs hold them: matrices of any kind, data frames, lists and dictionaries.

T test queries, L labels, K ranked labels of a query.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from xmcbench.errors import shown
from xmcbench.evaluation.entries import Entries, Expected
from xmcbench.evaluation.prediction_arrays import EXPECTED, numbers, of_array, of_ranked_rows


def entries_of(value: Any, expected: Expected) -> Entries:
    """The scored labels in `value`, checked but not ranked. Raises XMCBenchError where it is none of what is known."""
    entries = _entries(value, expected)
    entries.check(expected)
    return entries


def _entries(value: Any, expected: Expected) -> Entries:
    if scipy.sparse.issparse(value):
        return _of_sparse(value, expected)
    torch = sys.modules.get("torch")  # a tensor cannot be there without it
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(value, expected)
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return _of_frame(value, expected)
    if isinstance(value, Mapping):
        return _of_mapping(value, expected)
    if isinstance(value, tuple) and len(value) == 2 and all(getattr(part, "ndim", 0) == 2 for part in value):
        indices, scores = (_plain(part, expected) for part in value)
        if indices.dtype.kind == "f" and scores.dtype.kind in "iu":  # as torch.topk returns them
            indices, scores = scores, indices
        return of_ranked_rows(indices, scores, expected)
    if hasattr(value, "index") and hasattr(value, "to_list"):  # a column of a data frame
        _check_index(value, expected)
        value = value.to_list()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        expected.check_rows(len(value))
        return _of_rows(list(enumerate(value)), expected)
    if isinstance(value, np.ma.MaskedArray):
        value = np.where(np.ma.getmaskarray(value), -np.inf, value.data)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return of_array(_plain(value, expected), expected)
    raise expected.error(f"found {type(value).__module__}.{type(value).__name__}, {EXPECTED}")


def _of_sparse(matrix: Any, expected: Expected) -> Entries:
    """Every stored entry is a prediction, a stored 0 among them."""
    expected.check_shape(tuple(matrix.shape))
    entries = matrix.tocoo()
    numbers(entries.data, "matrix", expected)
    expected.check_entries(entries.nnz)
    scores = entries.data.astype(np.float64)
    row, col = (part.astype(np.int64) for part in (entries.row, entries.col))
    return Entries(expected.num_queries, row, col, scores, stored_as=str(entries.data.dtype))


def _of_tensor(tensor: Any, expected: Expected) -> Entries:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        raise expected.error(f"found a tensor of {tensor.dtype}, expected numbers")
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        tensor = tensor.float()
    if tensor.layout == torch.strided:
        entries = of_array(tensor.numpy(), expected)
    else:
        coo = tensor.to_sparse_coo().coalesce()
        expected.check_shape(tuple(coo.shape))
        expected.check_entries(coo.values().numel())
        queries, labels = coo.indices().numpy()
        entries = Entries(expected.num_queries, queries, labels, coo.values().numpy().astype(np.float64))
    return Entries(entries.num_queries, entries.queries, entries.labels, entries.scores, entries.ranks, name)


def _of_frame(frame: Any, expected: Expected) -> Entries:
    """A data frame: query, label and score a row, or lists `indices` and `scores` a row, or a column for each label."""
    names = [str(name) for name in frame.columns]
    if {"query", "label", "score"} <= set(names):
        queries, labels = (_whole(frame[name], name, expected) for name in ("query", "label"))
        expected.check_queries(queries)
        scores = numbers(np.asarray(frame["score"]), "score", expected)
        return Entries(expected.num_queries, queries, labels, scores.astype(np.float64), stored_as=str(scores.dtype))
    _check_index(frame, expected)
    if {"indices", "scores"} <= set(names):
        expected.check_rows(len(frame))
        rows = zip(frame["indices"], frame["scores"], strict=True)
        return _of_rows([(query, list(zip(*row, strict=False))) for query, row in enumerate(rows)], expected)
    array = np.asarray(frame.to_numpy())
    if array.shape == (expected.num_queries, expected.num_labels) and not _is_count(
        frame.columns, expected.num_labels, texts=True
    ):
        raise expected.error(
            "found a data frame whose columns are not 0, 1, 2 ...: columns are labels in the order of the dataset, "
            "expected their numbers as names, in order"
        )
    return of_array(array, expected)


def _check_index(frame: Any, expected: Expected) -> None:
    """Raise where the index of a data frame may say another order of rows than that in which they lie."""
    index = getattr(frame, "index", None)
    if index is not None and not _is_count(index, expected.num_queries):
        raise expected.error(
            "found a data frame whose index is not 0, 1, 2 ...: rows answer the test queries in order, expected "
            ".sort_index() where the index says which, or .reset_index(drop=True)"
        )


def _is_count(names: Any, size: int, texts: bool = False) -> bool:
    """Whether `names` are 0, 1, 2 ..., or with `texts` these as texts."""
    found = [str(name) if texts else name for name in names]
    return len(found) != size or all(name == (str(number) if texts else number) for number, name in enumerate(found))


def _of_mapping(value: Mapping[Any, Any], expected: Expected) -> Entries:
    """`indices` and `scores`, or what is predicted for each query by its number, as a run of pytrec_eval has it."""
    for labels in ("indices", "labels"):
        if {labels, "scores"} <= value.keys():
            indices, scores = (_plain(value[name], expected) for name in (labels, "scores"))
            return of_ranked_rows(indices, scores, expected)
    rows = [(_number(key, "query", expected), row) for key, row in value.items()]
    expected.check_queries(np.array([query for query, _ in rows], np.int64))
    return _of_rows(rows, expected)


def _of_rows(rows: Sequence[tuple[int, Any]], expected: Expected) -> Entries:
    """What is predicted for each query: {label: score}, pairs (label, score), labels, or scores of all labels."""
    queries, labels, scores = [], [], []
    scored = ranked = False
    for query, row in rows:
        try:
            found, has_scores = _of_row(row, expected)
        except (TypeError, ValueError, OverflowError) as problem:
            raise expected.error(f"query {query}: found {shown(row)}, {EXPECTED}") from problem
        scored, ranked = scored or (has_scores and bool(found)), ranked or (bool(found) and not has_scores)
        if scored and ranked:
            raise expected.error(f"query {query}: found {shown(row)}, expected scores for each query, or for none")
        queries += [query] * len(found)
        labels += [label for label, _ in found]
        scores += [score for _, score in found]
        expected.check_entries(len(queries))
    ranks = np.arange(len(queries)) if ranked else None
    arrays = np.array(queries, np.int64), np.array(labels, np.int64), np.array(scores, np.float64)
    return Entries(expected.num_queries, *arrays, ranks, "float64")


def _of_row(row: Any, expected: Expected) -> tuple[list[tuple[int, float]], bool]:
    """The labels of a query with their scores, and whether it has scores: ranked labels get descending ones.

    Raises TypeError or ValueError for what is none of these.
    """
    if isinstance(row, str | bytes):
        raise TypeError
    if isinstance(row, Mapping):
        return [(_number(label, "label", expected), float(score)) for label, score in row.items()], True
    values = [value.tolist() if hasattr(value, "tolist") else value for value in row]
    if values and all(isinstance(value, list | tuple) for value in values):
        return [(_number(label, "label", expected), float(score)) for label, score in values], True
    if len(values) == expected.num_labels and any(isinstance(value, float) for value in values):
        return [(label, float(score)) for label, score in enumerate(values)], True
    return [(_number(label, "label", expected), -float(rank)) for rank, label in enumerate(values)], False


def _number(value: Any, name: str, expected: Expected) -> int:
    """The whole number that a query or label is given by, also as text."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    size = expected.num_queries if name == "query" else expected.num_labels
    raise expected.error(f"found the {name} {shown(value)}, expected its number in the dataset, 0 to {size - 1}")


def _whole(column: Any, name: str, expected: Expected) -> np.ndarray:
    values = np.asarray(column)
    if values.dtype.kind not in "iu":
        raise expected.error(f"column {name}: found the type {values.dtype}, expected integers and none missing")
    return values.astype(np.int64)


def _plain(value: Any, expected: Expected) -> np.ndarray:
    """An array of numbers, of a tensor or of nested lists too."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise expected.error(
            f"found {shown(value)}, expected an array [queries, k]: {problem}".splitlines()[0]
        ) from problem
    return array
