"""What dual encoders do alike: wrong settings are refused, what is shown is learnt, a model is saved whole, two workers
end as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting import assert_saved_predicts_the_same, share_memorised
from many_workers import on_workers
from pydantic import ValidationError
from toy import LABELS, make_run, toy_data

from xmcbench import DualEncoder
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.plugins.registry import registry

# Small trainings that move the weights. Workers draw an encoder's dropout each for its own texts; modules have theirs.
METHODS: dict[str, dict[str, Any]] = {
    "colbert": {"tokens": 6, "dimensions": 8},
    "dexa": {"auxiliary_vectors": 8, "learning_rate": 1e-2},
    "dexml": {"negatives": "in-batch"},
    "maclr": {"learning_rate": 1e-3, "cluster_size": 8, "cluster_every": 1},
    "ngame": {"batches": "shuffled", "first_hardest": None},
    "rts": {"learning_rate": 1e-3},
    "unidec": {"dimension": 16, "extra_positives": 1, "head_dropout": 0.2},
    "untrained": {},
}
SCALED = {"dexa": 2e-3}  # the absolute difference of scores: one step of Adam on a row that hardly moved
WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "dexml": ({"temperature": 0}, {"negatives": "some"}, {"loss": "hinge"}, {"speed": 1}),
    "lmtx": ({"cycles": 0}, {"start": "again"}, {"teacher": {"name": "annotated", "recall": 2}}),
    "ngame": ({"margin": -1}, {"bystanders": "some"}, {"cluster_growth": "all"}, {"speed": 1}),
    "prime": (
        {"free_vectors": 1000}, {"smallest_margin": 0.4}, {"centroids": "some"}, {"speed": 1},
        {"query_to_prototype": False, "query_to_label": False, "label_to_query": False},
    ),
    "unidec": ({"de_weight": 1.5}, {"heads": "clf"}, {"loss": "softmax"}, {"lambda": 0.5}),
}  # fmt: skip
# By method and case: the settings, the budget, and the share of random pairs that are told in the end, at least.
COMMON: dict[str, Any] = {"batch_size": 100, "learning_rate": 3e-3, "max_query_length": 8, "max_label_length": 8}
MINED = {"negatives": "hard", "refresh_start": 2, "refresh_every": 4}
CLUSTERED = {"cluster_start": 2, "cluster_every": 4, "cluster_growth": [6]}
SGD = {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9}
E4M3 = {"optimizer": "sgd", "learning_rate": 0.2, "dtype": "e4m3"}
SLOW = {"learning_rate": 3e-4}
HEADS = {"batch_size": 50, "head_learning_rate": 3e-3, "classifier_learning_rate": 3e-2, "negatives_per_query": 1}
HEADS |= {"dimension": 16, "head_dropout": 0.0}
MEMORISED: dict[str, tuple[dict[str, Any], dict[str, int], float]] = {
    "dexa": ({"auxiliary_vectors": 256}, {"steps": 150}, 0.9),
    "dexml in-batch": ({"negatives": "in-batch", "loss": "softmax"}, {"steps": 60}, 0.95),
    "dexml hard": (MINED, {"steps": 60}, 0.95),
    "dexml cache": ({"negatives": "embedding-cache", "cached_negatives": 10}, {"steps": 60}, 0.95),
    "dexml all": ({"negatives": "all", "loss": "soft-top-k"}, {"steps": 60}, 0.95),
    "dexml tiny": (MINED | {"encoder": "tiny", "learning_rate": 1e-3}, {"steps": 15}, 0.95),
    "colbert": ({"temperature": 0.2}, {"steps": 40}, 0.95),
    "ngame clusters": ({"first_hardest": None, **CLUSTERED}, {"epochs": 20}, 0.99),
    "ngame shuffled": ({"first_hardest": None, "batches": "shuffled"}, {"epochs": 20}, 0.99),
    "ova adam": ({"table": {"learning_rate": 0.3}, **SLOW}, {"steps": 150}, 0.99),
    "ova renee": ({"table": SGD, "reduction": "sum"}, {"steps": 150}, 0.99),
    "ova bf16": ({"table": {"learning_rate": 0.3, "dtype": "bf16"}, **SLOW}, {"steps": 150}, 0.99),
    "ova elmo": ({"table": E4M3, "reduction": "sum"}, {"steps": 150}, 0.99),
    "prime": ({"free_vectors": 64, "feedforward": 64, **CLUSTERED}, {"epochs": 20}, 0.99),
    "prime text": (
        {"free_vectors": 0, "feedforward": 64, "centroids": "none", "batches": "shuffled"}, {"epochs": 20}, 0.99
    ),
    "unidec": (HEADS, {"steps": 90}, 0.99),
    "unidec classifier": (HEADS | {"inference": "clf"}, {"steps": 90}, 0.99),
    "unidec encoder": (HEADS | {"heads": "de"}, {"steps": 90}, 0.99),
}  # fmt: skip


def made(name: str, encoder: str) -> DualEncoder:
    kind = registry().method(name).thing
    size = {} if name == "untrained" else {"batch_size": 20}
    encoders = {"name": encoder, "hidden_dropout": 0.0, "normalize": name != "unidec"}
    method: DualEncoder = kind(kind.Config.model_validate({"encoder": encoders, **size, **METHODS[name]}))
    return method


def fitted(name: str, encoder: str, root: Path) -> DualEncoder:
    method, run = made(name, encoder), make_run(root, {"steps": 6})
    run.checkpoint.mkdir(parents=True, exist_ok=True)
    method.fit(toy_data(), run)
    return method


def scores(_workers: Workers, name: str, encoder: str, root: str) -> np.ndarray:
    """[N, L] the scores of all labels, by their ids."""
    found = fitted(name, encoder, Path(root)).predict(toy_data().texts, LABELS)
    return np.take_along_axis(found.scores, np.argsort(found.indices, axis=1), axis=1)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name: str) -> None:
    kind = registry().method(name).thing
    needed = {"teacher": "annotated"} if name == "lmtx" else {}
    assert kind.Config.model_validate(needed)
    for wrong in WRONG[name]:
        with pytest.raises(ValidationError):
            kind.Config.model_validate(needed | wrong)


@pytest.mark.parametrize("case", MEMORISED)
def test_it_memorises_random_pairs(case: str, tmp_path: Path) -> None:
    settings, budget, least = MEMORISED[case]
    name, pairs = case.split()[0], 60 if case.startswith("dexml") else 200

    def make(small: str) -> DualEncoder:
        encoder: dict[str, Any] = {"name": settings.get("encoder", small), "hidden_dropout": 0.0}
        encoder |= {"normalize": False} if name in ("ova", "unidec") else {}
        kind = registry().method(name).thing
        size = {"batch_size": 60} if pairs == 60 else {}
        method: DualEncoder = kind(kind.Config.model_validate({**COMMON, **size, **settings, "encoder": encoder}))
        return method

    assert share_memorised(make, tmp_path, budget, pairs=pairs) > least


@pytest.mark.parametrize("name", ["colbert", "dexml", "ngame", "unidec", "untrained"])
def test_what_is_saved_predicts_the_same(name: str, small_encoder: str, tmp_path: Path) -> None:
    method, again = fitted(name, small_encoder, tmp_path), made(name, small_encoder)
    assert_saved_predicts_the_same(method, again, toy_data().texts, tmp_path)
    assert method.encoder_alone_scores is (name not in ("colbert", "unidec"))
    if method.encoder_alone_scores:
        assert again.num_parameters == method.num_parameters > 0


@pytest.mark.parametrize("name", ["dexa", "maclr", "rts", "unidec"])
def test_two_workers_end_as_one(name: str, small_encoder: str, tmp_path: Path) -> None:
    wanted = scores(ALONE, name, small_encoder, str(tmp_path / "alone"))
    for found in on_workers(2, scores, name, small_encoder, str(tmp_path / "two")):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=SCALED.get(name, 2e-5))
