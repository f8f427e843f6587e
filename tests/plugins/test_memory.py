"""The memory of training queries: its scores are the equation's, and it changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting import assert_saved_predicts_the_same
from many_workers import on_workers
from toy import LABELS, QUERIES, make_run, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import HeldOut
from xmcbench_plugins.second_stage import Memory


def made(encoder: str, method: str = "untrained", **settings: Any) -> Memory:
    first = {"method": method, "encoder": {"name": encoder, "hidden_dropout": 0.0}}
    if method == "dexml":
        first |= {"negatives": "in-batch", "batch_size": 20}
    return Memory(Memory.Config.model_validate({"first": first, **settings}))


def fitted(
    encoder: str, data: TrainingData, root: Path, budget: dict[str, Any] | None = None, **settings: Any
) -> Memory:
    method = made(encoder, **settings)
    method.fit(data, make_run(root, budget or {"steps": 20}))
    return method


def dense(method: Memory, data: TrainingData) -> np.ndarray:
    """[N, L] the predicted scores of all labels; 0 where a label is not predicted."""
    found = method.predict(data.texts, LABELS)
    scores_NL = np.zeros((len(data.texts), LABELS))
    rows, places = np.nonzero(found.indices >= 0)
    scores_NL[rows, found.indices[rows, places]] = found.scores[rows, places]
    return scores_NL


@pytest.mark.parametrize("similarity", ["inner-product", "l2"])
@pytest.mark.parametrize(("keys", "weight"), [(LABELS + QUERIES, 0.5), (7, 0.3), (7, 0.0), (7, 1.0)])
def test_scores_are_the_softmax_over_the_nearest_keys_times_their_values(
    keys: int, weight: float, similarity: str, data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    """In float64 and without a search: p = softmax over the nearest keys, scores = p V, V = [(1 - w) I; w Y]."""
    settings = {"keys": keys, "query_weight": weight, "temperature": 0.1, "similarity": similarity}
    method = fitted(small_encoder, data, tmp_path, **settings)
    queries_ND, labels_LD = (vectors.double().numpy() for vectors in (method.memory_ND, method.first.index_LD))
    keys_MD = np.concatenate([labels_LD, queries_ND])
    similarities_NM = queries_ND @ keys_MD.T
    if similarity == "l2":
        similarities_NM = -((queries_ND[:, None] - keys_MD[None]) ** 2).sum(axis=2)
    nearest_NB = np.argsort(-similarities_NM, axis=1, kind="stable")[:, :keys]  # some texts occur twice
    weights_NM = np.zeros_like(similarities_NM)
    np.put_along_axis(weights_NM, nearest_NB, np.exp(np.take_along_axis(similarities_NM, nearest_NB, 1) / 0.1), 1)
    weights_NM /= weights_NM.sum(axis=1, keepdims=True)
    values_ML = np.concatenate([(1 - weight) * np.eye(LABELS), weight * data.targets.toarray()])
    np.testing.assert_allclose(dense(method, data), weights_NM @ values_ML, atol=1e-5)


def test_without_weight_for_queries_it_ranks_labels_as_the_first_method_does(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = fitted(small_encoder, data, tmp_path, keys=LABELS + QUERIES, query_weight=0.0)
    wanted = method.first.predict(data.texts, 10).indices
    assert np.array_equal(method.predict(data.texts, 10).indices, wanted)


def test_it_is_judged_by_its_own_answers(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    """The evaluations of the first method are not its own."""
    asked: list[np.ndarray] = []

    def score(found: Predictions) -> dict[str, float]:
        asked.append(found.indices)
        return {"nDCG@5": len(asked)}

    method = made(small_encoder, "dexml", query_weight=1.0, keys=3)
    run = make_run(tmp_path, {"steps": 20}, held_out=HeldOut(data.texts, score))
    method.fit(data, run)
    assert [point["nDCG@5"] for point in run.log.curve] == [len(asked)]
    assert len(asked) > 1
    assert np.array_equal(asked[-1], method.predict(data.texts, LABELS).indices)
    assert not np.array_equal(asked[-1], method.first.predict(data.texts, LABELS).indices)


def test_the_memory_recalls_what_it_has_seen(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(small_encoder, data, tmp_path, keys=1, query_weight=1.0)
    labelled = np.flatnonzero(np.diff(data.targets.indptr))
    best_N = method.predict(data.texts, 1).indices[labelled, 0]
    assert np.mean(data.targets.toarray()[labelled, best_N]) > 0.95  # but for texts that occur twice


def test_without_budget_left_the_first_method_answers(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(small_encoder, data, tmp_path, {"encoder_tokens": 1}, query_weight=1.0)
    assert len(method.memory_ND) == 0
    wanted = method.first.predict(data.texts, 5).indices
    assert np.array_equal(method.predict(data.texts, 5).indices, wanted)


def test_the_budget_needs_no_room_for_a_search(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    """Only predictions search: what embedding all texts takes is enough."""
    embedding = make_run(tmp_path / "all", {"steps": 20})
    made(small_encoder).fit(data, embedding)
    method, run = made(small_encoder), make_run(tmp_path / "just", {"flops": embedding.ledger.spent("flops")})
    method.fit(data, run)
    assert len(method.memory_ND) == QUERIES
    assert not run.log.ended


def test_what_is_saved_predicts_the_same_whatever_the_settings_of_scoring(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = fitted(small_encoder, data, tmp_path, method="dexml")
    again = made(small_encoder, "dexml", keys=9, temperature=0.2, query_weight=0.9, similarity="l2")
    assert method.scoring_settings == {"keys", "temperature", "query_weight", "similarity"}
    (tmp_path / "first").mkdir()
    assert_saved_predicts_the_same(method, made(small_encoder, "dexml"), data.texts, tmp_path / "first")
    again.load(tmp_path / "first" / "saved")
    wanted = fitted(
        small_encoder, data, tmp_path / "again", method="dexml", **again.config.model_dump(exclude={"first"})
    )
    assert np.array_equal(again.predict(data.texts, 5).indices, wanted.predict(data.texts, 5).indices)


def outcome(_workers: Workers, encoder: str, root: str) -> tuple[np.ndarray, float]:
    data = toy_data()
    method, run = made(encoder, "dexml"), make_run(Path(root), {"steps": 20})
    method.fit(data, run)
    return dense(method, data), run.ledger.spent("flops")


def test_two_workers_end_as_one(small_encoder: str, tmp_path: Path) -> None:
    wanted, spent = outcome(ALONE, small_encoder, str(tmp_path / "alone"))
    for found, charged in on_workers(2, outcome, small_encoder, str(tmp_path / "two")):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4)
        assert charged == spent
