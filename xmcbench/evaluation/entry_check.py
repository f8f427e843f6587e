"""Predictions are checked before they get a score: a rule broken is an error, never a figure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from xmcbench.data.pairs import binary, contains, row_chunks
from xmcbench.errors import XMCBenchError
from xmcbench.trial.predictions import Predictions

_SLACK = 1e-9  # sums of fractions are exact to about 1e-15 a term


class InvalidPredictions(XMCBenchError):
    """Predictions, or figures computed from them, that break a rule of the harness; they have no score."""


def check_predictions(predictions: Predictions, num_queries: int, num_labels: int, ignore: sp.csr_array) -> None:
    """Raise `InvalidPredictions` unless the rows are ranked, distinct labels, none in `ignore` [N, L].

    The message names the first query that breaks a rule.
    """
    indices, scores = predictions.indices, predictions.scores
    if len(predictions) != num_queries:
        raise InvalidPredictions(
            f"predictions have {len(predictions)} rows, expected one for each of {num_queries} queries"
        )
    if not np.issubdtype(indices.dtype, np.integer):
        raise InvalidPredictions(f"labels are of type {indices.dtype}, expected integers")
    for chunk in row_chunks(*indices.shape):
        for problem, broken in _broken_rules(indices[chunk], scores[chunk], num_labels).items():
            _refuse(problem, broken, chunk.start)
    _refuse("a label that is to be filtered", contains(binary(ignore), indices), 0)


def _broken_rules(indices: np.ndarray, scores: np.ndarray, num_labels: int) -> dict[str, np.ndarray]:
    """Each rule, in the words of its violation, and where it is broken: bool [n, k or k - 1]."""
    pads = indices == -1
    ordered = np.sort(indices, axis=1)
    before, after = scores[:, :-1], scores[:, 1:]
    tied = (before == after) & ~pads[:, 1:]
    return {
        f"a label outside 0..{num_labels - 1}": (indices < -1) | (indices >= num_labels),
        "a pad (-1) before a label": pads[:, :-1] & ~pads[:, 1:],
        "a label twice": (ordered[:, :-1] == ordered[:, 1:]) & (ordered[:, 1:] >= 0),
        "a score that is NaN": np.isnan(scores),
        "scores that do not descend": after > before,
        "equal scores not ranked by ascending label": tied & (indices[:, :-1] > indices[:, 1:]),
    }


def _refuse(problem: str, broken: np.ndarray, first_row: int) -> None:
    rows = np.flatnonzero(broken.any(axis=1))
    if len(rows):
        raise InvalidPredictions(f"the predictions of test query {first_row + int(rows[0])} hold {problem}")


def drop_ignored(predictions: Predictions, ignore: sp.csr_array, k: int) -> Predictions:
    """The predictions without the pairs in `ignore` [N, L], cut to the best `k`; rows left short are padded."""
    width = min(k, predictions.k)
    dropped = contains(binary(ignore), predictions.indices) | (predictions.indices < 0)
    kept = Predictions(
        np.empty((len(predictions), width), dtype=np.int32), np.empty((len(predictions), width), dtype=np.float32)
    )
    for chunk in row_chunks(*dropped.shape):
        order = np.argsort(dropped[chunk], axis=1, kind="stable")[:, :width]
        gone = np.take_along_axis(dropped[chunk], order, axis=1)
        kept.indices[chunk] = np.where(gone, -1, np.take_along_axis(predictions.indices[chunk], order, axis=1))
        kept.scores[chunk] = np.where(gone, -np.inf, np.take_along_axis(predictions.scores[chunk], order, axis=1))
    return kept


def check_figures(metrics: Mapping[str, float]) -> None:
    """Raise `InvalidPredictions` where figures contradict each other: no predictions can give them."""
    for name, value in metrics.items():
        if not -_SLACK <= value <= 1.0 + _SLACK:
            raise InvalidPredictions(f"{name} is {value}, expected a fraction in 0..1")
    if "P@1" in metrics and "nDCG@1" in metrics and abs(metrics["P@1"] - metrics["nDCG@1"]) > _SLACK:
        raise InvalidPredictions(f"P@1 is {metrics['P@1']} and nDCG@1 is {metrics['nDCG@1']}, expected them equal")
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in metrics.items():
        if parts := re.fullmatch(r"(P|R)@(\d+)", name):
            k = int(parts[2])
            found[parts[1]].append((k, value * k if parts[1] == "P" else value))
    for family, points in found.items():
        for (k, at_k), (more, at_more) in pairwise(sorted(points)):
            if at_more < at_k - _SLACK * more:
                raise InvalidPredictions(f"{family}@{more} finds fewer true labels than {family}@{k}")
