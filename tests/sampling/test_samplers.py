"""Samplers: what a batch holds, and that it depends on seed, epoch and index alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import LABELS, QUERIES, UNLABELLED, toy_data

from xmcbench import losses
from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.sampling import AllLabels, Batch, Embeddings, HardNegatives, InBatch, Sampler

DATA = toy_data(ignored=2)
DENSE = DATA.targets.toarray() > 0
IGNORED = DATA.ignore.toarray() > 0
VECTORS = [torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)) for rows in (QUERIES, LABELS)]
SEEN = Embeddings(lambda: VECTORS[0], lambda: VECTORS[1])


def in_batch(data: TrainingData = DATA, **changes: Any) -> InBatch:
    return InBatch(data, **({"batch_size": 16, "seed": 3} | changes))


def hard(data: TrainingData = DATA, **changes: Any) -> HardNegatives:
    """A hard-negative sampler that has seen the embeddings."""
    sampler = HardNegatives(data, **({"batch_size": 16, "seed": 3, "start": 0, "shortlist": 10} | changes))
    sampler.refresh(0, Embeddings(lambda: VECTORS[0][: len(data.texts)], lambda: VECTORS[1]))
    return sampler


def all_labels(data: TrainingData = DATA, **changes: Any) -> AllLabels:
    return AllLabels(data, **({"batch_size": 16, "seed": 3} | changes))


MAKERS = [in_batch, hard, all_labels]
Make = Callable[..., Sampler]


def same(one: Batch, other: Batch) -> bool:
    def arrays(batch: Batch) -> list[Any]:
        positives = batch.positives
        return [batch.query_ids, batch.label_ids, positives.rows_P, positives.columns_P, positives.sampled_B]

    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=30)
@given(size=st.integers(1, 70), seed=st.integers(0, 50), epoch=st.integers(0, 9), drawn=st.integers(1, 5))
def test_every_true_pair_of_the_pool_is_marked_and_no_other(
    make: Make, size: int, seed: int, epoch: int, drawn: int
) -> None:
    several = {} if make is all_labels else {"positives_per_query": drawn}
    sampler = make(batch_size=size, seed=seed, **several)
    for index in range(sampler.num_batches(epoch)):
        batch = sampler.batch(epoch, index)
        pool, positives = batch.label_ids, batch.positives
        assert np.array_equal(pool, np.unique(pool))
        assert 0 <= pool[0] <= pool[-1] < LABELS
        assert (positives.num_queries, positives.num_labels) == (len(batch.query_ids), len(pool))
        marked = np.zeros((len(batch.query_ids), len(pool)), int)
        np.add.at(marked, (positives.rows_P.numpy(), positives.columns_P.numpy()), 1)
        assert np.array_equal(marked, DENSE[np.ix_(batch.query_ids, pool)])  # none missing, none twice, last included
        assert bool((positives.rows_P.diff() >= 0).all())
        assert bool((positives.sampled_B >= 0).all())  # at least one positive of each query is in its pool
        assert torch.equal(positives.rows_P[positives.sampled_B], torch.arange(len(batch.query_ids)))


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=30)
@given(size=st.integers(1, 70), epoch=st.integers(0, 9))
def test_an_epoch_visits_each_labelled_query_once(make: Make, size: int, epoch: int) -> None:
    sampler = make(batch_size=size)
    visited = [int(q) for index in range(sampler.num_batches(epoch)) for q in sampler.batch(epoch, index).query_ids]
    assert sorted(visited) == sorted(set(range(QUERIES)) - set(UNLABELLED))


@pytest.mark.parametrize("make", MAKERS)
def test_batches_are_random_access(make: Make) -> None:
    one, other = make(), make()
    in_order = [one.batch(epoch, index) for epoch in range(3) for index in range(one.num_batches(epoch))]
    backwards = [other.batch(epoch, index) for epoch in (2, 1, 0) for index in reversed(range(other.num_batches(0)))]
    assert all(same(a, b) for a, b in zip(in_order, reversed(backwards), strict=True))
    assert not same(in_order[0], in_order[4])
    assert not np.array_equal(make(seed=4).batch(0, 0).query_ids, in_order[0].query_ids)


def test_the_sampled_positive_is_about_uniform() -> None:
    query = int(np.argmax(DENSE.sum(1)))
    drawn: Counter[int] = Counter()
    sampler = all_labels(batch_size=QUERIES)
    for epoch in range(400):
        batch = sampler.batch(epoch, 0)
        row = int(np.flatnonzero(batch.query_ids == query)[0])
        drawn[int(batch.positives.columns_P[batch.positives.sampled_B[row]])] += 1
    assert set(drawn) == set(np.flatnonzero(DENSE[query]))
    assert min(drawn.values()) > 0.7 * 400 / len(drawn)


@given(wanted=st.integers(1, 6), seed=st.integers(0, 100))
def test_positives_are_drawn_without_replacement(wanted: int, seed: int) -> None:
    for query in range(QUERIES):
        true = np.flatnonzero(DENSE[query])
        drawn = in_batch(positives_per_query=wanted).drawn_positives(np.array([query]), np.random.default_rng(seed))
        assert len(drawn) == len(set(drawn.tolist())) == min(wanted, len(true))
        assert set(drawn) <= set(true)


def test_each_positive_is_drawn_as_often() -> None:
    query, rng = int(np.argmax(DENSE.sum(1))), np.random.default_rng(0)
    counts = Counter(int(in_batch().drawn_positives(np.array([query]), rng)[0]) for _ in range(400))
    assert set(counts) == set(np.flatnonzero(DENSE[query]))
    assert min(counts.values()) > 0.7 * 400 / len(counts)


def test_the_shortlist_holds_the_nearest_that_are_neither_true_nor_ignored() -> None:
    nearest = hard().nearest_NK
    assert nearest is not None
    scores = (VECTORS[0] @ VECTORS[1].T).numpy()
    for query in range(QUERIES):
        allowed = [j for j in np.argsort(-scores[query]) if not DENSE[query, j] and not IGNORED[query, j]]
        assert nearest[query].tolist() == allowed[:10]


def test_a_shortlist_is_padded_where_labels_run_out() -> None:
    sampler = hard(shortlist=1000, negatives_per_query=1000)
    assert sampler.nearest_NK is not None
    assert (sampler.nearest_NK >= 0).sum(1).tolist() == (~DENSE & ~IGNORED).sum(1).tolist()
    batch = sampler.batch(0, 0)
    free = (~DENSE & ~IGNORED)[batch.query_ids].any(0)
    assert set(np.flatnonzero(free)) <= set(batch.label_ids.tolist())


@settings(max_examples=20)
@given(wanted=st.integers(1, 12), seed=st.integers(0, 50))
def test_negatives_are_drawn_without_replacement_from_the_shortlist(wanted: int, seed: int) -> None:
    sampler = hard(negatives_per_query=wanted)
    assert sampler.nearest_NK is not None
    for query in sampler.query_ids:
        pool = sampler.pool(np.array([query]), np.random.default_rng(seed))
        negatives = [label for label in pool if not DENSE[query, label]]
        assert len(negatives) == min(wanted, 10)
        assert set(negatives) <= set(sampler.nearest_NK[query].tolist())
        assert len(pool) == len(negatives) + 1


def test_start_and_every_say_when_the_shortlist_is_made() -> None:
    asked: list[int] = []
    sampler = HardNegatives(DATA, batch_size=16, seed=3, start=2, every=3)
    plain = in_batch()
    for epoch in range(10):

        def queries(epoch: int = epoch) -> torch.Tensor:
            asked.append(epoch)
            return VECTORS[0]

        sampler.refresh(epoch, Embeddings(queries, lambda: VECTORS[1]))
        if epoch < 2:
            assert sampler.nearest_NK is None
            assert len(sampler.batch(epoch, 0).label_ids) <= 16
    assert asked == [2, 5, 8]
    plain.refresh(5, Embeddings(lambda: pytest.fail("in-batch asks for nothing"), lambda: VECTORS[1]))


def test_a_state_goes_round() -> None:
    assert HardNegatives(DATA, batch_size=16, seed=3).state() == {}
    first = hard()
    second = HardNegatives(DATA, batch_size=16, seed=3, start=0, shortlist=10)
    assert not same(first.batch(0, 0), second.batch(0, 0))
    second.load_state(first.state())
    assert all(same(first.batch(1, index), second.batch(1, index)) for index in range(first.num_batches(1)))
    second.load_state({})
    assert second.nearest_NK is None


def test_all_labels_are_in_the_pool() -> None:
    assert all_labels().batch(0, 1).label_ids.tolist() == list(range(LABELS))


def test_data_without_a_label_are_refused() -> None:
    empty = replace(DATA, targets=sp.csr_array(DATA.targets.shape, dtype=np.float32))
    with pytest.raises(XMCBenchError, match="toy: no training query has a label"):
        in_batch(empty)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("loss", ["softmax", "decoupled_softmax", "binary_cross_entropy"])
def test_the_last_label_of_a_pool_is_a_positive(make: Make, loss: str) -> None:
    """In DEXML's public code it never is: a query with no other positive has a loss of exactly 0 and learns nothing."""
    targets = np.zeros((2, LABELS), np.float32)
    targets[0, LABELS - 1] = targets[1, 0] = 1
    data = replace(DATA, texts=DATA.texts[:2], targets=sp.csr_array(targets), ignore=sp.csr_array(0 * targets))
    vectors = [torch.ones(2, 4), torch.ones(LABELS, 4)]
    sampler = make(data, batch_size=2)
    sampler.refresh(0, Embeddings(lambda: vectors[0], lambda: vectors[1]))
    batch = sampler.batch(0, 0)
    assert batch.label_ids[-1] == LABELS - 1
    queries = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randn(len(batch.label_ids), 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    row = int(np.flatnonzero(batch.query_ids == 0)[0])
    alone = replace(batch.positives, **only(batch, row))
    if loss == "binary_cross_entropy":
        value = losses.binary_cross_entropy(queries[[row]], labels, alone, temperature=1.0)
    else:
        value = getattr(losses, loss)(queries[[row]], labels, alone, alone.one_sampled(), temperature=1.0)
    value.backward()
    assert value.item() > 0
    assert labels.grad is not None
    assert labels.grad[-1] @ queries[row] < 0  # a step along -grad raises this score,
    assert all(labels.grad[j] @ queries[row] > 0 for j in range(len(batch.label_ids) - 1))  # and lowers the others


def only(batch: Batch, row: int) -> dict[str, torch.Tensor]:
    """The fields of the positives of one query of the batch."""
    mine = batch.positives.rows_P == row
    columns = batch.positives.columns_P[mine]
    return {"rows_P": torch.zeros_like(columns), "columns_P": columns, "sampled_B": torch.zeros(1, dtype=torch.int64)}
