"""Whether cells of equal budget spent the same, to within one of their steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.made import record
from xmcbench.trial.budget import Budget
from xmcbench.trial.facts import Ended
from xmcbench.trial.record import Record, Status
from xmcbench_plugins.analysis.suite_tables import check_equal_budgets


def spent(label: str, tokens: float, step: float = 10, limit: int = 100, **changes: Any) -> Record:
    ledger = {"encoder_tokens": tokens, "largest_step": {"encoder_tokens": step}}
    return record(label, spent=ledger, budget=Budget(encoder_tokens=limit), **changes)


def test_equal_trials_are_told_in_a_line() -> None:
    (found,) = check_equal_budgets([spent("a", 100), spent("b", 110), spent("words", 0)], "encoder_tokens")
    assert found == (
        "equal encoder tokens: 2 trials with 100 spent 100 to 110, none more than one step past it (the largest: 10); "
        "spent none: words"
    )


@pytest.mark.parametrize("tokens", [1, 99, 111, 500])
def test_too_little_and_too_much_are_named(tokens: float) -> None:
    (found,) = check_equal_budgets([spent("a", 100), spent("b", tokens)], "encoder_tokens")
    assert found == f"UNEQUAL encoder tokens: b spent {tokens} of 100, one step may take 10 more"


def test_a_trial_that_ended_before_a_pass_that_did_not_fit_is_equal() -> None:
    early = spent("early", 70)
    early = early.model_copy(update={"spent": early.spent | {"refused_pass": 1}})
    (found,) = check_equal_budgets([spent("a", 100), early], "encoder_tokens")
    assert found.startswith("equal")
    assert found.endswith("; a pass over the data no longer fitted: early")
    over = early.model_copy(update={"spent": early.spent | {"encoder_tokens": 111}})
    assert check_equal_budgets([over], "encoder_tokens")[0].startswith("UNEQUAL")


def test_a_trial_whose_curve_was_flat_is_equal_and_named() -> None:
    flat = spent("flat", 40)
    flat = flat.model_copy(update={"spent": flat.spent | {"ended": Ended.FLAT}})
    (found,) = check_equal_budgets([spent("a", 100), flat], "encoder_tokens")
    assert found.startswith("equal")
    assert "no longer fitted" not in found
    assert found.endswith("; ended when their curves were flat: flat")


@given(limit=st.integers(1, 10_000), step=st.integers(1, 200))
def test_a_run_that_stops_at_the_first_boundary_is_equal(limit: int, step: int) -> None:
    tokens = -(-limit // step) * step
    (found,) = check_equal_budgets([spent("a", tokens, step, limit)], "encoder_tokens")
    assert found.startswith("equal")


def test_budgets_are_apart_and_failures_are_left_out() -> None:
    records = [spent("a", 100), spent("b", 203, limit=200), spent("c", 5, status=Status.OOM)]
    found = check_equal_budgets(records, "encoder_tokens")
    assert [re.findall(r"with (\d+) spent (\d+) to", one) for one in found] == [[("100", "100")], [("200", "203")]]
