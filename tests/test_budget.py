"""Budgets and ledgers: what is charged, to what, and what is too much."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xmcbench.budget import BUDGETED_STAGES, Budget, Ledger


def test_a_budget_has_a_limit_and_knows_its_names() -> None:
    assert Budget(steps=3, device_seconds=1.5).limits() == {"steps": 3, "device_seconds": 1.5}
    for wrong in ({}, {"steps": 0}, {"tokens": 3}):
        with pytest.raises(ValidationError):
            Budget.model_validate(wrong)


def test_a_stage_inside_a_stage_is_charged_once() -> None:
    ledger = Ledger()
    start = time.perf_counter()
    with ledger.stage("prepare"):
        time.sleep(0.02)
        with ledger.stage("mine"):
            time.sleep(0.03)
            with ledger.stage("index"):
                time.sleep(0.01)
        with ledger.stage("mine"):
            time.sleep(0.01)
    elapsed = time.perf_counter() - start
    spent = ledger.stage_seconds
    assert sum(spent.values()) == pytest.approx(elapsed, abs=0.005)
    assert spent["mine"] == pytest.approx(0.04, abs=0.02)
    assert ledger.device_seconds == pytest.approx(elapsed - spent["index"], abs=0.005)
    assert "index" not in BUDGETED_STAGES


def test_a_stage_that_fails_is_charged() -> None:
    ledger = Ledger()

    def fail() -> None:
        with ledger.stage("train"):
            time.sleep(0.01)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert ledger.stage_seconds["train"] >= 0.01


def test_what_is_off_the_books_costs_nothing() -> None:
    ledger = Ledger(encoder_tokens=5)
    with ledger.stage("train"), ledger.off_the_books():
        time.sleep(0.03)
        ledger.encoder_tokens += 100
        with ledger.stage("mine"):
            time.sleep(0.01)
    assert ledger.encoder_tokens == 5
    assert ledger.device_seconds < 0.01


@given(
    limit=st.integers(1, 1000),
    step=st.integers(1, 50),
    taken=st.integers(0, 1100),
)
def test_over_is_more_than_a_step_past_the_limit(limit: int, step: int, taken: int) -> None:
    budget = Budget(encoder_tokens=limit)
    ledger = Ledger(encoder_tokens=taken, largest_step={"encoder_tokens": step})
    assert ledger.over(budget) == ({"encoder_tokens": taken} if taken > limit + step else {})
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
    ledger = Ledger(steps=3, stage_seconds={"train": 1.25, "index": 2.0}, largest_step={"steps": 1})
    assert Ledger(**ledger.state()) == ledger
    assert ledger.as_dict()["device_seconds"] == 1.25
