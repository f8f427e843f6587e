"""The embedding cache: which labels it adds, and what it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from many_workers import on_workers
from torch import Tensor
from toy import LABELS, QUERIES, toy_data

from xmcbench import losses
from xmcbench.engine.sampling import AllLabels, Batch, Cached, Embeddings, Sampler
from xmcbench.engine.workers import Workers
from xmcbench.errors import XMCBenchError

DATA = toy_data()
# Numbers that float16 holds exactly: the cache keeps what it is given.
QUERY_ND, LABEL_LD = (
    torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)).half().float() for rows in (QUERIES, LABELS)
)


def filled(part: Cached, seed: int = 3) -> Sampler:
    sampler = Sampler(DATA, batch_size=8, seed=seed, negatives=[part])
    sampler.refresh(0, Embeddings(lambda: QUERY_ND, lambda: LABEL_LD))
    return sampler


def full_gradient(batch: Batch, queries_BD: Tensor, labels_LD: Tensor, temperature: float) -> Tensor:
    """[L] lengths of the labels' gradients from the decoupled softmax over all labels."""
    plan = Sampler(DATA, batch_size=8, seed=3, negatives=[AllLabels()])
    whole = plan.with_pool(batch, np.arange(LABELS))
    labels_LD = labels_LD.clone().requires_grad_()
    true = whole.positives
    losses.decoupled_softmax(queries_BD, labels_LD, true, true.every(), temperature=temperature).backward()
    assert labels_LD.grad is not None
    return labels_LD.grad.norm(dim=1)


@settings(max_examples=25)
@given(count=st.integers(1, LABELS + 5), seed=st.integers(0, 99), index=st.integers(0, 7))
def test_the_labels_added_are_those_with_the_longest_gradients(count: int, seed: int, index: int) -> None:
    sampler = filled(Cached(count), seed)
    batch = sampler.batch(0, index)
    # The pool's own vectors are newer than the cache's.
    queries_BD, new_SD = QUERY_ND[batch.query_ids], 2 * LABEL_LD[batch.label_ids]
    labels_LD = LABEL_LD.clone()
    labels_LD[batch.label_ids] = new_SD
    lengths = full_gradient(batch, queries_BD, labels_LD, 0.05)
    pool = sampler.extend_pool(batch, queries_BD, new_SD)
    assert np.array_equal(pool, np.unique(pool))
    added = np.setdiff1d(pool, batch.label_ids)
    assert len(added) == min(count, LABELS - len(batch.label_ids))
    assert set(batch.label_ids) <= set(pool)
    others = np.setdiff1d(np.arange(LABELS), pool)
    if len(others):
        assert lengths[added].min() >= lengths[others].max() - 1e-5


def test_the_loss_says_what_a_gradient_is() -> None:
    def bce(queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
        return losses.binary_cross_entropy(queries_BD, labels_SD, batch.positives, temperature=5.0)

    pools = []
    for loss in (None, bce):
        sampler = filled(Cached(6, loss))
        batch = sampler.batch(0, 0)
        pools.append(sampler.extend_pool(batch, QUERY_ND[batch.query_ids], LABEL_LD[batch.label_ids]).tolist())
    assert pools[0] != pools[1]


def test_the_cache_follows_what_is_trained_on() -> None:
    part = Cached(4)
    sampler = filled(part)
    batch = sampler.batch(0, 0)
    assert part.cache_LD is not None
    assert torch.equal(part.cache_LD.float(), LABEL_LD)
    sampler.observe(batch, QUERY_ND[batch.query_ids], torch.ones(len(batch.label_ids), 5))
    wanted = LABEL_LD.clone()
    wanted[batch.label_ids] = 1
    assert torch.equal(part.cache_LD.float(), wanted)
    sampler.refresh(1, Embeddings(lambda: QUERY_ND, lambda: pytest.fail("the cache is filled once")))
    again = Cached(4)
    other = Sampler(DATA, batch_size=8, seed=3, negatives=[again])
    assert other.state() == {}
    other.load_state(sampler.state())
    assert again.cache_LD is not None
    assert torch.equal(again.cache_LD, part.cache_LD)


def test_an_empty_cache_is_told() -> None:
    sampler = Sampler(DATA, batch_size=8, seed=3, negatives=[Cached(4)])
    batch = sampler.batch(0, 0)
    with pytest.raises(XMCBenchError, match="the label cache is empty: refresh the sampler"):
        sampler.extend_pool(batch, QUERY_ND[batch.query_ids], LABEL_LD[batch.label_ids])


def added(_workers: Workers) -> list[list[int]]:
    sampler = filled(Cached(6))
    batches = [sampler.batch(0, index) for index in range(3)]
    return [
        sampler.extend_pool(batch, QUERY_ND[batch.query_ids], LABEL_LD[batch.label_ids]).tolist() for batch in batches
    ]


def test_any_number_of_workers_adds_the_same() -> None:
    wanted: Any = added(Workers())
    for size in (2, 3):
        assert on_workers(size, added) == [wanted] * size


def test_a_label_that_is_true_comes_in_as_a_positive() -> None:
    """What a query's own label outside the pool would learn is a gradient like another's."""
    sampler = filled(Cached(LABELS))
    batch = sampler.batch(0, 0)
    pool = sampler.extend_pool(batch, QUERY_ND[batch.query_ids], LABEL_LD[batch.label_ids])
    wide = sampler.with_pool(batch, pool)
    assert len(wide.positives.rows_P) == DATA.targets[batch.query_ids].nnz > len(batch.positives.rows_P)
    assert replace(wide, label_ids=batch.label_ids, positives=batch.positives) == batch
