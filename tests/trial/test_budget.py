"""Budgets and ledgers: what is charged, to what, and what is too much."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xmcbench.trial.budget import (
    BUDGETED_STAGES,
    OPERATIONS,
    Budget,
    Ledger,
    TooLargeError,
    memory_taken,
    over_budget,
    processor_seconds,
)
from xmcbench.trial.run import Progress, Run


def test_a_budget_has_a_limit_and_knows_its_names() -> None:
    assert Budget(steps=3, device_seconds=1.5).limits() == {"steps": 3, "device_seconds": 1.5}
    for wrong in ({}, {"steps": 0}, {"tokens": 3}):
        with pytest.raises(ValidationError):
            Budget.model_validate(wrong)


def test_a_share_of_a_budget_keeps_whole_numbers_and_what_is_not_used_up() -> None:
    half = Budget(steps=3, flops=1e9, peak_bytes=8.0).times(0.5)
    assert half.limits() == {"steps": 2, "flops": 5e8, "peak_bytes": 8.0}
    assert Budget(steps=1).times(0.1).limits() == {"steps": 1}


def test_a_run_with_a_share_of_the_budget_charges_the_same_ledger(tmp_path: Path) -> None:
    told: list[Progress] = []
    run = Run(0, Budget(steps=10), tmp_path, tmp_path, report=told.append)
    part = run.reserve(0.8)
    assert part.budget.steps == 8
    assert part.ledger is run.ledger
    part.report(Progress("train", 0.5, {"loss": 1.0}))
    assert told == [Progress("train", 0.4, {"loss": 1.0})]


def test_a_part_of_a_run_spends_apart_and_is_added_at_its_end(tmp_path: Path) -> None:
    told: list[Progress] = []
    run = Run(7, Budget(steps=10), tmp_path, tmp_path, report=told.append)
    run.ledger.steps = 1
    with run.part("first", Budget(steps=3), begun=0.5, done=0.75) as part:
        assert part.seed == 7
        assert part.checkpoint == tmp_path / "first"
        assert part.checkpoint.is_dir()
        assert part.ledger.fraction(part.budget) == 0
        part.ledger.steps += 3
        part.log.add_point(1.0, {"P@1": 1.0})
        part.report(Progress("train", 0.5))
        assert run.ledger.steps == 1
    assert told == [Progress("train", 0.625)]
    assert run.ledger.steps == 4
    assert run.log.curve == []
    assert run.ledger.left(run.budget) == {"steps": 6}


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_stage_inside_a_stage_is_charged_once() -> None:
    clock = Clock()
    ledger = Ledger(clock="wall", _clock=clock)
    with ledger.stage("prepare"):
        clock.seconds += 2
        with ledger.stage("mine"):
            clock.seconds += 3
            with ledger.stage("index"):
                clock.seconds += 10
        with ledger.stage("mine"):
            clock.seconds += 1
    assert ledger.stage_seconds == {"prepare": 2, "mine": 4, "index": 10}
    assert ledger.device_seconds == 6
    assert "index" not in BUDGETED_STAGES


def test_device_seconds_are_of_the_clock_that_the_ledger_names() -> None:
    wall, processors = Clock(), Clock()
    for clock in ("wall", "processor"):
        ledger = Ledger(clock=clock, _clock=wall, _cpu_clock=processors)  # type: ignore[arg-type]
        with ledger.stage("train"):
            wall.seconds, processors.seconds = wall.seconds + 8, processors.seconds + 3
            assert ledger.device_seconds == {"wall": 8, "processor": 3}[clock], "also of a stage that is open"
            with ledger.part() as part, part.stage("mine"):
                wall.seconds, processors.seconds = wall.seconds + 5, processors.seconds + 2
                assert part.clock == clock
            with ledger.uncharged(), ledger.stage("mine"):
                wall.seconds, processors.seconds = wall.seconds + 100, processors.seconds + 50
        assert ledger.stage_seconds == {"train": 8, "mine": 5, "uncharged": 100}
        assert ledger.stage_cpu_seconds == {"train": 3, "mine": 2, "uncharged": 50}
        assert ledger.as_dict()["device_seconds"] == {"wall": 13, "processor": 5}[clock]


def test_waiting_takes_no_processor_seconds_and_threads_and_children_do() -> None:
    ledger, end = Ledger(), processor_seconds()
    with ledger.stage("train"):
        time.sleep(0.5)
    assert ledger.device_seconds < 0.25
    threads = [threading.Thread(target=_hash_for, args=(0.2,)) for _ in range(2)]
    with ledger.stage("mine"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert ledger.stage_cpu_seconds["mine"] >= 0.7
    assert sum(ledger.stage_cpu_seconds.values()) <= processor_seconds() - end


def _hash_for(seconds: float) -> None:
    """Compute in this thread for so many seconds of a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sha256(bytes(1 << 16)).digest()


