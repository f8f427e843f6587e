"""Evaluation: the default figures against plain numpy, and against merely reading the predictions.

Random predictions and truth; about every fifth true pair is among the predictions. The peer looks up a query at a time
what is true, and computes the figures from dense matrices. The two have to agree. Where pyxclib is installed, the
figures that its `Metrics` class computes are a case of their own, on both sides.

    python benchmarks/metrics.py --queries 135000 --labels 131073 --k 100
    python benchmarks/metrics.py --queries 5000 --labels 5000                         # a quick look
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from report import least_seconds, options, report

from xmcbench.evaluation.builtin import EVALUATORS
from xmcbench.evaluation.entry_check import check_predictions
from xmcbench.evaluation.evaluator import DEFAULT_METRICS, score
from xmcbench.evaluation.metrics import find_hits
from xmcbench.evaluation.propensity import inverse_propensity
from xmcbench.trial.predictions import Predictions

FIVE = [f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in range(1, 6)]
UP_TO_FIVE = "P, nDCG, PSP, PSnDCG at 1 to 5"
BY_NAME = {evaluator.name: evaluator for evaluator in EVALUATORS}


def make(num_queries: int, num_labels: int, k: int, true: int) -> tuple[Predictions, sp.csr_array]:
    """Ranked distinct labels and about `true` true labels a query, some of them predicted."""
    rng = np.random.default_rng(0)
    # Multiples of an odd step are distinct as long as step * k stays below the number of labels.
    steps = rng.integers(1, max(2, num_labels // k), num_queries)[:, None]
    first = rng.integers(0, num_labels, num_queries)[:, None]
    indices = ((first + steps * np.arange(k)) % num_labels).astype(np.int32)
    scores = np.tile(np.linspace(1, 0, k, dtype=np.float32), (num_queries, 1))
    hits = indices[np.arange(num_queries)[:, None], rng.integers(0, k, (num_queries, max(1, true // 5)))]
    others = rng.integers(0, num_labels, (num_queries, true - hits.shape[1]))
    labels = np.concatenate([hits, others], axis=1)
    rows = np.repeat(np.arange(num_queries), labels.shape[1])
    truth = sp.csr_array((np.ones(labels.size, np.float32), (rows, labels.ravel())), (num_queries, num_labels))
    truth.data[:] = 1.0  # a label drawn twice was summed
    return Predictions(indices, scores), truth


def peer(predictions: Predictions, truth: sp.csr_array, weights: np.ndarray) -> dict[str, float]:
    """The same figures, a query at a time and then as dense matrices."""
    hits, best = np.zeros(predictions.indices.shape, dtype=bool), np.zeros((len(predictions), 5))
    for row, labels in enumerate(predictions.indices):
        true = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
        hits[row] = np.isin(labels, true)
        heaviest = np.sort(weights[true])[::-1][:5]
        best[row, : len(heaviest)] = heaviest
    num_true = np.maximum(np.diff(truth.indptr), 1)
    figures = {f"R@{k}": (hits[:, :k].sum(1) / num_true).mean() for k in (1, 3, 5, 10, 100)}
    for k in (1, 3, 5):
        discounts = 1 / np.log2(np.arange(2, k + 2))
        ideal = np.cumsum(discounts)[np.minimum(num_true, k) - 1]
        gains = hits[:, :k] * weights[predictions.indices[:, :k]]
        figures[f"P@{k}"] = hits[:, :k].mean()
        figures[f"nDCG@{k}"] = (hits[:, :k] @ discounts / ideal).mean()
        figures[f"PSP@{k}"] = gains.sum() / best[:, :k].sum()
        figures[f"PSnDCG@{k}"] = (gains @ discounts / ideal).sum() / (best[:, :k] @ discounts / ideal).sum()
    return figures


def pyxclib(predictions: Predictions, truth: sp.csr_array, weights: np.ndarray) -> dict[str, float]:
    """The figures `FIVE` from the ranked labels, by pyxclib."""
    from xclib.evaluation import xc_metrics

    found = xc_metrics.Metrics(sp.csr_matrix(truth), weights).eval(predictions.indices[:, :5], K=5, sorted=True)
    return dict(zip(FIVE, np.concatenate(found), strict=True))


def main() -> None:
    parser = options(__doc__, queries=135_000, labels=131_073, k=100, true=(5, "true labels a query"), repeats=3)
    args = parser.parse_args()
    predictions, truth = make(args.queries, args.labels, args.k, args.true)
    weights = inverse_propensity(truth, 0.55, 1.5)
    nothing = sp.csr_array(truth.shape, dtype=np.float32)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "predictions.npz"
        np.savez(file, indices=predictions.indices, scores=predictions.scores)

        def read() -> None:
            with np.load(file) as arrays:
                Predictions(arrays["indices"], arrays["scores"])

        cases: dict[str, Callable[[], Any]] = {
            "read predictions": read,
            "check predictions": lambda: check_predictions(predictions, *truth.shape, nothing),
            "all figures": lambda: score(find_hits(predictions, truth, weights), DEFAULT_METRICS, BY_NAME),
            "all figures, plain numpy": lambda: peer(predictions, truth, weights),
        }
        if find_spec("xclib"):
            cases[UP_TO_FIVE] = lambda: score(find_hits(predictions, truth, weights), FIVE, BY_NAME)
            cases[f"{UP_TO_FIVE}, pyxclib"] = lambda: pyxclib(predictions, truth, weights)
        found = {name: case() for name, case in cases.items()}
        least = least_seconds(cases, args.repeats)
    for case, other, tolerance in (("all figures", "plain numpy", 1e-9), (UP_TO_FIVE, "pyxclib", 1e-6)):
        if case in found:
            ours, theirs = found[case], found[f"{case}, {other}"]
            np.testing.assert_allclose([theirs[name] for name in ours], list(ours.values()), rtol=tolerance)
    peer_seconds = least["all figures, plain numpy"]
    rows = [
        {"case": name, "seconds": seconds, "queries/s": args.queries / seconds, "to peer": seconds / peer_seconds}
        for name, seconds in least.items()
    ]
    report("metrics", rows, args.out)


if __name__ == "__main__":
    main()
