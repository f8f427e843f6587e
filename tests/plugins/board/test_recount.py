"""What a recount of a trial's costs says of shares of the plan."""

from __future__ import annotations

import math

import pytest

from xmcbench.trial.facts import Ended
from xmcbench.trial.record import decode
from xmcbench_plugins.board.recount import MOST, Recount, _cut, _unspent

from attacks.hostile import content, signed  # isort: skip


@pytest.mark.parametrize(
    ("share", "says", "problems"),
    [
        (1.0, "recounted", 0),
        (1.09, "recounted", 0),
        (4.5, "not confirmed: 4.50 times the count of a plan", 0),
        (0.6, "not confirmed: 0.60 times the count of a plan", 0),
        (0.4, "not confirmed: 0.40 times the count of a plan", 1),
        (22.0, "not confirmed: 22.00 times the count of a plan", 1),
        (math.nan, "not confirmed: nan times the count of a plan", 1),
    ],
)
def test_only_costs_far_from_a_plan_are_refused(share: float, says: str, problems: int) -> None:
    found = Recount({"steps": share, "flops": 1.0})
    assert (str(Recount({"steps": share})), len(found.problems)) == (says, problems)


def test_a_training_that_left_its_budget_says_why() -> None:
    record = decode(signed(content("07295ea6879f0e90")))
    assert record.trial.budget.limits() == {"epochs": 6.0}
    assert _unspent(record) == ""
    early = record.model_copy(update={"spent": record.spent | {"epochs": 3.0}})
    assert _unspent(early) == "it spent 3 epochs of 6, and does not say why it ended"
    for said in ({"ended": Ended.FLAT}, {"refused_pass": 1}, {"steps": 0}):
        assert _unspent(early.model_copy(update={"spent": early.spent | said})) == ""
    larger = early.model_copy(update={"spent": early.spent | {"largest_step": {"epochs": 3.0}}})
    assert _unspent(larger), "more than a few mean steps excuse nothing"


def test_a_budget_without_end_is_not_counted_to_its_end() -> None:
    record = decode(signed(content("07295ea6879f0e90")))
    limits = {"epochs": None, "flops": 1e20}
    endless = record.model_copy(update={"trial": record.trial.changed(budget=limits)})
    cut = _cut(endless).budget
    assert (cut.flops, cut.epochs) == (MOST * record.spent["flops"], MOST * record.spent["epochs"])
    assert _cut(record).budget == record.trial.budget, "an honest one is counted as it is"


def test_a_second_stage_may_spend_what_the_encoder_below_it_does_not() -> None:
    """A plan counts the encoder's part of the budget, the record all of it."""
    shares = {"flops": 12.5}
    assert Recount(shares).problems
    assert not Recount(shares, part=0.08).problems
    assert str(Recount({"flops": 1 / 0.8}, part=0.8)).startswith("not recounted: a plan counts only")
