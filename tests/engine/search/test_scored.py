"""A search by a method's own score finds what a search through the whole matrix of scores finds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from xmcbench import search
from xmcbench.engine.flops import counting
from xmcbench.engine.losses import own_scores


def late(queries_BV: Tensor, labels_CW: Tensor) -> Tensor:
    """The largest products of two query vectors with three label vectors, summed."""
    queries_BTD, labels_CUD = queries_BV.unflatten(1, (2, 4)), labels_CW.unflatten(1, (3, 4))
    return torch.einsum("btd,cud->btcu", queries_BTD, labels_CUD).amax(3).sum(1)


@pytest.fixture
def vectors() -> tuple[Tensor, Tensor]:
    """Of a query 8 numbers, of a label 12; labels 3 and 20 are alike."""
    generator = torch.Generator().manual_seed(0)
    queries_NV, labels_LW = (torch.randn(n, width, generator=generator) for n, width in ((17, 8), (40, 12)))
    labels_LW[20] = labels_LW[3]
    return queries_NV, labels_LW


@pytest.mark.parametrize("numbers", [1 << 21, 50])  # in one chunk, and in chunks of two
@pytest.mark.parametrize("k", [1, 5, 40])
def test_it_finds_the_best_of_all_scores(
    numbers: int, k: int, vectors: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(own_scores.NUMBERS, "cpu", numbers)
    queries_NV, labels_LW = vectors
    excluded = sp.random_array((17, 40), density=0.2, rng=np.random.default_rng(0)).tocsr()
    scores_NL = late(queries_NV, labels_LW).numpy()
    scores_NL[excluded.nonzero()] = -np.inf
    order_NL = np.argsort(-scores_NL, axis=1, kind="stable")[:, :k]
    wanted_NK = np.take_along_axis(scores_NL, order_NL, axis=1)
    with counting() as own, FlopCounterMode(display=False) as torchs:
        found = search.build_index(labels_LW, score=late).top_k(queries_NV, k, exclude=excluded)
    np.testing.assert_allclose(found.scores, wanted_NK, rtol=1e-5)
    if numbers > 50:  # elsewhere rounding may tell the two labels that are alike
        np.testing.assert_array_equal(found.indices, np.where(np.isinf(wanted_NK), -1, order_NL))
    assert own.flops == torchs.get_total_flops() == 2 * 17 * 40 * 2 * 3 * 4
    assert own.module_flops == 0


def test_what_is_no_score_is_refused(vectors: tuple[Tensor, Tensor]) -> None:
    queries_NV, labels_LW = vectors
    with pytest.raises(ValueError, match="expected finite scores"):
        search.build_index(labels_LW, score=lambda q, z: late(q, z) / 0).top_k(queries_NV, 2)
    with pytest.raises(ValueError, match=r"score returned \[17, 40, 1\]"):
        search.build_index(labels_LW, score=lambda q, z: late(q, z)[..., None]).top_k(queries_NV, 2)
