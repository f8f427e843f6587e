"""A batch of training: queries, the labels they are scored against, and the true pairs among them.

Legend: B queries of a batch, S labels of its pool, P true pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
        sampled_B: np.ndarray,
    ) -> Batch:
        """A batch whose pairs are numpy arrays of any integer type; see `Positives` for `sampled_B`."""
        import torch

        from xmcbench.engine.losses.positives import Positives

        rows, columns, sampled = (torch.from_numpy(ids.astype(np.int64)) for ids in (rows_P, columns_P, sampled_B))
        return cls(query_ids, label_ids, Positives(rows, columns, sampled, len(label_ids)))
