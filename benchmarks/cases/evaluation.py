"""Evaluation: the default metrics, those of pyxclib against pyxclib, and all with intervals.

Random predictions and truth; about every fifth true pair is among the predictions. The sides have to agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from peers import Places, Result
from report import in_turns, seconds_of

from xmcbench.data import load
from xmcbench.evaluation import check_predictions, find_evaluators
from xmcbench.evaluation.evaluator import DEFAULT_METRICS, score, score_predictions
from xmcbench.evaluation.metrics import find_hits, inverse_propensity
from xmcbench.trial.predictions import Predictions

FIVE = [f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in range(1, 6)]
BY_NAME = find_evaluators(DEFAULT_METRICS)
REPEATS = 3


def make(num_queries: int, num_labels: int, k: int = 100, true: int = 5) -> tuple[Predictions, sp.csr_array]:
    """Ranked distinct labels and about `true` true labels a query, some of them predicted."""
    rng = np.random.default_rng(0)
    # Multiples of an odd step are distinct as long as step * k stays below the number of labels.
    steps = rng.integers(1, max(2, num_labels // k), num_queries)[:, None]
    first = rng.integers(0, num_labels, num_queries)[:, None]
    indices = ((first + steps * np.arange(k)) % num_labels).astype(np.int32)
    scores = np.tile(np.linspace(1, 0, k, dtype=np.float32), (num_queries, 1))
    hits = indices[np.arange(num_queries)[:, None], rng.integers(0, k, (num_queries, max(1, true // 5)))]
    labels = np.concatenate([hits, rng.integers(0, num_labels, (num_queries, true - hits.shape[1]))], axis=1)
    rows = np.repeat(np.arange(num_queries), labels.shape[1])
    truth = sp.csr_array((np.ones(labels.size, np.float32), (rows, labels.ravel())), (num_queries, num_labels))
    truth.data[:] = 1.0  # a label drawn twice was summed
    return Predictions(indices, scores), truth


def pyxclib(predictions: Predictions, truth: sp.csr_array, weights: np.ndarray) -> dict[str, float]:
    """The metrics `FIVE` from the ranked labels, by pyxclib."""
    from xclib.evaluation import xc_metrics

    found = xc_metrics.Metrics(sp.csr_matrix(truth), weights).eval(predictions.indices[:, :5], K=5, sorted=True)
    return dict(zip(FIVE, np.concatenate(found), strict=True))


def results(places: Places) -> Iterator[Result]:
    predictions, truth = make(*((2000, 3000) if places.quick else (100_000, 131_072)))
    weights = inverse_propensity(truth, 0.55, 1.5)

    def metrics(names: Sequence[str]) -> dict[str, float]:
        return score(find_hits(predictions, truth, weights), names, BY_NAME)

    cases = {"all": partial(metrics, DEFAULT_METRICS), "20": partial(metrics, FIVE)}
    if find_spec("xclib"):
        cases["pyxclib"] = partial(pyxclib, predictions, truth, weights)
        its, mine = cases["pyxclib"](), cases["20"]()
        np.testing.assert_allclose([its[name] for name in FIVE], [mine[name] for name in FIVE], rtol=1e-6)
    seconds = in_turns(cases, REPEATS)
    yield Result("all metrics, 100k x 131k", seconds["all"], "s", "0.25 s")
    peer = "pyxclib" if "pyxclib" in cases else ""
    yield Result("20 metrics, 100k x 131k", seconds["20"], "s", "1 x", peer, seconds.get(peer))
    dataset = load("catalog-1k" if places.quick else "catalog-1300k", cache_dir=places.out)
    queries, labels = dataset.test.targets.shape
    made, _ = make(queries, labels)

    def scored() -> None:
        check_predictions(made, queries, labels, dataset.ignore_test)
        score_predictions(made, dataset, DEFAULT_METRICS, BY_NAME)

    yield Result("17 metrics with intervals, 780k x 1.3M", seconds_of(scored, time.process_time), "CPU s", "10 s")
