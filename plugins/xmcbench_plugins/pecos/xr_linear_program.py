"""Trains and predicts with PECOS. Runs in the environment of the plugin, where xmcbench is not installed."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from xmcbench_features import features, fit_features
from xmcbench_task import Task

task = Task()
settings = task.settings
folder = str(task.model / "xrlinear")


def csr(matrix):
    return sp.csr_matrix(matrix, dtype=np.float32)


def fit():
    matrix = csr(fit_features(task.texts("train"), task.model, settings["ngrams"], settings.get("characters")))
    targets = csr(task.matrix())
    labels = LabelEmbeddingFactory.create(targets, matrix, method="pifa")
    chain = Indexer.gen(labels, nr_splits=settings["branches"], max_leaf_size=settings["max_leaf"], seed=task.seed)
    model = XLinearModel.train(
        matrix,
        targets,
        C=chain,
        Cp=settings["cost"],
        Cn=settings["cost"],
        negative_sampling_scheme=settings["negatives"],
    )
    model.save(folder)


def predict():
    model = task.loaded(XLinearModel.load, folder)
    matrix = csr(features(task.texts("queries"), task.model))
    task.predict(model.predict(matrix, beam_size=settings["beam"], only_topk=task.k))


fit() if task.stage == "fit" else predict()
