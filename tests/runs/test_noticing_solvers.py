"""Linear solvers of scikit-learn are charged, or their operations are unknown: never few."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.tree import DecisionTreeClassifier

from xmcbench.runs.fitting import noticing_solvers
from xmcbench.trial.budget import Ledger

ROWS, CLASSES = np.eye(6), np.arange(6) % 2
LEARNERS = {
    "classifier": lambda: SGDClassifier().fit(ROWS, CLASSES),
    "part by part": lambda: SGDClassifier().partial_fit(ROWS, CLASSES, classes=[0, 1]),
    "clusters": lambda: KMeans(2).fit(ROWS),
    "neighbours": lambda: NearestNeighbors().fit(ROWS),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_model_that_nobody_charges_makes_the_operations_unknown(name: str) -> None:
    ledger = Ledger()
    with noticing_solvers(ledger):
        LEARNERS[name]()
    assert "flops" not in ledger.as_dict()


def test_one_that_is_charged_leaves_them_known() -> None:
    ledger = Ledger()
    with noticing_solvers(ledger):
        LEARNERS["classifier"]()
        ledger.solver_flops = 100
    assert ledger.as_dict()["flops"] == 100


def test_words_and_trees_multiply_nothing() -> None:
    ledger = Ledger()
    with noticing_solvers(ledger):
        TfidfVectorizer().fit(["one text", "another"])
        DecisionTreeClassifier().fit(ROWS, CLASSES)
    LEARNERS["classifier"]()  # after the block
    assert ledger.as_dict()["flops"] == 0
