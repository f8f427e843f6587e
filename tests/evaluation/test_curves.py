from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given

from xmcbench.evaluation import Hits, find_hits, rank
from xmcbench.evaluation import analysis as module
from xmcbench.evaluation.analysis import precision_recall, score_distributions
from xmcbench.trial.predictions import Predictions

from .cases import Case, cases, pairs


def hits_of(case: Case) -> Hits:
    return find_hits(case.predictions, case.truth, np.array(case.weights))


def scored(case: Case) -> list[tuple[float, bool]]:
    """Score and truth of each predicted pair."""
    rows = zip(case.scores, case.true, strict=True)
    return [(score, label in true) for row, true in rows for label, score in row.items()]


@given(case=cases())
def test_precision_and_recall_at_each_threshold_are_those_of_counting(case: Case) -> None:
    known = scored(case)
    total = sum(map(len, case.true))
    curve = precision_recall(hits_of(case))
    assert curve.thresholds.tolist() == sorted({score for score, _ in known}, reverse=True)
    area, before = 0.0, 0.0
    for threshold, precision, recall in zip(curve.thresholds, curve.precision, curve.recall, strict=True):
        above = [true for score, true in known if score >= threshold]
        assert precision == pytest.approx(sum(above) / len(above))
        assert recall == pytest.approx(sum(above) / max(1, total))
        area += (recall - before) * precision
        before = recall
    assert curve.area == pytest.approx(area)
    assert curve.exact_from == -np.inf  # every label is kept


@given(case=cases())
def test_separation_counts_pairs_of_a_true_and_a_false_one(case: Case) -> None:
    known = scored(case)
    both = list(product([s for s, true in known if true], [s for s, true in known if not true]))
    found = score_distributions(hits_of(case))
    if both:
        assert found.separation == pytest.approx(sum((t > f) + (t == f) / 2 for t, f in both) / len(both))
    else:
        assert np.isnan(found.separation)


@given(case=cases())
def test_densities_integrate_to_one(case: Case) -> None:
    found = score_distributions(hits_of(case))
    known = [true for _, true in scored(case)]
    for density, some in ((found.true, any(known)), (found.false, not all(known))):
        assert density @ np.diff(found.edges) == pytest.approx(1.0 if some else 0.0)


def test_a_curve_says_down_to_where_nothing_was_cut_off() -> None:
    kept = Predictions(np.array([[0, 1], [2, -1]]), np.array([[3.0, 2.0], [1.0, -np.inf]]))
    hits = find_hits(kept, pairs([{0}, {2}], 4), np.ones(4))
    assert precision_recall(hits).exact_from == 2.0  # the first query may have more labels below 2, the second has none


def test_a_long_curve_is_thinned_and_keeps_its_ends_and_its_area(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 40))
    kept = rank(np.tile(np.arange(40), (50, 1)), scores, 40)
    hits = find_hits(kept, pairs([set(rng.choice(40, 5).tolist()) for _ in range(50)], 40), np.ones(40))
    monkeypatch.setattr(module, "CURVE_POINTS", 10_000)
    whole = precision_recall(hits)
    monkeypatch.setattr(module, "CURVE_POINTS", 100)
    thin = precision_recall(hits)
    assert len(whole.recall) == 2000
    assert 50 < len(thin.recall) <= 102
    assert thin.area == whole.area
    for name in ("thresholds", "precision", "recall"):
        some, every = getattr(thin, name), getattr(whole, name)
        assert (some[0], some[-1]) == (every[0], every[-1])
    assert np.diff(thin.recall).max() < 0.02
