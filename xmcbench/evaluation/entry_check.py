"""Checks of predictions before they are scored, and of metrics after: a broken rule is an error, never a score."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import scipy

from xmcbench.data.pairs import binary, contains, find, map_chunks
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

_SLACK = 1e-9  # sums of fractions are exact to about 1e-15 per term


class InvalidPredictions(XMCBenchError):
    """Predictions that break a rule of the harness, or metrics computed from them that do; they have no score."""


def check_predictions(
    predictions: Predictions, num_queries: int, num_labels: int, ignore: scipy.sparse.csr_array | None = None
) -> None:
    """Raise `InvalidPredictions` unless the rows are ranked, distinct labels, none of them in `ignore` [N, L].

    The message names the first query that breaks a rule.
    """
    indices, scores = predictions.indices, predictions.scores
    if len(predictions) != num_queries:
        raise InvalidPredictions(
            f"predictions have {len(predictions)} rows, expected one for each of {num_queries} queries"
        )
    if not np.issubdtype(indices.dtype, np.integer):
        raise InvalidPredictions(f"labels are of type {indices.dtype}, expected integers")

    def check(chunk: slice) -> None:
        if _in_order(indices[chunk], scores[chunk], num_labels):
            return
        for problem, broken in _broken_rules(indices[chunk], scores[chunk], num_labels).items():
            rows = np.flatnonzero(broken.any(axis=1))
            if len(rows):
                value = indices[chunk][rows[0], int(np.argmax(broken[rows[0]]))]
                found = f": {value}" if problem.startswith("a label outside") else ""
                raise _problem(chunk.start + int(rows[0]), problem + found)

    map_chunks(check, *indices.shape)
    ignored = find(binary(ignore), indices) if ignore is not None else np.empty(0, np.int64)
    if len(ignored):
        raise _problem(int(ignored[0]) // predictions.k, "a label that is to be filtered")


def _in_order(indices: np.ndarray, scores: np.ndarray, num_labels: int) -> bool:
    """Whether rows without pads surely keep all rules: the check of nearly all predictions, in few passes."""
    if not indices.size or int(indices.min()) < 0 or int(indices.max()) >= num_labels:
        return False
    ordered = np.sort(indices, axis=1)
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()) or not bool((scores[:, :1] < np.inf).all()):
        return False
    return bool((scores[:, :-1] > scores[:, 1:]).all())


def _broken_rules(indices: np.ndarray, scores: np.ndarray, num_labels: int) -> dict[str, np.ndarray]:
    """Where each rule is broken, bool [n, k or k - 1], keyed by the words of the error message."""
    pads = indices == -1
    ordered = np.sort(indices, axis=1)
    before, after = scores[:, :-1], scores[:, 1:]
    tied = (before == after) & ~pads[:, 1:]
    return {
        f"a label outside 0..{num_labels - 1}": (indices < -1) | (indices >= num_labels),
        "a pad (-1) before a label": pads[:, :-1] & ~pads[:, 1:],
        "a label twice": (ordered[:, :-1] == ordered[:, 1:]) & (ordered[:, 1:] >= 0),
        "a score that is NaN": np.isnan(scores),
        "an infinite score": scores == np.inf,
        "scores that do not descend": after > before,
        "equal scores not ranked by ascending label": tied & (indices[:, :-1] > indices[:, 1:]),
    }


def _problem(row: int, problem: str) -> InvalidPredictions:
    return InvalidPredictions(f"the predictions of test query {row} hold {problem}")


def drop_ignored(predictions: Predictions, ignore: scipy.sparse.csr_array, k: int) -> Predictions:
    """The predictions without the pairs in `ignore` [N, L], cut to the best `k`; rows left short are padded."""
    width = min(k, predictions.k)
    dropped = contains(binary(ignore), predictions.indices) | (predictions.indices < 0)
    remaining = Predictions(
        np.empty((len(predictions), width), dtype=np.int32), np.empty((len(predictions), width), dtype=np.float32)
    )

    def drop(chunk: slice) -> None:
        if not dropped[chunk].any():
            remaining.indices[chunk] = predictions.indices[chunk, :width]
            remaining.scores[chunk] = predictions.scores[chunk, :width]
            return
        order = np.argsort(dropped[chunk], axis=1, kind="stable")[:, :width]
        pads = np.take_along_axis(dropped[chunk], order, axis=1)
        remaining.indices[chunk] = np.where(pads, -1, np.take_along_axis(predictions.indices[chunk], order, axis=1))
        remaining.scores[chunk] = np.where(pads, -np.inf, np.take_along_axis(predictions.scores[chunk], order, axis=1))

    map_chunks(drop, *dropped.shape)
    return remaining


def check_metrics(metrics: Mapping[str, float]) -> None:
    """Raise `InvalidPredictions` where metrics contradict each other: no predictions can give them."""
    for name, value in metrics.items():
        if not -_SLACK <= value <= 1.0 + _SLACK:
            raise InvalidPredictions(f"{name} is {value}, expected a fraction in 0..1")
    if "P@1" in metrics and "nDCG@1" in metrics and abs(metrics["P@1"] - metrics["nDCG@1"]) > _SLACK:
        raise InvalidPredictions(f"P@1 is {metrics['P@1']} and nDCG@1 is {metrics['nDCG@1']}, expected them equal")
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in metrics.items():
        if parts := re.fullmatch(r"(P|R)@(\d{1,9})", name):
            k = int(parts[2])
            curves[parts[1]].append((k, value * k if parts[1] == "P" else value))
    for family, points in curves.items():
        for (k, at_k), (more, at_more) in pairwise(sorted(points)):
            if at_more < at_k - _SLACK * more:
                raise InvalidPredictions(f"{family}@{more} finds fewer true labels than {family}@{k}")
