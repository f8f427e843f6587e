"""Ranks of a suite's cells with intervals."""

from __future__ import annotations

import numpy as np
from reporting.made import record

from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.suite_tables import SweepCell, rank_tables, sweep_cells


def cells_of(*records: Record) -> list[SweepCell]:
    return sweep_cells([(one.trial, one) for one in records], {}, lambda _: frozenset())


def test_cells_that_cannot_be_told_apart_share_their_ranks() -> None:
    spread = {"best": 0.9, "close": 0.50, "near": 0.501}
    rng = np.random.default_rng(0)
    drawn = {label: p1 + 0.01 * rng.standard_normal(1000) for label, p1 in spread.items()}
    found = cells_of(*(record(label, p1) for label, p1 in spread.items()))
    (table,) = rank_tables(found, "P@1", lambda one, _: {"P@1": drawn[one.trial.label]})
    assert table.rows == (
        ("best", "90.00", "1", "1 to 1"),
        ("near", "50.10", "2", "2 to 3"),
        ("close", "50.00", "3", "2 to 3"),
    )


def test_cells_without_stored_resamples_and_other_datasets_are_apart() -> None:
    found = cells_of(record("a"), record("b"), record("c", dataset="other"), record("d", dataset="other"))
    drawn = np.linspace(0, 1, 10)
    stored = {"a": {}} | {label: {"P@1": drawn} for label in "bcd"}
    (table,) = rank_tables(found, "P@1", lambda one, _: stored[one.trial.label])
    assert table.title == "ranks: other, P@1"
