"""What the two splits of a dataset say together, which decides how its scores are to be read.

Legend: N training rows, T test rows, L labels, V words.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.extent import DOMINATES
from xmcbench.data.texts import take
from xmcbench_plugins.datasets.inspection import LOOKED_AT, Kind, Report, Severity

ASKED = 5_000  # test rows that are compared with training rows, at most
NEAR = 0.8  # cosine of two texts' words from which on they are nearly the same
DISAGREE = 0.3  # share of the test rows on which two methods differ in P@1, where neither is much better
POWER = 2.8  # standard errors: a 95 % interval excludes 0 with a probability of 80 %
FINE = 0.02  # a test split that cannot show such a difference is a doubt
PRECISION = 5  # labels of P@5


def inspect_splits(dataset: Dataset, report: Report) -> None:
    """Add to `report` what training and test rows show together. Large splits are compared by evenly spaced rows."""
    train, test = dataset.train, dataset.test
    if not len(train.texts) or not len(test.texts):
        return
    _inspect_likeness(dataset, report)
    counts_L = np.bincount(train.targets.indices, minlength=len(dataset.label_texts))
    most, rows = int(counts_L.max(initial=0)), len(train.texts)
    if most:
        severity = Severity.DOUBT if most > DOMINATES * rows else Severity.NOTE
        label = dataset.label_texts[int(counts_L.argmax())]
        report.add(Kind.MOST_FREQUENT, severity, most, rows, label)
    labels_T = np.diff(test.targets.indptr)
    if (labels_T < PRECISION).any():
        ceiling = float(np.minimum(labels_T, PRECISION).mean()) / PRECISION
        names = (f"{labels_T.mean():.1f}", f"{100 * ceiling:.1f}")
        report.add(Kind.CEILING, Severity.NOTE, int(labels_T.max(initial=0)), len(labels_T), names=names)
    smallest = POWER * sqrt(DISAGREE / len(labels_T))
    severity = Severity.DOUBT if smallest > FINE else Severity.NOTE
    report.add(Kind.SMALLEST_DIFFERENCE, severity, 0, len(labels_T), names=(f"{100 * smallest:.1f}",))


def _inspect_likeness(dataset: Dataset, report: Report) -> None:
    """Test rows that nearly repeat a training row, and test rows without a word that a training row has."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sparse_dot_topn import sp_matmul_topn  # type: ignore[import-untyped]

    known, asked = dataset.train.texts, dataset.test.texts
    train = list(take(known, np.arange(0, len(known), max(1, -(-len(known) // LOOKED_AT)))))
    places_T = np.arange(0, len(asked), max(1, -(-len(asked) // ASKED)))
    test = list(take(asked, places_T))
    words = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b")
    try:
        train_NV = csr_matrix(words.fit_transform(train))
    except ValueError:  # no text has a word
        report.add(Kind.WITHOUT_WORD, Severity.DOUBT, len(test), len(test))
        return
    test_TV = csr_matrix(words.transform(test))
    without = np.flatnonzero(np.diff(test_TV.indptr) == 0)
    if len(without):
        report.add(Kind.WITHOUT_WORD, Severity.DOUBT, len(without), len(test), test[int(without[0])])
    nearest = sp_matmul_topn(test_TV, csr_matrix(train_NV.T), 1, threshold=NEAR)
    equal = set(train)
    near = [row for row in np.flatnonzero(np.diff(nearest.indptr)).tolist() if test[row] not in equal]
    if near:
        report.add(Kind.NEAR_DUPLICATES, Severity.DOUBT, len(near), len(test), test[near[0]])
