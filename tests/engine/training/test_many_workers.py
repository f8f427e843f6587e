"""Training on several workers is training on one: weights, tables, predictions, ledger, and where it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import fit_and_kill
from many_workers import on_workers
from toy import make_run, toy_data

from xmcbench.engine.training.update import sum_gradients
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import HeldOut

from .method import STATIC, toy

DATA = toy_data(ignored=1)
CASES: dict[str, dict[str, Any]] = {
    "in-batch": {"negatives": "in-batch"},
    "hard, clipped": {"negatives": "hard", "clip_norm": 0.5},
    "clusters of a bank": {"negatives": "clustered"},
    "clusters of fresh vectors": {"negatives": "fresh"},
    "embedding cache": {"negatives": "cached"},
    "embedding cache, a table": {"negatives": "cached", "classifier": True},
    "all labels, a table": {"negatives": "all", "classifier": True, "clip_norm": 1.0},
    "batches of 2, a table": {"negatives": "in-batch", "classifier": True, "batch_size": 2},  # empty shards
}
Outcome = dict[str, Any]


def train(
    _workers: Workers,
    root: str,
    encoder: str,
    settings: dict[str, Any],
    kill_at: int = 0,
    looks: tuple[int, int | None] = (2, None),  # evaluations and patience
) -> Outcome:
    """Train for 7 steps, with looks at training queries on the way; or be killed."""
    method = toy(encoder, **settings)
    run = make_run(Path(root), {"steps": 7}, held_out=HeldOut(DATA.texts[:9], figures, "nDCG@5", *looks))
    if kill_at:
        fit_and_kill(kill_at, method, DATA, run)
        return {}
    method.fit(DATA, run)
    found = method.predict(DATA.texts, 5)
    tables = {name: (table.row_ids.numpy(), table.weight.numpy()) for name, table in method.tables().items()}
    ledger = {name: getattr(run.ledger, name) for name in ("steps", "queries", "encoder_tokens", "epochs", "flops")}
    return {
        "weights": torch.cat([p.detach().flatten() for p in method.encoder.parameters()]).numpy(),
        "head": method.modules["head"][0].weight.detach().numpy(),
        "scores": found.scores,
        "tables": tables,
        "ledger": ledger,
        "parameters": method.num_parameters,
        "curve": [point["nDCG@5"] for point in run.log.curve],
    }


def figures(predictions: Any) -> dict[str, float]:
    return {"nDCG@5": float(predictions.scores[:, 0].mean())}


def assert_alike(found: list[Outcome], wanted: Outcome) -> None:
    for outcome in found:
        for name in ("weights", "head", "scores", "curve"):
            np.testing.assert_allclose(outcome[name], wanted[name], rtol=2e-3, atol=2e-5, err_msg=name)
        assert outcome["ledger"] == wanted["ledger"]
        assert outcome["parameters"] == wanted["parameters"]
    for name, (rows, weights) in wanted["tables"].items():
        ids = np.concatenate([outcome["tables"][name][0] for outcome in found])
        parts = np.concatenate([outcome["tables"][name][1] for outcome in found])
        np.testing.assert_array_equal(np.sort(ids), rows)
        np.testing.assert_allclose(parts[np.argsort(ids)], weights, rtol=2e-3, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_ends_with_the_same(case: str, small_encoder: str, tmp_path: Path) -> None:
    settings = CASES[case]
    wanted = train(ALONE, str(tmp_path / "alone"), small_encoder, settings)
    for size in (2, 4):
        found = on_workers(size, train, str(tmp_path / str(size)), small_encoder, settings)
        assert_alike(found, wanted)
        for outcome in found[1:]:  # and the workers of one run have the very same bits
            assert np.array_equal(outcome["weights"], found[0]["weights"])


def test_workers_agree_where_patience_ends_training(small_encoder: str, tmp_path: Path) -> None:
    rest = small_encoder, CASES["in-batch"], 0, (7, 1)
    wanted = train(ALONE, str(tmp_path / "alone"), *rest)
    assert 1 < wanted["ledger"]["steps"] < 7
    assert_alike(on_workers(2, train, str(tmp_path / "2"), *rest), wanted)


@pytest.mark.parametrize("case", ["hard, clipped", "all labels, a table", "batches of 2, a table"])
def test_a_static_encoder_on_any_number_of_workers_too(case: str, tmp_path: Path) -> None:
    test_any_number_of_workers_ends_with_the_same(case, STATIC, tmp_path)


def test_micro_batches_of_any_size_end_with_the_same(small_encoder: str, tmp_path: Path) -> None:
    """With dropout in encoder and head, and too little memory to keep all activations."""
    outcomes = [
        train(ALONE, str(tmp_path / str(tokens)), small_encoder, {"micro_batch_tokens": tokens, "activation_gib": 1e-4})
        for tokens in (16, 64, None)
    ]
    assert_alike(outcomes[1:], outcomes[0])


def test_micro_batches_of_a_static_encoder_end_with_the_same(tmp_path: Path) -> None:
    test_micro_batches_of_any_size_end_with_the_same(STATIC, tmp_path)


def test_a_static_encoder_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    test_a_killed_run_goes_on_with_another_number_of_workers((3, 2), STATIC, tmp_path)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 1), (1, 2)])
def test_a_killed_run_goes_on_with_another_number_of_workers(
    sizes: tuple[int, int], small_encoder: str, tmp_path: Path
) -> None:
    settings = CASES["all labels, a table"]
    wanted = train(ALONE, str(tmp_path / "alone"), small_encoder, settings)
    on_workers(sizes[0], train, str(tmp_path / "run"), small_encoder, settings, 4)
    assert list((tmp_path / "run" / "checkpoint").glob("step-*"))
    assert_alike(on_workers(sizes[1], train, str(tmp_path / "run"), small_encoder, settings), wanted)


def summed(workers: Workers) -> list[Any]:
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    if workers.rank == 1:
        parameters[0].grad = torch.ones(2, 2)
    parameters[1].grad = torch.full((2, 2), float(workers.rank))
    sum_gradients(parameters, workers)
    return [None if p.grad is None else p.grad.tolist() for p in parameters]


def test_a_gradient_that_one_worker_has_is_everyones_and_one_that_none_has_stays_none() -> None:
    for found in on_workers(3, summed):
        assert found == [[[1, 1], [1, 1]], [[3, 3], [3, 3]], None]


def fails(workers: Workers, root: str, encoder: str) -> str:
    method = toy(encoder, blow_up_at=2 if workers.rank == 1 else -1)
    with pytest.raises(XMCBenchError) as caught:
        method.fit(DATA, make_run(Path(root), {"steps": 7}))
    return str(caught.value)


def test_what_is_no_number_on_one_worker_stops_all(small_encoder: str, tmp_path: Path) -> None:
    told = on_workers(2, fails, str(tmp_path), small_encoder)
    assert told[0] == told[1]
    assert "the loss is nan at step 2, epoch 0, batch 2" in told[0]
