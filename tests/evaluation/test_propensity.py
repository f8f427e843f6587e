from __future__ import annotations

from math import log

import numpy as np
import pytest
import scipy.sparse as sp

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import inverse_propensity


def test_weights_follow_the_model_label_by_label() -> None:
    targets = sp.csr_array(np.array([[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 1]]))
    a, b = 0.6, 2.6
    scale = (log(4) - 1) * (b + 1) ** a
    expected = [1 + scale * (count + b) ** -a for count in (4, 0, 2)]
    assert inverse_propensity(targets, a, b).tolist() == pytest.approx(expected, rel=1e-14)


def test_the_sum_of_a_column_counts_not_its_entries() -> None:
    twice = sp.csr_array(np.array([[2, 0], [0, 1], [0, 1]]))
    weights = inverse_propensity(twice, 0.55, 1.5)
    assert weights[0] == weights[1]


def test_too_few_training_queries_are_an_error_where_the_model_would_favour_frequent_labels() -> None:
    with pytest.raises(XMCBenchError, match="at least 3 training queries, found 2"):
        inverse_propensity(sp.csr_array((2, 5)), 0.55, 1.5)
