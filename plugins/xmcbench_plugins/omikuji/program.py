"""Trains and predicts with Omikuji. Runs in the environment of the plugin, where xmcbench is not installed."""

from __future__ import annotations

import numpy as np
import omikuji
from xmcbench_features import features, fit_features
from xmcbench_task import Task

task = Task()
settings = task.settings
folder = str(task.model / "omikuji")


def fit():
    matrix = fit_features(task.texts("train"), task.model, settings["ngrams"], settings.get("characters"))
    data = task.folder / "train.svm"  # the repository's format, which the library reads
    write_data(data, matrix, task.matrix())
    parameters = omikuji.Model.default_hyper_param()
    parameters.n_trees = settings["trees"]
    parameters.cluster_k = settings["branches"]
    parameters.max_depth = settings["max_depth"]
    parameters.linear_c = settings["cost"]
    omikuji.Model.train_on_data(str(data), parameters).save(folder)
    data.unlink()


def write_data(path, matrix, targets):
    """`queries features labels`, then `label,label feature:value ...` a line.

    Queries without labels or without terms are left out: the library cannot read their lines.
    """
    rows = np.flatnonzero((targets.getnnz(axis=1) > 0) & (matrix.getnnz(axis=1) > 0))
    with path.open("w") as file:
        file.write(f"{len(rows)} {matrix.shape[1]} {task.num_labels}\n")
        for row in rows:
            labels = targets.indices[targets.indptr[row] : targets.indptr[row + 1]]
            terms = slice(matrix.indptr[row], matrix.indptr[row + 1])
            pairs = sorted(zip(matrix.indices[terms].tolist(), matrix.data[terms].tolist(), strict=True))
            own = " ".join(f"{term}:{value:.7g}" for term, value in pairs)
            file.write(f"{','.join(map(str, labels))} {own}\n")


def predict():
    model = task.loaded(omikuji.Model.load, folder)
    matrix = features(task.texts("queries"), task.model)
    rows = []
    for row in range(matrix.shape[0]):
        terms = slice(matrix.indptr[row], matrix.indptr[row + 1])
        pairs = list(zip(matrix.indices[terms].tolist(), matrix.data[terms].tolist(), strict=True))
        rows.append(model.predict(pairs, beam_size=settings["beam"], top_k=task.k))
    task.predict_rows(rows)


fit() if task.stage == "fit" else predict()
