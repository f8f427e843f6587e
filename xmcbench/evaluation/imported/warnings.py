"""What may be wrong with predictions that break no rule: signs of another order, of filtered pairs and of ties.

T test queries, k predicted labels, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary, contains
from xmcbench.trial.predictions import Predictions

DEPTH = 5  # labels per query that are looked at


def find_warnings(ranked: Predictions, kept: Predictions, dataset: Dataset) -> Iterator[str]:
    """Doubts about predictions: `ranked` as they were read, `kept` without the pairs that the dataset filters."""
    total, num_labels = kept.indices.shape[0], dataset.test.targets.shape[1]
    if dropped := int((ranked.indices >= 0).sum() - (kept.indices >= 0).sum()):
        yield (
            f"{dropped:,} predicted pairs are filtered by the dataset (reciprocal pairs); they were dropped. A program "
            "that scores with them reports lower metrics"
        )
    depth = min(DEPTH, num_labels)
    if short := int((kept.indices[:, :depth] < 0).any(axis=1).sum()):
        yield f"{short:,} of {total:,} queries have fewer than {depth} labels; a missing label counts as a wrong one"
    if kept.k > depth:
        tied = (kept.scores[:, depth - 1] == kept.scores[:, depth]) & (kept.indices[:, depth] >= 0)
        if tied.any():
            yield (
                f"{int(tied.sum()):,} of {total:,} queries have equal scores at ranks {depth} and {depth + 1}; "
                "ties rank by ascending label here, other programs may order them otherwise"
            )
    hits, shifted = (_hits(rows, dataset) for rows in (kept.indices[:, :1], np.roll(kept.indices[:, :1], 1, axis=0)))
    if total > 1 and hits <= shifted:
        yield (
            f"{hits:,} queries have a true label first, and {shifted:,} if every row is moved by one: the rows may not "
            "be in the order of the dataset's test queries"
        )


def _hits(indices: np.ndarray, dataset: Dataset) -> int:
    """True pairs among the labels `indices` [T, k]."""
    return int(contains(binary(dataset.test.targets), indices).sum())