def test_a_stage_that_fails_is_charged() -> None:
    clock = Clock()
    ledger = Ledger(clock="wall", _clock=clock)

    def fail() -> None:
        with ledger.stage("train"):
            clock.seconds += 1
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert ledger.stage_seconds["train"] == 1


def test_what_is_uncharged_costs_nothing() -> None:
    clock = Clock()
    ledger = Ledger(clock="wall", encoder_tokens=5, _clock=clock)
    with ledger.stage("train"), ledger.uncharged():
        clock.seconds += 3
        ledger.encoder_tokens += 100
        with ledger.stage("mine"):
            clock.seconds += 1
    assert ledger.encoder_tokens == 5
    assert ledger.device_seconds == 0


@given(
    limit=st.integers(1, 1000),
    step=st.integers(1, 50),
    taken=st.integers(0, 1100),
)
def test_over_is_more_than_a_step_past_the_limit(limit: int, step: int, taken: int) -> None:
    budget = Budget(encoder_tokens=limit)
    ledger = Ledger(encoder_tokens=taken, largest_step={"encoder_tokens": step})
    assert ledger.over(budget) == ({"encoder_tokens": taken - limit} if taken > limit + step else {})
    assert (ledger.fraction(budget) >= 1) == (taken >= limit)


@given(limit=st.integers(1, 1000), step=st.integers(1, 50))
def test_stopping_at_the_first_boundary_past_the_limit_is_never_over(limit: int, step: int) -> None:
    budget, ledger = Budget(encoder_tokens=limit), Ledger(largest_step={"encoder_tokens": step})
    while ledger.fraction(budget) < 1:
        ledger.encoder_tokens += step
    assert not ledger.over(budget)


def test_the_nearest_limit_rules() -> None:
    assert Ledger(steps=5, encoder_tokens=10).fraction(Budget(steps=10, encoder_tokens=100)) == 0.5


def test_a_ledger_goes_on_from_its_state() -> None:
    ledger = Ledger(steps=3, stage_cpu_seconds={"train": 1.25, "index": 2.0}, largest_step={"steps": 1})
    assert Ledger(**ledger.state()) == ledger
    assert ledger.as_dict()["device_seconds"] == 1.25


def test_a_part_has_its_own_limits_and_ends_in_the_whole() -> None:
    clock = Clock()
    ledger = Ledger(steps=3, peak_bytes=70, worker_bytes=[1], largest_step={"steps": 2.0, "epochs": 0.1}, _clock=clock)
    ledger.stage_seconds["train"] = 1.0
    with ledger.stage("prepare"), ledger.part() as part:
        assert part.fraction(Budget(steps=5)) == 0
        part.steps, part.epochs, part.encoder_tokens, part.peak_bytes, part.worker_bytes = 5, 1.0, 90, 60, [2, 3]
        part.largest_step = {"steps": 1.0, "epochs": 0.5}
        with part.stage("train"):
            clock.seconds += 5
    assert (ledger.steps, ledger.epochs, ledger.encoder_tokens) == (8, 1.0, 90)
    assert (ledger.peak_bytes, ledger.worker_bytes) == (70, [2, 3])
    assert ledger.largest_step == {"steps": 2.0, "epochs": 0.5}
    assert ledger.stage_seconds == {"train": 6, "prepare": 0}  # the same seconds are not charged to two stages


