"""Base of second stages that give the first method's best labels scores of their own.

Legend: N queries, K labels of a shortlist.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy
from pydantic import Field

from xmcbench import DualEncoder, Predictions, Run, data, evaluation
from xmcbench_second_stage.stage import SecondStage

if TYPE_CHECKING:
    from torch import Tensor

EQUAL = 1e-6  # scores with a smaller deviation count as equal


class Reranker(SecondStage):
    """Both scores are scaled to mean 0 and variance 1 within a query's shortlist and added, whatever their scales.

    A label without a score of the second stage (NaN) gets the mean there.
    """

    counted: ClassVar = {"shortlist": ("labels",)}

    class Config(SecondStage.Config):
        shortlist: int = Field(
            100,
            gt=0,
            description="number of the first method's best labels that are ranked; labels below keep their order",
        )
        weight: float = Field(1.0, ge=0, description="weight of the ranker's score; 0: the first method's order")

    config: Reranker.Config

    def listed(self, queries_ND: Tensor, exclude: scipy.sparse.csr_array, run: Run) -> np.ndarray:
        """[N, K] the first method's best labels of the training queries, without the pairs `exclude`; charged."""
        k = min(self.config.shortlist, len(self.first.index_LD))
        with self.first.charging_to(run.ledger, run.budget).counted_scoring("mine"):
            return self.vectors(queries_ND, run).nearest(k, exclude=exclude)

    @abstractmethod
    def scores(self, texts: data.Texts, labels_NK: np.ndarray) -> np.ndarray:
        """[N, K] the second stage's scores of each query's labels, NaN where it has none."""

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return self._rank(texts, self._exact_first.predict(texts, self._candidates(k)), k)

    def predict_exactly(self, texts: data.Texts, k: int) -> Predictions | None:
        found = self._exact_first.predict_exactly(texts, self._candidates(k))
        return None if found is None else self._rank(texts, found, k)

    @property
    def _exact_first(self) -> DualEncoder:
        """The first method, answering in float32.

        In bf16 a query's vector depends on the texts beside it, and so would the labels at the end of its shortlist.
        """
        first = copy(self.first)
        first.config = first.config.model_copy(update={"precision": "float32"})
        return first

    def _candidates(self, k: int) -> int:
        """How many labels the first method is asked for."""
        return min(len(self.first.index_LD), max(k, self.config.shortlist))

    def _rank(self, texts: data.Texts, found: Predictions, k: int) -> Predictions:
        """The `k` best of the labels that the first method found."""
        listed = min(self.config.shortlist, len(self.first.index_LD))
        head_NK = found.indices[:, :listed]
        own_NK = standardised(self.scores(texts, head_NK))
        scores_NK = standardised(found.scores[:, :listed]) + self.config.weight * own_NK
        # Labels beyond the shortlist stay below, in the first method's order.
        below = scores_NK.min(axis=1, keepdims=True) - 1 - np.arange(found.k - listed, dtype=np.float32)
        return evaluation.rank(found.indices, np.concatenate([scores_NK, below], axis=1), k)


def standardised(scores_NK: np.ndarray) -> np.ndarray:
    """Each row scaled to mean 0 and variance 1, ignoring NaN; NaN becomes 0, and so does a row of equal scores."""
    known = ~np.isnan(scores_NK)
    count_N1 = np.maximum(known.sum(axis=1, keepdims=True), 1)
    centred = np.where(known, scores_NK - np.nansum(scores_NK, axis=1, keepdims=True) / count_N1, 0.0)
    spread_N1 = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count_N1)
    return np.asarray(centred / np.maximum(spread_N1, EQUAL), np.float32)
