from __future__ import annotations

import numpy as np
import pytest
import torch

from xmcbench_plugins.analysis.similarity import mean_similarity


def test_it_is_the_mean_cosine_of_the_nearest_others() -> None:
    vectors_LD = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)) * torch.rand(60, 1) * 9
    unit_LD = vectors_LD.double() / vectors_LD.double().norm(dim=1, keepdim=True)
    cosines_LL = (unit_LD @ unit_LD.T).fill_diagonal_(-2.0)
    expected = cosines_LL.topk(10).values.mean(dim=1)
    np.testing.assert_allclose(mean_similarity(vectors_LD), expected, atol=1e-6)


def test_labels_that_are_alike_are_neighbours_of_each_other_and_not_of_themselves() -> None:
    vectors_LD = torch.tensor([[1.0, 0.0]] * 15 + [[0.0, 1.0]])
    found = mean_similarity(vectors_LD)
    np.testing.assert_allclose(found, [1.0] * 15 + [0.0], atol=1e-6)
    np.testing.assert_allclose(mean_similarity(vectors_LD[13:]), [0.5, 0.5, 0.0], atol=1e-6)


def test_one_label_has_no_neighbours() -> None:
    with pytest.raises(ValueError, match="at least two"):
        mean_similarity(torch.ones(1, 4))
