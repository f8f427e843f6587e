"""A pass over the data that does not fit into the rest of the budget is not started: only a step may exceed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.trial.budget import PassTooLargeError
from xmcbench.trial.run import HeldOut, Ledger

from .method import Toy, toy


def tokens_of(encoder: str, data: TrainingData, tmp_path: Path, negatives: str, epochs: int) -> Ledger:
    run = make_run(tmp_path / f"{negatives}-{epochs}", {"epochs": epochs})
    toy(encoder, negatives=negatives).fit(data, run)
    return run.ledger


def fit(method: Toy, data: TrainingData, root: Path, tokens: int, **changes: Any) -> Ledger:
    run = make_run(root, {"encoder_tokens": tokens}, **changes)
    method.fit(data, run)
    assert not run.ledger.over(run.budget)
    return run.ledger


@pytest.mark.parametrize("negatives", ["hard", "fresh"])
def test_training_ends_before_a_refresh_that_does_not_fit(
    small_encoder: str, data: TrainingData, tmp_path: Path, negatives: str
) -> None:
    one_epoch = tokens_of(small_encoder, data, tmp_path, negatives, 1)
    limit = one_epoch.encoder_tokens + 10  # the sampler is refreshed after one epoch, by a pass over everything
    ledger = fit(toy(small_encoder, negatives=negatives), data, tmp_path / "end", limit)
    assert (ledger.steps, ledger.encoder_tokens, ledger.refused_pass) == (3, one_epoch.encoder_tokens, 1)


@pytest.mark.parametrize("negatives", ["hard", "fresh"])
def test_training_goes_on_with_the_old_shortlist_on_request(
    small_encoder: str, data: TrainingData, tmp_path: Path, negatives: str
) -> None:
    one_epoch = tokens_of(small_encoder, data, tmp_path, negatives, 1)
    limit = one_epoch.encoder_tokens + 10
    method = toy(small_encoder, negatives=negatives, refresh_beyond_budget="skip")
    ledger = fit(method, data, tmp_path / "skip", limit)
    assert (ledger.steps, ledger.refused_pass) == (4, 1)
    assert limit <= ledger.encoder_tokens <= limit + ledger.largest_step["encoder_tokens"]


def test_a_refresh_that_fits_exactly_is_made(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method, one = toy(small_encoder, negatives="fresh"), tokens_of(small_encoder, data, tmp_path, "fresh", 1)
    fit(method, data, tmp_path / "lengths", 1)
    refresh = int(method.queries.lengths.sum())
    exact, short = (
        fit(toy(small_encoder, negatives="fresh"), data, tmp_path / str(less), one.encoder_tokens + refresh - less)
        for less in (0, 1)
    )
    assert (exact.encoder_tokens, exact.refused_pass) == (one.encoder_tokens + refresh, 0)
    assert (short.encoder_tokens, short.refused_pass) == (one.encoder_tokens, 1)


def test_a_first_pass_that_does_not_fit_is_an_error(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(PassTooLargeError, match=r"a pass over \d+ texts takes .* encoder tokens, 10 of 10 are left"):
        fit(toy(small_encoder, negatives="cached"), data, tmp_path, 10)


def test_seconds_of_a_pass_are_predicted_from_the_steps(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = toy(small_encoder, negatives="hard")
    run = make_run(tmp_path, {"device_seconds": 1e6, "epochs": 1})
    method.fit(data, run)
    ledger, charging = run.ledger, method.charging
    ledger.clock, ledger.stage_seconds = "wall", {"train": 3.0}
    everything = (method.queries.lengths, method.labels.lengths)
    share = sum(method.encoder.flops(each) for each in everything) / ledger.encoder_flops
    charging.budget = run.budget.model_copy(update={"device_seconds": 3.0 + 3.0 * share + 1e-6})
    charging.require(*everything)
    charging.budget = run.budget.model_copy(update={"device_seconds": 3.0 + 3.0 * share - 1e-6})
    with pytest.raises(PassTooLargeError, match="device seconds"):
        charging.require(*everything)


def test_the_weights_at_the_end_are_evaluated(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    one_epoch = tokens_of(small_encoder, data, tmp_path, "hard", 1)
    held_out = HeldOut(data.texts[:8], lambda _: {"nDCG@5": 0.5}, evaluations=1)
    run = make_run(tmp_path / "selected", {"encoder_tokens": one_epoch.encoder_tokens + 10}, held_out=held_out)
    toy(small_encoder, negatives="hard").fit(data, run)
    assert [(point["fraction"], point["steps"]) for point in run.log.curve] == [(1.0, 3)]
