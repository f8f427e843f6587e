from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation import (
    DEFAULT_METRICS,
    Hits,
    InvalidPredictions,
    dataset_hits,
    find_evaluators,
    find_hits,
    parse_metric,
    rank,
    score,
    truth_hash,
)
from xmcbench.evaluation.evaluator import EVALUATORS, register_evaluators
from xmcbench.trial.record import METRIC_VERSION

BUILT_IN = {evaluator.name: evaluator for evaluator in EVALUATORS}


@dataclass(frozen=True)
class Found:
    """An evaluator as a plugin would write one."""

    figure: float = 0.0
    name: str = "Found"
    summary: str = "share of queries with any hit"

    def compute(self, hits: Hits, k: int, /) -> float:
        return self.figure or len(np.unique(hits.queries[hits.ranks < k])) / hits.num_queries


def made_dataset(**changes: Any) -> Dataset:
    targets = sp.csr_array(np.eye(4, dtype=np.float32))
    matrices = {"test": targets, "ignore": sp.csr_array((4, 4), dtype=np.float32), **changes}
    card = DatasetCard(name="made", num_train=4, num_test=4, num_labels=4)
    texts = ["a", "b", "c", "d"]
    return Dataset(
        card, Split(texts, targets), Split(texts, matrices["test"]), texts, sp.csr_array((4, 4)), matrices["ignore"]
    )


def test_every_default_metric_is_known() -> None:
    assert {parse_metric(metric, BUILT_IN)[0].name for metric in DEFAULT_METRICS} == BUILT_IN.keys() - {
        "F1",
        "micro-F1",
        "LRAP",
    }
    assert parse_metric("PSnDCG@13", BUILT_IN) == (BUILT_IN["PSnDCG"], 13)


@pytest.mark.parametrize(
    ("metric", "suggestion"),
    [("NDCG@5", "nDCG@5"), ("PPS@7", "PSP@7"), ("nDCG", "nDCG@1"), ("P@0", "P@1"), ("P@05", "P@5"), ("R@-1", "R@1")],
)
def test_an_unknown_metric_is_answered_with_the_nearest_valid_one(metric: str, suggestion: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"^suite.yaml:3: unknown metric '{metric}' .*'{suggestion}'"):
        find_evaluators([metric], "suite.yaml:3")


def test_each_evaluator_is_found_once_by_the_names_of_metrics() -> None:
    assert find_evaluators(["P@1", "R@10", "P@5"]) == {name: BUILT_IN[name] for name in ("P", "R")}


def test_the_built_in_evaluators_register_through_the_hook() -> None:
    found: list[Any] = []
    register_evaluators(found.append)
    names = [evaluator.name for evaluator in found]
    assert names[: len(BUILT_IN)] == list(BUILT_IN)
    assert {"macro-P", "macro-F1", "coverage", "R-seen", "R-unseen", "calibration"} <= {*names}
    assert len(names) == len({*names})


def test_score_refuses_figures_that_cannot_be() -> None:
    predictions = rank(np.arange(16).reshape(4, 4) % 4, np.zeros((4, 4)), 4)
    assert score(dataset_hits(predictions, made_dataset()), ["P@4"], BUILT_IN) == {"P@4": 0.25}
    with pytest.raises(InvalidPredictions, match=r"Found@1 is 1\.5, expected a fraction"):
        score(dataset_hits(predictions, made_dataset()), ["Found@1"], {"Found": Found(figure=1.5)})


def test_the_truth_hash_changes_with_truth_or_filter_and_with_nothing_else() -> None:
    dataset = made_dataset()
    unsorted = sp.csr_array(
        (np.ones(5), np.array([0, 1, 1, 2, 3], dtype=np.int64), np.array([0, 1, 3, 4, 5])), shape=(4, 4)
    )  # row 1 holds label 1 twice
    assert truth_hash(made_dataset(test=unsorted)) == truth_hash(dataset)
    other = sp.csr_array(np.eye(4)[::-1])
    hashes = {truth_hash(made_dataset(**changes)) for changes in ({}, {"test": other}, {"ignore": other})}
    assert len(hashes) == 3


def test_the_documented_plugin_works_and_the_documented_names_are_all_there_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for name in BUILT_IN:
        assert f"| {name}@k |" in text
    assert f"`METRIC_VERSION`, now {METRIC_VERSION})" in text
    plugins = (Path(__file__).parents[2] / "docs" / "writing-a-plugin.md").read_text()
    (example,) = re.findall(r"```python\n([^`]*?class AnyHit.*?)```", plugins, flags=re.DOTALL)
    module: dict[str, Any] = {}
    exec(example, module)
    found: list[Any] = []
    module["register_evaluators"](found.append)
    predictions = rank(np.array([[0, 1], [0, 1]]), np.array([[2.0, 1.0], [2.0, 1.0]]), 2)
    truth = sp.csr_array(np.array([[1, 1, 0], [0, 0, 1]]))
    assert score(find_hits(predictions, truth, np.ones(3)), ["AnyHit@2"], {"AnyHit": found[0]}) == {"AnyHit@2": 0.5}


class TailRecall:
    """Recall of tail labels, which needs the training counts and the card."""

    name, summary = "TailR", "share of true tail labels among the first k"

    def compute(self, hits: Hits, k: int, /) -> float:
        assert hits.train_counts is not None
        assert hits.card is not None
        tail = hits.train_counts <= hits.card.tail_at_most
        return float(tail[hits.labels[hits.ranks < k]].sum()) / max(1, int(tail[hits.truth.indices].sum()))


def test_an_evaluator_knows_training_counts_and_the_card() -> None:
    """Only label 2 has no training query, so with `tail_at_most: 0` it is the tail."""
    made = made_dataset()
    train = sp.csr_array(np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0]], dtype=np.float32))
    card = made.card.model_copy(update={"tail_at_most": 0})
    dataset = replace(made, card=card, train=Split(made.train.texts, train))
    predictions = rank(np.array([[0], [1], [2], [0]]), np.zeros((4, 1)), 1)
    hits = dataset_hits(predictions, dataset)
    assert hits.train_counts is not None
    assert hits.train_counts.tolist() == [2, 1, 0, 2]
    assert score(hits, ["TailR@1"], {"TailR": TailRecall()}) == {"TailR@1": 1.0}
    missed = dataset_hits(rank(np.array([[0], [1], [1], [0]]), np.zeros((4, 1)), 1), dataset)
    assert score(missed, ["TailR@1"], {"TailR": TailRecall()}) == {"TailR@1": 0.0}


@dataclass(frozen=True)
class Again(Found):
    name: str = "again"
    repeats: str = "P"


def test_a_metric_that_two_programs_compute_must_agree() -> None:
    dataset = made_dataset()
    hits = dataset_hits(rank(np.arange(4)[:, None], np.ones((4, 1), np.float32), 4), dataset)
    names = ["P@1", "again@1"]
    assert score(hits, names, BUILT_IN | {"again": Again(figure=1 - 1e-7)})["again@1"] < 1
    with pytest.raises(XMCBenchError, match=re.escape("again@1 is 0.9, P@1 is 1.0, expected them equal")):
        score(hits, names, BUILT_IN | {"again": Again(figure=0.9)})
