"""Trains and predicts with napkinXC. Runs in the environment of the plugin, where xmcbench is not installed."""

from __future__ import annotations

from napkinxc.models import OVR, PLT
from xmcbench_features import features, fit_features
from xmcbench_task import Task

task = Task()
settings = task.settings
folder = str(task.model / "napkinxc")


def make_model(path=folder, seed=None):
    common = {"liblinear_c": settings["cost"], "threads": settings["threads"]}
    if settings["model"] == "ovr":
        return OVR(path, **common)
    tree = {name: settings[name] for name in ("arity", "max_leaves", "ensemble")}
    return PLT(path, seed=seed, **tree, **common)


def fit():
    matrix = fit_features(task.texts("train"), task.model, settings["ngrams"], settings.get("characters"))
    targets = task.matrix()
    labelled = targets.getnnz(axis=1) > 0
    model = make_model(seed=task.seed)
    model.fit(matrix[labelled], targets[labelled])


def load_model(path):
    model = make_model(path)
    model.load()
    return model


def predict():
    model = task.loaded(load_model, folder)
    # The library ranks rows without a feature too, and may know fewer labels than asked for.
    task.predict_rows(model.predict_proba(features(task.texts("queries"), task.model), top_k=task.k))


fit() if task.stage == "fit" else predict()
