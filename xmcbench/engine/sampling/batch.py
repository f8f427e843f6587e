"""A batch of training: queries, the labels they are scored against, and the true pairs among them.

Legend: B queries of a batch, S labels of its pool, P true pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

if TYPE_CHECKING:
    from xmcbench.engine.losses.own_scores import Score
    from xmcbench.engine.losses.positives import Positives


@dataclass(frozen=True)
class Batch:
    """The ids of B queries and S labels of the pool (numpy, int; labels ascending, each once), and the true pairs."""

    query_ids: np.ndarray
    label_ids: np.ndarray
    positives: Positives

    @classmethod
    def of(
        cls,
        query_ids: np.ndarray,
        label_ids: np.ndarray,
        rows_P: np.ndarray,
        columns_P: np.ndarray,
        chosen: Mapping[str, np.ndarray],
    ) -> Batch:
        """A batch whose pairs are numpy arrays of any integer type; the weights of `Positives.chosen` of any type."""
        import torch

        from xmcbench.engine.losses.positives import Positives

        rows, columns = (torch.from_numpy(ids.astype(np.int64)) for ids in (rows_P, columns_P))
        weights = {which: torch.from_numpy(weights_P.astype(np.float32)) for which, weights_P in chosen.items()}
        return cls(query_ids, label_ids, Positives(rows, columns, len(query_ids), len(label_ids), weights))

    def scored_by(self, score: Score | None) -> Batch:
        """The same batch, whose pairs the losses score by `score`; None: by inner products."""
        return replace(self, positives=replace(self.positives, score=score))


def gather_rows(matrix: scipy.sparse.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The column ids of the given rows, row by row, and their number per row."""
    counts = matrix.indptr[rows + 1] - matrix.indptr[rows]
    starts = np.repeat(matrix.indptr[rows] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return matrix.indices[starts + np.arange(counts.sum())], counts
