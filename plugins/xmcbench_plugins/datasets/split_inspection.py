"""What the two splits of a dataset say together, which decides how its scores are to be read.

Legend: T test rows, L labels.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.extent import DOMINATES
from xmcbench_plugins.analysis.likeness import likeness
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

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
    found, texts = likeness(dataset.train.texts, dataset.test.texts), dataset.test.texts
    for kind, which in ((Kind.WITHOUT_WORD, found.unknown), (Kind.NEAR_DUPLICATES, found.near & ~found.same)):
        if len(rows := found.rows[which]):
            report.add(kind, Severity.DOUBT, len(rows), len(which), texts[int(rows[0])])
