"""Trains and predicts with LibMultiLabel. Runs in the environment of the plugin, where xmcbench is not installed."""

from __future__ import annotations

import libmultilabel.linear as linear
import numpy as np
import scipy.sparse as sp
from xmcbench_features import features, fit_features
from xmcbench_task import Task

SOLVERS = {"squared-hinge": 1, "log": 7}  # of LIBLINEAR, dual
BIAS = 1.0  # the library adds this as a last feature
ROWS = 1000  # queries that are scored at a time

task = Task()
settings = task.settings


def fit():
    matrix = sp.csr_matrix(
        fit_features(task.texts("train"), task.model, settings["ngrams"], settings.get("characters")), dtype=np.float64
    )
    options = f"-s {SOLVERS[settings['loss']]} -c {settings['cost']} -B {BIAS} -q"
    model = linear.train_1vsrest(task.matrix(), matrix, options=options)
    weights = model.weights.toarray() if sp.issparse(model.weights) else model.weights
    np.save(task.model / "weights.npy", np.asarray(weights, np.float32))


def predict():
    weights = np.load(task.model / "weights.npy", mmap_mode="r", allow_pickle=False)
    matrix = sp.csr_matrix(features(task.texts("queries"), task.model))
    parts = []
    for start in range(0, matrix.shape[0], ROWS):
        scores = matrix[start : start + ROWS] @ weights[:-1] + BIAS * weights[-1]
        parts.append(best(np.asarray(scores), min(task.k, task.num_labels)))
    task.predict(sp.vstack(parts))


def best(scores, k):
    """The `k` largest of each row, as a CSR matrix."""
    labels = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    indptr = np.arange(len(scores) + 1) * k
    return sp.csr_matrix((np.take_along_axis(scores, labels, axis=1).ravel(), labels.ravel(), indptr), scores.shape)


fit() if task.stage == "fit" else predict()
