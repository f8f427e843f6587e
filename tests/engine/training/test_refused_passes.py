"""A pass over the data that does not fit into the rest of the budget is not started, or ends with it: only a step may
exceed the budget, or a part of a pass that took longer than predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from toy import make_run
from work_clock import Work, working

from xmcbench.data.dataset import TrainingData
from xmcbench.engine import timing
from xmcbench.engine.sampling import clusters
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.trial.budget import PassTooLargeError, over_budget
from xmcbench.trial.run import HeldOut, Ledger, TrainingLog

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


@pytest.fixture
def work() -> Iterator[Work]:
    with working() as clock:
        yield clock


def fit_by(clock: Work, method: Toy, data: TrainingData, root: Path, seconds: float) -> Ledger:
    """The ledger of a fit within so many seconds of `clock`."""
    log = TrainingLog(Ledger(_cpu_clock=clock))
    run = make_run(root, {"device_seconds": seconds}, log=log)
    method.fit(data, run)
    assert not over_budget(run.budget, log.ledger.as_dict())
    return log.ledger


def test_seconds_of_a_first_pass_are_predicted(
    small_encoder: str, data: TrainingData, tmp_path: Path, work: Work
) -> None:
    """From a few texts: those of the pass itself are not read."""
    method = toy(small_encoder, negatives="cached", micro_batch_tokens=20)
    with pytest.raises(PassTooLargeError, match=r"a pass over 40 texts takes 0\.\d+ device seconds, 0\.\d+ of 0\.3"):
        fit_by(work, method, data, tmp_path, 0.3)
    assert 0 < work.seconds < 0.3


def test_a_pass_that_takes_longer_than_predicted_ends_with_the_budget(
    small_encoder: str, data: TrainingData, tmp_path: Path, work: Work
) -> None:
    work.of_stage["mine"] = 1.0
    method = toy(small_encoder, negatives="hard", micro_batch_tokens=20)
    ledger = fit_by(work, method, data, tmp_path, 9.0)
    assert (ledger.steps, ledger.refused_pass) == (3, 1)
    longest = max(map(len, method.encoder.micro_batches(method.queries.lengths, 20)))
    assert 9.0 <= ledger.device_seconds <= 9.0 + longest
    assert ledger.device_seconds - 9.0 <= ledger.largest_step["device_seconds"]


def test_a_search_is_predicted_and_not_begun(
    small_encoder: str, data: TrainingData, tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def top_k(index: ExactIndex, queries_ND: Tensor, *given: Any, **more: Any) -> Any:
        searched.append(len(queries_ND))
        work.seconds += len(queries_ND)
        return found(index, queries_ND, *given, **more)

    found = ExactIndex.top_k
    monkeypatch.setattr(ExactIndex, "top_k", top_k)
    monkeypatch.setattr(timing, "SAMPLED_QUERIES", 2)
    ledger = fit_by(work, toy(small_encoder, negatives="hard"), data, tmp_path, 50.0)
    assert (ledger.steps, ledger.refused_pass) == (3, 1)
    assert searched == [2, 2], "60 queries would take 60 seconds"
    searched.clear()
    assert fit_by(work, toy(small_encoder, negatives="hard"), data, tmp_path / "more", 150.0).steps > 3
    assert searched[:3] == [2, 2, 60]


def test_a_clustering_ends_with_the_budget(
    small_encoder: str, data: TrainingData, tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*given: Any) -> Any:
        work.seconds += 5.0
        return original(*given)

    original = clusters._moved
    monkeypatch.setattr(clusters, "_moved", moved)
    ledger = fit_by(work, toy(small_encoder, negatives="fresh"), data, tmp_path, 12.0)
    assert (ledger.steps, ledger.refused_pass) == (3, 1)
    assert 12.0 <= ledger.device_seconds < 17.0


def test_preparing_beyond_the_budget_is_an_error_of_one_line(
    small_encoder: str, data: TrainingData, tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = toy(small_encoder)
    prepare = method.prepare

    def slow(train: TrainingData, run: Any) -> None:
        prepare(train, run)
        work.seconds += 7.0

    monkeypatch.setattr(method, "prepare", slow)
    with pytest.raises(
        PassTooLargeError, match=r"^no step was taken: preparing and first passes took 7\.\d+ device seconds of 5$"
    ):
        fit_by(work, method, data, tmp_path, 5.0)


def test_operations_of_preparing_are_written_as_those_of_the_budget(
    small_encoder: str, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = toy(small_encoder)
    prepare = method.prepare

    def multiplying(train: TrainingData, run: Any) -> None:
        prepare(train, run)
        run.ledger.module_flops += 671_088_640

    monkeypatch.setattr(method, "prepare", multiplying)
    with pytest.raises(PassTooLargeError, match=r"first passes took 671,088,640 flops of 30,000,000$"):
        method.fit(data, make_run(tmp_path, {"flops": 30_000_000}))


def test_without_a_limit_of_seconds_nothing_is_measured(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = toy(small_encoder, negatives="hard")
    fit(method, data, tmp_path, 10_000)
    assert (method.charging.pace.encoding, method.charging.pace.scoring) == (None, None)


def test_the_weights_at_the_end_are_evaluated(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    one_epoch = tokens_of(small_encoder, data, tmp_path, "hard", 1)
    held_out = HeldOut(data.texts[:8], lambda _: {"nDCG@5": 0.5}, evaluations=1)
    run = make_run(tmp_path / "selected", {"encoder_tokens": one_epoch.encoder_tokens + 10}, held_out=held_out)
    toy(small_encoder, negatives="hard").fit(data, run)
    assert [(point["fraction"], point["steps"]) for point in run.log.curve] == [(1.0, 3)]
