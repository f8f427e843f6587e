"""Comparisons of predictions: they add up, and what is stored of each trial gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation.drawn import made, predicted

from xmcbench.evaluation import DEFAULT_METRICS, dataset_hits, decile_bins, label_bins, resampled_metrics, score
from xmcbench.evaluation.comparison import compare_rows
from xmcbench.evaluation.evaluator import EVALUATORS
from xmcbench.evaluation.significance import Sample
from xmcbench_plugins.analysis.comparing import compare

BUILT_IN = {evaluator.name: evaluator for evaluator in EVALUATORS}


def test_a_comparison_adds_up() -> None:
    dataset = made()
    better, worse = predicted(dataset, 0.8, 1), predicted(dataset, 0.3, 2)
    bins = {"regimes": label_bins(dataset.card, dataset.train.targets), "deciles": decile_bins(dataset.train.targets)}
    names = [name for name in DEFAULT_METRICS if name != "R@100"]
    found = compare((better, worse), dataset, names, BUILT_IN, bins, 5)
    figures = [score(dataset_hits(each, dataset), names, BUILT_IN) for each in (better, worse)]
    for each in found.metrics:
        assert (each.first, each.second) == (figures[0][each.name], figures[1][each.name])
        assert each.difference.value == each.first - each.second
    for parts in found.breakdowns.values():
        assert sum(part.first for part in parts) == pytest.approx(figures[0]["P@5"])
        assert sum(part.difference.value for part in parts) == pytest.approx(figures[0]["P@5"] - figures[1]["P@5"])
    assert found.change.sum() / (5 * len(better)) == pytest.approx(figures[0]["P@5"] - figures[1]["P@5"])
    gained, lost = found.most_changed(4)
    assert found.change[gained].min() >= np.sort(found.change)[-4]
    assert (found.change[lost] < 0).all()


def test_what_is_kept_of_each_trial_gives_the_same_answer_as_both_predictions() -> None:
    dataset = made()
    trials = predicted(dataset, 0.8, 1), predicted(dataset, 0.3, 2)
    kept = tuple(resampled_metrics(dataset_hits(each, dataset), ["P@1", "PSP@5"], BUILT_IN) for each in trials)
    figures = tuple(score(dataset_hits(each, dataset), ["P@1", "PSP@5"], BUILT_IN) for each in trials)
    rows = (
        {name: Sample((0,), np.array([own[name]]), stored[name][None]) for name in own}
        for own, stored in zip(figures, kept, strict=True)
    )
    together = compare(trials, dataset, ["P@1", "PSP@5"], BUILT_IN, {}, 5).metrics
    for apart, own in zip(compare_rows(*rows), together, strict=True):
        assert (apart.name, apart.first, apart.second) == (own.name, own.first, own.second)
        assert apart.difference.interval == pytest.approx(own.difference.interval, abs=1e-7)