def test_what_nobody_counted_of_a_part_is_unknown_of_the_whole() -> None:
    ledger = Ledger(steps=3)
    for names in (["flops"], ["steps"]):
        with ledger.part() as part:
            part.steps, part.not_counted = 2, names
    assert ledger.not_counted == ["flops", "steps"]
    assert not ledger.as_dict().keys() & {"flops", "steps"}
    assert ledger.as_dict()["encoder_tokens"] == 0


@given(counts=st.dictionaries(st.sampled_from(OPERATIONS), st.integers(0, 10**15)))
def test_operations_are_the_sum_of_their_parts_and_none_is_charged_in_an_evaluation(counts: dict[str, int]) -> None:
    ledger = Ledger(**counts)
    assert ledger.flops == sum(counts.values())
    with ledger.uncharged():
        for name in OPERATIONS:
            setattr(ledger, name, getattr(ledger, name) + 7)
    assert ledger.flops == sum(counts.values())


def test_a_part_that_fails_is_charged() -> None:
    ledger = Ledger()

    def fail() -> None:
        with ledger.part() as part:
            part.steps = 2
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert ledger.steps == 2


def test_memory_is_a_limit_that_nothing_is_spent_of() -> None:
    budget = Budget(steps=10, peak_bytes=1e6)
    assert budget.limits() == {"steps": 10, "peak_bytes": 1e6}
    assert budget.spending() == {"steps": 10}
    ledger = Ledger(steps=5, peak_bytes=10**9)
    assert ledger.fraction(budget) == 0.5
    assert ledger.over(budget) == {"peak_bytes": 10**9 - 10**6}
    assert not Ledger(steps=5, peak_bytes=10**6).over(budget)
    with pytest.raises(ValidationError, match="at least one of epochs, steps"):
        Budget(peak_bytes=1e6)


@pytest.mark.parametrize(("tokens", "over"), [(2_050_000, {}), (2_600_000, {"encoder_tokens": 600_000})])
def test_a_largest_step_far_above_the_mean_excuses_four_mean_steps(tokens: int, over: dict[str, float]) -> None:
    spent = {"encoder_tokens": tokens, "steps": 100, "largest_step": {"encoder_tokens": 1_000_000}}
    assert over_budget(Budget(encoder_tokens=2_000_000), spent) == over


@given(host=st.integers(1, 10**12), by_worker=st.lists(st.integers(1, 10**12)), by_gpu=st.lists(st.integers(1, 10**12)))
def test_memory_is_the_gpus_where_there_is_one_and_that_of_training(
    host: int, by_worker: list[int], by_gpu: list[int]
) -> None:
    spent = {"peak_bytes": host, "worker_bytes": by_worker, "worker_device_bytes": by_gpu}
    wanted = max(by_gpu or by_worker or [host])
    assert memory_taken(spent) == wanted
    assert over_budget(Budget(steps=1, peak_bytes=wanted), spent) == {}
    assert over_budget(Budget(steps=1, peak_bytes=wanted - 0.5), spent) == {"peak_bytes": 0.5}
    assert (
        memory_taken({"peak_bytes": host, "peak_device_bytes": 7}) == 7
    )  # a record from before it was noted by worker


def test_a_worker_that_takes_too_much_memory_ends_the_trial() -> None:
    budget, ledger = Budget(steps=10, peak_bytes=2e9), Ledger(steps=3)
    ledger.check_memory(budget, 2e9)
    ledger.check_memory(Budget(steps=10), 1e15)
    with pytest.raises(TooLargeError, match=r"took 2\.50 GB of memory by step 3, the budget allows 2\.00 GB"):
        ledger.check_memory(budget, 2.5e9)
