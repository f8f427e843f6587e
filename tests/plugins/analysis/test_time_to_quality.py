"""What trials had spent when they first reached a metric on held-out queries."""

from __future__ import annotations

from typing import Any

import pytest
from reporting.made import record

from xmcbench.suite.tables import Target
from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.suite_tables import sweep_cells, time_to_quality, time_to_quality_table

HALF = Target("P@1", 0.5)


def evaluated(*points: tuple[int, float], **changes: Any) -> Record:
    curve = [
        {"fraction": 0.1, "encoder_tokens": tokens, "device_seconds": tokens / 10, "flops": 100.0 * tokens, "P@1": p1}
        for tokens, p1 in points
    ]
    return record(curve=curve, **changes)


def test_the_first_evaluation_at_or_above_the_target_counts_and_no_later_drop_does() -> None:
    assert time_to_quality([evaluated((1000, 0.4), (2000, 0.5), (3000, 0.3), (4000, 0.9))], HALF) == "2.0k"


def test_seeds_have_a_mean_and_students_interval() -> None:
    seeds = [evaluated((1000, 0.6), seed=0), evaluated((3000, 0.6), seed=1), evaluated((2000, 0.6), seed=2)]
    # The standard error is 1000 / sqrt(3); Student's quantile with 2 degrees of freedom is 4.303.
    assert time_to_quality(seeds, HALF) == "2.0k (0 to 4.5k)"
    assert time_to_quality(seeds[:1], HALF) == "1.0k"


def test_seeds_that_did_not_reach_it_are_counted_and_never_averaged() -> None:
    reached, short = evaluated((1000, 0.6)), evaluated((1000, 0.4), seed=1)
    assert time_to_quality([reached, short], HALF) == "1 of 2 seeds"
    assert time_to_quality([short], HALF) == "not reached"
    assert time_to_quality([record()], HALF) == "-"


def test_the_table_has_a_column_for_each_unit() -> None:
    trials = [evaluated((1000, 0.6), label="a"), evaluated((1000, 0.1), label="b")]
    grid = time_to_quality_table(sweep_cells([(one.trial, one) for one in trials], {}, lambda _: frozenset()), HALF)
    assert grid.rows == (("a", "1.0k", "100", "100.0k"), ("b", "not reached", "not reached", "not reached"))


@pytest.mark.parametrize("text", ["to P@1", "to P@1=x", "to P@1=50 in parsecs", "P@1=50", "to speed=5"])
def test_what_is_no_target(text: str) -> None:
    assert Target.parse(text) is None
