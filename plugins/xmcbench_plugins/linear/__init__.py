"""One linear support vector machine per label over TF-IDF features, with liblinear of scikit-learn.

Legend: C queries of a chunk, L labels with a classifier, V terms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy
from pydantic import Field

from xmcbench import Budget, Method, MethodInfo, Predictions, data, evaluation, hookimpl
from xmcbench_plugins.external import OutsideMethod
from xmcbench_plugins.tfidf import Characters

# What a training takes, roughly, on one core of 2023: only a plan is made of it.
LABEL_SECONDS, TERM_SECONDS, ITERATIONS = 4e-3, 4e-9, 10
CHARACTER_TERMS = 10  # sequences of three to five characters of a word, about
CELLS = 16_000_000  # scores that are computed at once


class LinearOneVsRest(OutsideMethod):
    """Squared hinge, trained by a program in parallel processes; this process predicts."""

    name = "linear-ovr"
    info = MethodInfo(
        summary="one linear support vector machine per label over TF-IDF features (liblinear of scikit-learn)",
        citation="Fan et al., LIBLINEAR: A Library for Large Linear Classification, JMLR 2008",
    )
    uses_gpu = False
    late_imports = ("sklearn.feature_extraction.text",)
    plain_targets = False
    program: ClassVar[Path] = Path(__file__).with_name("program.py")

    class Config(Method.Config):
        ngrams: int = Field(1, ge=1, description="words of a term, at most")
        characters: Characters = None
        cost: float = Field(1.0, gt=0, description="C of liblinear")
        negatives: int = Field(
            5000,
            ge=0,
            description="training queries without the label in its problem: those nearest to the mean of its own; "
            "0: all (chosen)",
        )

    config: LinearOneVsRest.Config
    _loaded: tuple[Path, scipy.sparse.csr_array, np.ndarray, np.ndarray] | None = None

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:  # noqa: ARG003
        return {"characters": [None, [3, 5]], "cost": [0.3, 1.0, 3.0]}

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:  # noqa: ARG002
        """About the processor seconds: those that each label takes, and those of ten iterations over its rows."""
        rows = min(data.queries, self.config.negatives or data.queries)
        terms = data.query_tokens * (1 if self.config.characters is None else CHARACTER_TERMS)
        return {"device_seconds": data.labels * (LABEL_SECONDS + ITERATIONS * rows * terms * TERM_SECONDS)}

    def command(self) -> list[str]:
        return [sys.executable, str(self.program)]

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        """The `k` labels with the highest decision values; labels without a classifier are not ranked."""
        from xmcbench_plugins.external.program.xmcbench_features import features

        weights_VL, labels_L, intercepts_L = self._weights()
        k_L = min(k, len(labels_L))
        indices, scores = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
        chunk = max(1, CELLS // max(1, len(labels_L)))
        for start in range(0, len(texts) if k_L else 0, chunk):
            rows_CV = scipy.sparse.csr_array(features(list(texts[start : start + chunk]), self._model))
            scores_CL = np.asarray((rows_CV @ weights_VL).todense(), np.float32) + intercepts_L
            least_C1 = np.partition(scores_CL, -k_L, axis=1)[:, -k_L, None]
            rows, places = np.nonzero(scores_CL >= least_C1)  # more than k where the last of them tie
            ends = np.searchsorted(rows, np.arange(len(scores_CL) + 1))
            width = int(labels_L[-1]) + 1
            listed = scipy.sparse.csr_array((scores_CL[rows, places], labels_L[places], ends), (len(scores_CL), width))
            found = evaluation.rank_sparse(listed, k_L)
            indices[start : start + chunk, :k_L], scores[start : start + chunk, :k_L] = found.indices, found.scores
        return Predictions(indices, scores)

    def _weights(self) -> tuple[scipy.sparse.csr_array, np.ndarray, np.ndarray]:
        """The weights [V, L] of the labels with a classifier, their ids and intercepts."""
        if self._loaded is None or self._loaded[0] != self._model:
            weights_VL = scipy.sparse.csr_array(scipy.sparse.load_npz(self._model / "weights.npz"))
            arrays = (np.load(self._model / f"{name}.npy", allow_pickle=False) for name in ("labels", "intercepts"))
            self._loaded = self._model, weights_VL, *arrays
        return self._loaded[1:]


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(LinearOneVsRest)
