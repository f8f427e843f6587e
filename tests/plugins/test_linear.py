"""Linear one-vs-rest against scikit-learn's own, texts and labels that hold nothing, and sequences of characters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from fitting import assert_saved_predicts_the_same
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC
from toy import LABELS, QUERIES, make_run, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.linear import LinearOneVsRest
from xmcbench_plugins.tfidf import NearestNeighbours

DATA = toy_data()
UNSEEN = [*DATA.texts[:5], "", "zzz qqq", *DATA.label_texts[:3]]


def fitted(root: Path, data: TrainingData = DATA, **settings: object) -> LinearOneVsRest:
    method = LinearOneVsRest(LinearOneVsRest.Config.model_validate(settings))
    run = make_run(root, {"device_seconds": 300})
    run.checkpoint.mkdir(parents=True, exist_ok=True)
    method.fit(data, run)
    assert run.ledger.device_seconds > 0
    assert run.ledger.solver_flops > 0
    return method


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LinearOneVsRest:
    return fitted(tmp_path_factory.mktemp("plain"), cost=0.5)


def test_it_is_one_linear_svm_of_scikit_learn_per_label(plain: LinearOneVsRest) -> None:
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    rows, asked = vectorizer.fit_transform(DATA.texts), vectorizer.transform(UNSEEN)
    true = DATA.targets.toarray()
    wanted = np.full((len(UNSEEN), LABELS), -np.inf)
    for label in np.flatnonzero(true.any(axis=0)):
        own = LinearSVC(C=0.5, dual=True, random_state=0).fit(rows, true[:, label])
        wanted[:, label] = own.decision_function(asked)
    found = plain.predict(UNSEEN, LABELS)
    for row, scores in enumerate(wanted):
        labels = found.indices[row][found.indices[row] >= 0]
        assert set(labels) == set(np.flatnonzero(np.isfinite(scores)))
        np.testing.assert_allclose(found.scores[row, : len(labels)], scores[labels], atol=0.05)  # of pruned weights
    assert np.array_equal(plain.predict(UNSEEN, 3).indices, found.indices[:, :3])


def test_what_is_saved_predicts_the_same(plain: LinearOneVsRest, tmp_path: Path) -> None:
    assert_saved_predicts_the_same(plain, LinearOneVsRest(LinearOneVsRest.Config(cost=0.5)), UNSEEN, tmp_path)


def test_with_few_negatives_the_nearest_are_shown(plain: LinearOneVsRest, tmp_path: Path) -> None:
    found, all_of_them = fitted(tmp_path, negatives=20).predict(DATA.texts, 1), plain.predict(DATA.texts, 1)
    labelled = np.diff(DATA.targets.indptr) > 0
    for predictions in (found, all_of_them):
        hits = DATA.targets.toarray()[np.arange(QUERIES), predictions.indices[:, 0]]
        assert hits[labelled].mean() > 0.9


def test_finding_the_nearest_negatives_is_charged(tmp_path: Path) -> None:
    """A product of all rows with the mean of a label's own, beside what liblinear computes of those it is shown."""
    method, run = LinearOneVsRest(LinearOneVsRest.Config(negatives=1)), make_run(tmp_path, {"device_seconds": 300})
    run.checkpoint.mkdir(parents=True, exist_ok=True)
    method.fit(DATA, run)
    rows = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b").fit_transform(DATA.texts)
    true, expected = DATA.targets.toarray() > 0, 0
    for label in np.flatnonzero(true.any(axis=0)):
        own = np.flatnonzero(true[:, label])
        products = np.asarray(rows @ rows[own].mean(axis=0).T).ravel()
        products[own] = -1
        shown = np.sort([*own, int(products.argmax())])
        solved = LinearSVC(C=1.0, dual=True, random_state=0).fit(rows[shown], true[shown, label])
        expected += 2 * rows.nnz + 4 * int(solved.n_iter_) * (rows[shown].nnz + len(shown))
    assert run.ledger.solver_flops == pytest.approx(expected, rel=0.01)


def test_compounds_share_characters(tmp_path: Path) -> None:
    texts = ["Waschmaschinen", "Kaffeemaschine", "Hausdach", "Kirchdach"] * 3
    targets = sp.csr_array(np.array([[1, 0], [1, 0], [0, 1], [0, 1]] * 3, np.float32))
    data = replace(DATA, texts=texts, targets=targets, label_texts=["a", "b"], ignore=sp.csr_array(targets.shape))
    asked = ["Naehmaschine", "Scheunendaecher Dach"]
    assert fitted(tmp_path, data, characters=[3, 5]).predict(asked, 1).indices.ravel().tolist() == [0, 1]
    for weighting in ("tfidf", "bm25"):
        config = {"characters": [3, 5], "neighbours": 3, "weighting": weighting}
        neighbours = NearestNeighbours(NearestNeighbours.Config.model_validate(config))
        neighbours.fit(data, make_run(tmp_path, {"steps": 1}))
        assert neighbours.predict(asked, 1).indices.ravel().tolist() == [0, 1]


def test_settings_that_are_not_used_are_in_no_key() -> None:
    for kind in (LinearOneVsRest, NearestNeighbours):
        assert not {"characters", "weighting"} & kind.Config().model_dump(mode="json").keys()
    with pytest.raises(ValueError, match=r"expected two ascending numbers from 1 to 10"):
        LinearOneVsRest.Config.model_validate({"characters": [5, 3]})


def test_texts_without_a_word_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match=r"toy: linear-ovr finds no training text with a word and a label"):
        fitted(tmp_path, replace(DATA, texts=["."] * QUERIES))
