"""Parameters of evaluators, and metrics whose lowest value is the best: their verdicts are those of 1 minus them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field
from reporting.made import record

from evaluation.test_evaluator import made_dataset
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import Hits, find_evaluators, fit_fusion, rank, score
from xmcbench.evaluation.comparison import across_datasets
from xmcbench.evaluation.evaluator import dataset_hits, lower_is_better
from xmcbench.evaluation.significance import Sample, rank_intervals, tied_with_best
from xmcbench.plugins.registry import Origin, Registered, registry
from xmcbench.reporting.answer import closing
from xmcbench.reporting.leaderboard_text import group_table
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import View
from xmcbench.runs.held_out import Answers
from xmcbench.runs.tuning import quality
from xmcbench.trial.facts import chosen_share, is_flat
from xmcbench.trial.provenance import evaluator_digests
from xmcbench.trial.run import HeldOut
from xmcbench.trial.versions import harness_versions
from xmcbench_plugins.analysis.compared import comparison_table


@dataclass(frozen=True)
class Miss:
    """The share of queries with fewer hits than `least` among the first k."""

    name: str = "miss"
    summary: str = "share of queries without enough hits"
    lower_is_better: bool = True
    least: Annotated[int, Field(gt=0)] = 1
    weight: float = 1.0

    def compute(self, hits: Hits, k: int) -> float:
        return self.weight * float((hits.sum_per_query(None, k) < self.least).mean())


@dataclass(frozen=True)
class Plain:
    name: str = "plain"
    summary: str = "without parameters"

    def compute(self, hits: Hits, k: int) -> float:
        return min(1.0, 0.5 * k / max(k, hits.num_queries))


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    things = registry()._things["evaluator"]  # as a plugin's hook registers them
    registry().all("evaluator")
    for thing in (Miss(), Plain()):
        things[thing.name] = Registered(thing.name, thing, Origin("tests", "0"), "")
    yield
    del things["miss"], things["plain"]


def test_a_parameter_is_part_of_the_name_and_changes_the_value() -> None:
    names = ["miss@2", "miss:least=2@2", "miss:least=2:weight=0.5@2"]
    evaluators = find_evaluators(names)
    hits = dataset_hits(rank(np.array([[0, 1], [1, 3], [2, 3], [3, 0]]), np.ones((4, 2)), 2), made_dataset())
    values = score(hits, names, evaluators)
    few = [float((hits.sum_per_query(None, 2) < least).mean()) for least in (1, 2)]
    assert few[0] != few[1]
    assert [*values.values()] == [few[0], few[1], few[1] / 2]
    assert lower_is_better(evaluators | find_evaluators(["P@1"])) == tuple(sorted(evaluators))
    assert {*evaluator_digests(evaluators)} == {*evaluators}
    assert "evaluator miss" in harness_versions("miss:least=2@5", ())


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("miss:leest=2@5", "found 'leest=2', expected NAME=VALUE of least, weight; did you mean 'least'?"),
        ("miss:2@5", "found '2', expected NAME=VALUE of least, weight"),
        ("miss:least=0@5", "least=0: Input should be greater than 0"),
        ("miss:least=two@5", "least=two: Input should be a valid integer, unable to parse string as an integer"),
        ("miss:least=1@5", "this metric is called miss@5"),
        ("miss:weight=0.50:least=2@5", "this metric is called miss:least=2:weight=0.5@5"),
        ("miss:summary=x@5", "found 'summary=x', expected NAME=VALUE of least, weight"),
        ("plain:least=2@5", "plain has no parameters, expected plain@5"),
        ("P:definition=x@5", "P has no parameters, expected P@5"),
    ],
)
def test_another_name_of_a_metric_is_told_in_one_line(metric: str, said: str) -> None:
    with pytest.raises(XMCBenchError) as problem:
        find_evaluators([metric], "suite.yaml:3: metrics")
    assert str(problem.value) == f"suite.yaml:3: metrics: metric {metric!r}: {said}"


@pytest.mark.parametrize("seed", range(5))
def test_verdicts_are_those_of_one_minus_the_metric(seed: int) -> None:
    rng = np.random.default_rng(seed)
    means = rng.random(6).round(2)
    samples = [Sample((0,), np.array([mean]), mean + 0.05 * rng.standard_normal((1, 50))) for mean in means]
    turned = [Sample((0,), 1 - own.values_S, 1 - own.replicates_SB) for own in samples]
    assert tied_with_best(samples, lower_is_better=True) == tied_with_best(turned)
    assert rank_intervals(samples, lower_is_better=True) == rank_intervals(turned)
    table_DM = rng.random((3, 4))
    assert across_datasets(table_DM, lower_is_better=True) == across_datasets(1 - table_DM)
    curve = [{"miss@5": value, "rest@5": 1 - value, "fraction": at / 9} for at, value in enumerate(rng.random(9))]
    for patience in range(1, 9):
        assert is_flat(curve, "miss@5", patience, ("miss",)) == is_flat(curve, "rest@5", patience)
    assert chosen_share(curve, "miss@5", None, ("miss",)) == chosen_share(curve, "rest@5")
    tuned = record(curve=[{**point, "steps": 1} for point in curve], lower_is_better=("miss",))
    assert quality(tuned, "miss@5") == pytest.approx(quality(tuned, "rest@5") - 1)
    assert -quality(tuned, "miss@5") == min(point["miss@5"] for point in curve)


def test_the_kept_answer_and_the_checkpoint_are_those_of_the_lowest_value() -> None:
    held_out = HeldOut(["a"], lambda _: {}, "miss@5", lower_is_better=("miss",))
    worths = [held_out.worth({"miss@5": value}) for value in (0.9, 0.2, 0.4)]
    assert worths.index(max(worths)) == 1
    answers = Answers("miss@5")
    answers.lower_is_better = ("miss",)
    found = [rank(np.array([[label]]), np.ones((1, 1)), 1) for label in range(3)]
    for own, value in zip(found, (0.9, 0.2, 0.4), strict=True):
        answers.note(own, {"miss@5": value})
    assert answers.of(max(worths)) is found[1]


def test_a_fusion_is_fitted_to_the_lowest_value() -> None:
    """The first part is right of every query, the second of none: by an error the first gets all of the weight."""
    dataset = made_dataset()
    targets = dataset.test.targets
    right = np.array([[targets[[row]].indices[0] if targets[[row]].nnz else 0] for row in range(targets.shape[0])])
    parts = [rank(labels, np.ones(labels.shape), 1) for labels in (right, (right + 1) % targets.shape[1])]
    weights = [fit_fusion("weighted", parts, targets, np.ones(targets.shape[1]), name) for name in ("P@1", "miss@1")]
    assert [own.weights_P.tolist() for own in weights if hasattr(own, "weights_P")]
    assert weights[0].weights_P.tolist() == weights[1].weights_P.tolist()  # type: ignore[attr-defined]


def board(**changes: Any) -> Any:
    lower = {"lower_is_better": ("miss",)}
    records = [
        record(label, metrics={"P@1": 0.5, "miss@5": miss}, method="ova", **lower | changes)
        for label, miss in (("first", 0.4), ("second", 0.1), ("third", 0.2))
    ]
    (group,) = leaderboard(records, view=View(sort="miss@5", metrics=("P@1", "miss@5"))).groups
    return records, group


def test_tables_rank_mark_and_name_the_lowest_value_first() -> None:
    records, group = board()
    assert [(row.method, row.rank) for row in group.rows] == [("second", 1), ("third", 2), ("first", 3)]
    assert group.best["miss@5"] == (0.1, 0.2)
    assert closing(group).startswith("second has the lowest miss@5, 10.00; ")
    assert "the next, third" in closing(group) or "third is 10.0 behind" in closing(group)
    table = group_table(group)
    assert "miss@5 (min)" in [getattr(head, "text", head) for head in table.headings]
    _, other = board(lower_is_better=())
    assert [row.method for row in other.rows] == ["first", "third", "second"], "the record says what is better"
    compared = comparison_table(([records[0]], [records[1]]), ["a", "b"], [])
    assert "(min)" not in str(compared), "no metric was compared"
