"""Mean rank, win rate and improvability over datasets, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from reporting.made import record

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import across_datasets
from xmcbench_plugins.analysis.tables import across_datasets_table

METRIC_DM = np.array([[0.9, 0.8, 0.6], [0.5, 0.75, 0.5], [0.8, 0.7, 0.6], [1.0, 0.9, 0.9]])


def test_values_by_hand() -> None:
    first, second, third = across_datasets(METRIC_DM)
    assert [each.mean_rank.value for each in (first, second, third)] == [(1 + 2.5 + 1 + 1) / 4, 1.875, 2.75]
    assert first.win_rate.value == pytest.approx((1 + 0.25 + 1 + 1) / 4)
    assert sum(each.win_rate.value for each in (first, second, third)) == pytest.approx(1.5)
    # Errors of the second method are 0.2, 0.25, 0.3 and 0.1; the best have 0.1, 0.25, 0.2 and 0.
    assert second.improvability.value == pytest.approx((0.5 + 0 + 1 / 3 + 1) / 4)


def test_intervals_hold_the_mean_and_vanish_where_datasets_agree() -> None:
    for each in across_datasets(METRIC_DM):
        for mean in (each.mean_rank, each.win_rate, each.improvability):
            assert mean.interval[0] <= mean.value <= mean.interval[1]
    alike = across_datasets(np.tile([0.9, 0.5], (4, 1)))
    assert alike[0].mean_rank.interval == (1.0, 1.0)
    assert alike[1].improvability.interval[0] == pytest.approx(alike[1].improvability.interval[1])
    spread = across_datasets(METRIC_DM)[0].mean_rank.interval
    assert spread[1] > spread[0]


def test_a_method_that_is_perfect_cannot_be_improved() -> None:
    best, _ = across_datasets(np.array([[1.0, 0.5], [1.0, 1.0]]))
    assert best.improvability.value == 0


def test_one_dataset_is_too_few() -> None:
    with pytest.raises(XMCBenchError, match="found 1 datasets and 3 methods, expected at least 2 of each"):
        across_datasets(METRIC_DM[:1])


def test_seeds_are_averaged_and_two_configurations_are_an_error() -> None:
    def made(label: str, p1: float, dataset: str, **changes: object) -> object:
        return record(label, p1, dataset=dataset, **changes)

    records = [made("a", 0.5, "x"), made("a", 0.7, "x", seed=1), made("b", 0.61, "x"), made("a", 0.4, "y")]
    records.append(made("b", 0.5, "y"))
    none = lambda _record, _metrics: {}  # noqa: E731
    table = across_datasets_table(records, "P@1", none)
    assert [row[0] for row in table.rows] == ["b", "a"]
    assert [row[3] for row in table.rows] == ["0, 0", "0, 0"]
    with pytest.raises(XMCBenchError, match="x/a is several configurations of seed 0"):
        across_datasets_table([*records, made("a", 0.1, "x", config={"batch_size": 7})], "P@1", none)


def test_wins_that_are_significant_are_counted() -> None:
    rng = np.random.default_rng(0)
    drawn = {"a": 0.5, "b": 0.501, "c": 0.3}
    noise = {label: 0.01 * rng.standard_normal(400) for label in drawn}
    records = [record(label, p1, dataset=dataset) for label, p1 in drawn.items() for dataset in ("x", "y")]
    table = across_datasets_table(records, "P@1", lambda one, _: {"P@1": one.metrics["P@1"] + noise[one.trial.label]})
    assert {row[0]: row[3] for row in table.rows} == {"a": "2, 0", "b": "2, 0", "c": "0, 4"}
