"""Workers' shares of a batch are the batch: every pair once, on the worker that holds its label."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.engine.losses import Positives
from xmcbench.engine.sampling import Batch
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import Workers

LABELS = 11


def make_batch(seed: int, queries: int) -> tuple[Batch, np.ndarray]:
    """A batch over a random pool, and its truth [queries, LABELS]; some queries have no positive."""
    rng = np.random.default_rng(seed)
    truth = rng.random((queries, LABELS)) < 0.3
    pool = np.flatnonzero(rng.random(LABELS) < 0.6)
    rows, columns = np.nonzero(truth[:, pool])
    chosen = {which: torch.from_numpy(rng.integers(0, 3, len(rows))).float() for which in ("drawn", "one")}
    positives = Positives(torch.from_numpy(rows), torch.from_numpy(columns), queries, len(pool), chosen)
    return Batch(np.arange(queries), pool, positives), truth


@given(seed=st.integers(0, 999), queries=st.integers(1, 6), size=st.integers(1, 5), grouped=st.booleans())
def test_shares_partition_the_batch(seed: int, queries: int, size: int, grouped: bool) -> None:
    batch, truth = make_batch(seed, queries)
    groups = np.random.default_rng(seed).integers(0, 4, LABELS) if grouped else None
    shards = [Shard(LABELS, Workers(rank, size), groups) for rank in range(size)]
    everyone = np.concatenate([shard.label_ids for shard in shards])
    assert sorted(everyone) == list(range(LABELS))
    assert np.array_equal(everyone, shards[0].everyone())
    assert np.array_equal(
        np.concatenate([batch.query_ids[shard.queries(queries)] for shard in shards]), batch.query_ids
    )
    chosen: dict[str, list[tuple[int, int, float]]] = {"drawn": [], "one": []}
    for shard in shards:
        share = shard.share(batch)
        assert set(share.label_ids) == set(batch.label_ids) & set(shard.label_ids)
        positives = share.positives
        assert (positives.num_queries, positives.num_labels) == (queries, len(share.label_ids))
        marked = np.zeros((queries, len(share.label_ids)), bool)
        marked[positives.rows_P, positives.columns_P] = True
        assert np.array_equal(marked, truth[:, share.label_ids])
        assert len(positives.rows_P) == marked.sum()
        for which, pairs in chosen.items():
            pairs += weighted_pairs(share, which)
    for which, pairs in chosen.items():
        assert sorted(pairs) == sorted(weighted_pairs(batch, which))  # each chosen pair is with one worker


def weighted_pairs(batch: Batch, which: str) -> list[tuple[int, int, float]]:
    """Row, label and weight of each pair."""
    positives = batch.positives
    labels = batch.label_ids[positives.columns_P.numpy()]
    return list(zip(positives.rows_P.tolist(), labels.tolist(), positives.chosen[which].tolist(), strict=True))


def test_labels_of_a_group_lie_together() -> None:
    groups = np.array([3, 3, 0, 1, 0, 1, 2])
    for rank in range(3):
        shard = Shard(7, Workers(rank, 3), groups)
        assert not set(groups[shard.label_ids]) & set(np.delete(groups, shard.label_ids))
