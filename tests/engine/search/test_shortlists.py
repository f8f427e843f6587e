"""Searches for shortlists: exact or approximate by their size, and how good the approximate ones are."""

from __future__ import annotations

import numpy as np
import pytest

from xmcbench.engine import flops
from xmcbench.engine.sampling import embeddings as embeddings_module
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.search import faiss, index, top_k
from xmcbench.engine.search.index import backend_for, search_flops

from .cases import clustered


def test_the_size_alone_decides_and_large_searches_cost_much_less() -> None:
    assert backend_for(294_805, 131_073) == "exact"
    assert backend_for(2_248_619, 1_305_265) == "faiss-ivf"
    small, large = (294_805, 131_073), (2_248_619, 1_305_265)
    assert search_flops(*small, 768) == 2 * 768 * small[0] * small[1]
    assert search_flops(*large, 768) < 0.03 * 2 * 768 * large[0] * large[1]
    assert search_flops(*large, 768) == 768 * search_flops(*large, 1)


def test_a_large_search_is_approximate_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case, noted, shares = clustered(num_queries=200), [], []
    vectors = (lambda: case.queries_ND), (lambda: case.labels_LD)
    embeddings = Embeddings(*vectors, note_recall=noted.append, progress=shares.append)
    exact_NK = embeddings.nearest(case.k, case.exclude)
    np.testing.assert_array_equal(
        exact_NK, top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude).indices
    )
    assert (noted, shares) == ([], [0.0, 0.0])  # before the passes, and before the only block
    shares.clear()
    monkeypatch.setattr(index, "LARGE_SEARCH", 0)
    monkeypatch.setattr(embeddings_module, "BLOCK", 64)
    monkeypatch.setattr(faiss, "PROBES", 4)
    with flops.counting() as scored:
        found_NK = embeddings.nearest(case.k, case.exclude)
    assert scored.flops == search_flops(200, len(case.labels_LD), case.labels_LD.shape[1])
    assert shares == [0.0, 0.0, 0.32, 0.64, 0.96]
    hits = [len(np.intersect1d(*rows)) for rows in zip(exact_NK, found_NK, strict=True)]
    assert noted == [pytest.approx(np.mean(hits) / case.k)]
    assert 0.5 < noted[0] < 1
