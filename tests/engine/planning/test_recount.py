"""What a recount of a trial's costs says of shares of the plan."""

from __future__ import annotations

import math

import pytest

from xmcbench.engine.planning.recount import Recount


@pytest.mark.parametrize(
    ("share", "says", "problems"),
    [
        (1.0, "recounted", 0),
        (1.09, "recounted", 0),
        (4.5, "stated: 4.50 times what a plan counts", 0),
        (0.6, "stated: 0.60 times what a plan counts", 0),
        (0.4, "stated: 0.40 times what a plan counts", 1),
        (math.nan, "stated: nan times what a plan counts", 1),
    ],
)
def test_only_costs_far_below_a_plan_are_refused(share: float, says: str, problems: int) -> None:
    found = Recount({"steps": share, "flops": 1.0})
    assert (str(Recount({"steps": share})), len(found.problems)) == (says, problems)
