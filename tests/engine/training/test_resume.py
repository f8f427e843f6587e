"""A run that is killed and resumed ends with the bits of one that is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fitting import fit_and_kill
from toy import make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training import checkpoints
from xmcbench.engine.training.checkpoints import Checkpoints
from xmcbench.engine.workers import ALONE
from xmcbench.trial.facts import Ended
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import HeldOut, Run

from .method import STATIC, Toy, toy

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in-batch, steps": ({"negatives": "in-batch"}, {"steps": 9}),
    "in-batch, tokens": ({"negatives": "in-batch"}, {"encoder_tokens": 2500}),
    "all labels, no dropout": ({"negatives": "all", "dropout": 0.0}, {"steps": 8}),
    "hard, epochs": ({"negatives": "hard"}, {"epochs": 3.2}),  # refreshed before epochs 1, 2 and 3: steps 3, 6, 9
    "clusters of a bank": ({"negatives": "clustered"}, {"steps": 10}),  # before epochs 1, 2 and 3
    "clusters of fresh vectors": ({"negatives": "fresh"}, {"steps": 8}),
    "embedding cache": ({"negatives": "cached"}, {"steps": 8}),
    "embedding cache, second passes": ({"negatives": "cached", "activation_gib": 0.0}, {"steps": 8}),
    "hard, second passes": ({"negatives": "hard", "activation_gib": 0.0}, {"steps": 8}),
}


# What differs between two runs of the same.
MACHINES_OWN = ("stage_seconds", "stage_cpu_seconds", "peak_bytes", "worker_bytes")


@pytest.fixture(autouse=True)
def _checkpoint_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", -1.0)


def selecting(data: TrainingData) -> HeldOut:
    """Held-out training queries with a metric that rises and falls."""
    truth = data.targets.toarray()[:10]

    def select(predictions: Predictions) -> dict[str, float]:
        hits = np.take_along_axis(truth, predictions.indices[:, :5].astype(np.int64), axis=1)
        return {"nDCG@5": float(hits.mean()) * (1 if hits.sum() % 2 else -1)}

    return HeldOut(data.texts[:10], select, evaluations=3)


def finish(method: Toy, data: TrainingData, run: Run) -> tuple[Toy, Run]:
    method.fit(data, run)
    return method, run


def assert_same(one: tuple[Toy, Run], other: tuple[Toy, Run], data: TrainingData) -> None:
    (mine, _), (its, _) = one, other
    for module, twin in ((mine.encoder, its.encoder), (mine.modules, its.modules)):
        weights, others = module.state_dict(), twin.state_dict()
        assert all(torch.equal(weights[name], others[name]) for name in weights)
    found, wanted = mine.predict(data.texts, 10), its.predict(data.texts, 10)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)
    assert spent(one[1]) == spent(other[1])
    assert without_seconds(one[1].log.curve) == without_seconds(other[1].log.curve)


def spent(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.ledger.state().items() if name not in MACHINES_OWN}


def without_seconds(curve: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in point.items() if name != "device_seconds"} for point in curve]


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_unbroken(case: str, small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    """Killed at its first step, at the beginning of an epoch and within one: at step n, it goes on from n - 1."""
    assert_resumed_equals(case, [1, 4, 6], small_encoder, data, tmp_path)


def assert_resumed_equals(case: str, kills: list[int], encoder: str, data: TrainingData, root: Path) -> None:
    settings, budget = CASES[case]
    unbroken = finish(toy(encoder, **settings), data, make_run(root / "a", budget))
    assert unbroken[1].ledger.steps > max(kills)
    for step in kills:
        fit_and_kill(step, toy(encoder, **settings), data, make_run(root / "b", budget))
    resumed = finish(toy(encoder, **settings), data, make_run(root / "b", budget))
    assert_same(unbroken, resumed, data)


@pytest.mark.parametrize("case", ["in-batch, tokens", "hard, second passes", "embedding cache"])
def test_a_static_encoder_resumes_too(case: str, data: TrainingData, tmp_path: Path) -> None:
    assert_resumed_equals(case, [5], STATIC, data, tmp_path)


@pytest.mark.parametrize("kind", ["transformer", STATIC])
def test_with_selection_too(kind: str, small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    budget, encoder = {"steps": 9}, STATIC if kind == STATIC else small_encoder
    unbroken = finish(toy(encoder), data, make_run(tmp_path / "a", budget, held_out=selecting(data)))
    for kill in (2, 5, 9):
        fit_and_kill(kill, toy(encoder), data, make_run(tmp_path / "b", budget, held_out=selecting(data)))
    resumed = finish(toy(encoder), data, make_run(tmp_path / "b", budget, held_out=selecting(data)))
    assert [point["steps"] for point in unbroken[1].log.curve] == [3, 6, 9]
    assert_same(unbroken, resumed, data)


def flat(data: TrainingData) -> HeldOut:
    """Held-out queries whose metric is always the same: a patience of two ends training after three evaluations."""
    return HeldOut(data.texts[:10], lambda _: {"nDCG@5": 0.5}, evaluations=9, patience=2)


@pytest.mark.parametrize("kill", [1, 2, 3])
def test_training_that_ends_when_its_curve_is_flat_resumes_too(
    kill: int, small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    unbroken = finish(toy(small_encoder), data, make_run(tmp_path / "a", {"steps": 9}, held_out=flat(data)))
    fit_and_kill(kill, toy(small_encoder), data, make_run(tmp_path / "b", {"steps": 9}, held_out=flat(data)))
    resumed = finish(toy(small_encoder), data, make_run(tmp_path / "b", {"steps": 9}, held_out=flat(data)))
    assert unbroken[1].ledger.steps == len(unbroken[1].log.curve) == 3
    assert unbroken[1].log.ended is resumed[1].log.ended is Ended.FLAT
    assert_same(unbroken, resumed, data)
    again = toy(small_encoder)
    ended = finish(again, data, make_run(tmp_path / "b", {"steps": 9}, held_out=flat(data)))
    assert again.calls == 0
    assert_same(unbroken, ended, data)


def test_a_run_that_had_ended_trains_no_more(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    first = finish(toy(small_encoder), data, make_run(tmp_path, {"steps": 3}))
    again = toy(small_encoder)
    second = finish(again, data, make_run(tmp_path, {"steps": 3}))
    assert again.calls == 0
    assert_same(first, second, data)


def test_other_seeds_end_elsewhere(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    """A guard of the tests above: what they compare is not always equal."""
    ends = [finish(toy(small_encoder), data, make_run(tmp_path / str(s), {"steps": 3}, seed=s))[0] for s in (0, 1)]
    weights = [next(iter(method.encoder.parameters())) for method in ends]
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("damaged", "resumes_from"),
    [(["step-*4/worker-0.safetensors"], 3), (["best/step-*4/*.safetensors"], 3), (["step-*/note.json"], 0)],
    ids=["newest", "its best weights", "all"],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    damaged: list[str],
    resumes_from: int,
    small_encoder: str,
    data: TrainingData,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The result is that of an unbroken run. Metrics rise, so that the best weights are always the newest."""
    rising = iter(range(100))

    def held_out() -> HeldOut:
        return HeldOut(data.texts[:10], lambda _: {"nDCG@5": float(next(rising))}, evaluations=6)

    unbroken = finish(toy(small_encoder), data, make_run(tmp_path / "a", {"steps": 6}, held_out=held_out()))
    fit_and_kill(5, toy(small_encoder), data, make_run(tmp_path / "b", {"steps": 6}, held_out=held_out()))
    for pattern in damaged:
        for path in (tmp_path / "b" / "checkpoint").glob(pattern):
            content = bytearray(path.read_bytes())
            content[-5] ^= 1
            path.write_bytes(content)
    again = toy(small_encoder)
    resumed = finish(again, data, make_run(tmp_path / "b", {"steps": 6}, held_out=held_out()))
    assert "training resumes from the checkpoint before it, or starts again" in caplog.text
    assert again.calls == 6 - resumes_from
    for module, twin in ((unbroken[0].encoder, resumed[0].encoder), (unbroken[0].modules, resumed[0].modules)):
        assert all(torch.equal(weights, twin.state_dict()[name]) for name, weights in module.state_dict().items())
    assert spent(unbroken[1]) == spent(resumed[1])


@pytest.mark.parametrize(("writing", "between"), [(0.5, 60), (30.0, 600)])
def test_writing_checkpoints_takes_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writing: float, between: float
) -> None:
    clock, written = [0.0], []

    def write(*_: object) -> None:
        clock[0] += writing
        written.append(clock[0])

    monkeypatch.setattr(checkpoints, "SECONDS", 60.0)
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Checkpoints, "_write", write)
    run = make_run(tmp_path, {"steps": 1})
    method: Any = SimpleNamespace(run=run, shard=SimpleNamespace(workers=ALONE))
    kept = Checkpoints(method, method, method)
    for _ in range(2000):
        clock[0] += 1
        run.ledger.steps += 1
        kept.save_if_due(0, 0, evaluated=False)
    first, second, third = written[:3]
    assert first == pytest.approx(60 + writing, abs=1)
    assert second - first == pytest.approx(between + writing, abs=1)
    assert third - second == second - first
