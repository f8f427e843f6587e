"""Trains and predicts with XR-Transformer of PECOS. Runs in the environment of the plugin, without xmcbench."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from pecos.utils.torch_util import set_seed
from pecos.xmc.xtransformer.model import XTransformer
from pecos.xmc.xtransformer.module import MLProblemWithText
from xmcbench_features import features, fit_features
from xmcbench_task import Task

task = Task()
settings = task.settings
folder = task.model / "xrtransformer"
LOADING = {"batch_size": settings["batch_size"], "batch_gen_workers": 1}


def csr(matrix):
    return sp.csr_matrix(matrix, dtype=np.float32)


def parameters():
    tree = {"nr_splits": settings["branches"], "max_leaf_size": settings["max_leaf"], "seed": task.seed}
    dropout = settings["encoder"]["hidden_dropout"]
    matcher = {
        "model_shortcut": str(task.folder / "encoder"),
        "negative_sampling": settings["negatives"],
        "hidden_dropout_prob": 0.1 if dropout is None else dropout,
        "learning_rate": settings["learning_rate"],
        "max_steps": settings["steps"],
        "save_steps": settings["steps"],  # PECOS goes on with the encoder that it saved last
        **LOADING,
    }
    linear = {"Cp": settings["cost"], "Cn": settings["cost"]}
    train = {
        "preliminary_indexer_params": tree,
        "refined_indexer_params": tree,
        "matcher_params_chain": matcher,
        "ranker_params": {"hlm_args": {"neg_mining_chain": settings["negatives"], "model_chain": linear}},
        "max_match_clusters": settings["max_clusters"],
    }
    predict = {"matcher_params_chain": {"truncate_length": settings["max_query_length"]}}
    return XTransformer.TrainParams.from_dict(train, recursive=True), XTransformer.PredParams.from_dict(
        predict, recursive=True
    )


def fit():
    set_seed(task.seed)
    texts = task.texts("train")
    matrix = csr(fit_features(texts, task.model, settings["ngrams"], settings.get("characters")))
    train, predict = parameters()
    problem = MLProblemWithText(texts, csr(task.matrix()), X_feat=matrix)
    model = XTransformer.train(problem, train_params=train, pred_params=predict, beam_size=settings["beam"])
    model.save(str(folder))
    (folder / "text_encoder" / "text_model").unlink()  # a pickle that predicting does not need


def predict():
    model = task.loaded(XTransformer.load, str(folder))
    texts = task.texts("queries")
    scores = model.predict(
        texts, csr(features(texts, task.model)), beam_size=settings["beam"], only_topk=task.k, **LOADING
    )
    task.predict(scores)


fit() if task.stage == "fit" else predict()
