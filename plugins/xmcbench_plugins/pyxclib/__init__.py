"""pyxclib: the metrics of its own code, as evaluators, where it is installed. They check those of xmcbench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import scipy

from xmcbench import hookimpl

if TYPE_CHECKING:
    from xmcbench import evaluation

PLAIN = {"P": "precision", "nDCG": "ndcg", "R": "recall"}
WEIGHTED = {"PSP": "psprecision", "PSnDCG": "psndcg"}  # these also take the inverse propensities


@dataclass(frozen=True)
class PyXCLib:
    """A metric of xmcbench, computed by `xclib.evaluation.xc_metrics` from the stored order of the labels."""

    repeats: str

    @property
    def name(self) -> str:
        return f"pyxclib-{self.repeats}"

    @property
    def summary(self) -> str:
        return f"{self.repeats} by the code of pyxclib"

    def compute(self, hits: evaluation.Hits, k: int) -> float:
        from xclib.evaluation import xc_metrics

        labels = hits.predictions.indices[:, :k]
        missing = k - labels.shape[1]  # a padding of -1 is the empty column that pyxclib appends to the truth
        labels = np.pad(labels, ((0, 0), (0, missing)), constant_values=-1)
        truth = scipy.sparse.csr_matrix(hits.truth, dtype=np.float64)
        weights = [hits.inverse_propensity] if self.repeats in WEIGHTED else []
        compute = getattr(xc_metrics, (PLAIN | WEIGHTED)[self.repeats])
        return float(compute(labels, truth, *weights, k=k, sorted=True)[-1])


@hookimpl
def register_evaluators(register: Callable[[evaluation.Evaluator], None]) -> None:
    if find_spec("xclib") is not None:
        for metric in PLAIN | WEIGHTED:
            register(PyXCLib(metric))
