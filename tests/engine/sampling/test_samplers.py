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
from xmcbench.engine.sampling import AllLabels, Batch, Clusters, Draw, Embeddings, Nearest, Negatives, Sampler
from xmcbench.engine.sampling.builtin import RECIPES
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import inverse_propensity

DATA = toy_data(ignored=2)
DENSE = DATA.targets.toarray() > 0
IGNORED = DATA.ignore.toarray() > 0
VECTORS = [torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)) for rows in (QUERIES, LABELS)]
SEEN = Embeddings(lambda: VECTORS[0], lambda: VECTORS[1])


def in_batch(data: TrainingData = DATA, *, count: int | None = 1, **changes: Any) -> Sampler:
    return Sampler(data, **({"batch_size": 16, "seed": 3, "positives": Draw(count)} | changes))


def hard(data: TrainingData = DATA, *, per_query: int = 1, shortlist: int = 10, **changes: Any) -> Sampler:
    """A sampler with hard negatives that has seen the embeddings."""
    sampler = in_batch(data, negatives=[Nearest(per_query, shortlist, start=0)], **changes)
    sampler.refresh(0, Embeddings(lambda: VECTORS[0][: len(data.texts)], lambda: VECTORS[1]))
    return sampler


def all_labels(data: TrainingData = DATA, **changes: Any) -> Sampler:
    return in_batch(data, negatives=[AllLabels()], **changes)


def clustered(data: TrainingData = DATA, **changes: Any) -> Sampler:
    """A sampler with hard negatives whose queries are clustered."""
    order, negatives = Clusters(4, start=0, vectors="fresh"), [Nearest(shortlist=10, start=0)]
    sampler = in_batch(data, order=order, negatives=negatives, **changes)
    sampler.refresh(0, Embeddings(lambda: VECTORS[0][: len(data.texts)], lambda: VECTORS[1]))
    return sampler


def nearest(sampler: Sampler) -> Nearest:
    (found,) = sampler.negatives
    assert isinstance(found, Nearest)
    return found


CHOICES: tuple[Any, ...] = ("drawn", "one", "one-by-draws")
MAKERS = [in_batch, hard, all_labels, clustered]
Make = Callable[..., Sampler]


def chosen_pairs(batch: Batch, which: Any) -> list[tuple[int, int]]:
    """The queries and labels of the pairs that this choice of positives trains on."""
    positives = batch.positives
    here = positives.weights(which) > 0
    queries = batch.query_ids[positives.rows_P[here].numpy()]
    return list(zip(queries.tolist(), batch.label_ids[positives.columns_P[here].numpy()].tolist(), strict=True))


def same(one: Batch, other: Batch) -> bool:
    def arrays(batch: Batch) -> list[Any]:
        positives = batch.positives
        return [
            *(batch.query_ids, batch.label_ids, positives.rows_P, positives.columns_P),
            *(positives.weights(which) for which in CHOICES),
        ]

    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=30)
@given(size=st.integers(1, 70), seed=st.integers(0, 50), epoch=st.integers(0, 9), drawn=st.integers(1, 5))
def test_every_true_pair_of_the_pool_is_marked_and_no_other(
    make: Make, size: int, seed: int, epoch: int, drawn: int
) -> None:
    sampler = make(batch_size=size, seed=seed, count=drawn)
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
        for which in CHOICES:
            weights_P = positives.weights(which)
            assert weights_P.unique().tolist() in ([0, 1], [1])
            counts_B = torch.bincount(positives.rows_P, weights_P)
            most_B = torch.from_numpy(DENSE[batch.query_ids].sum(1)).clamp(max=drawn if which == "drawn" else 1)
            assert torch.equal(counts_B, most_B.double())


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


def test_one_positive_of_all_is_about_uniform() -> None:
    query = int(np.argmax(DENSE.sum(1)))
    drawn: Counter[int] = Counter()
    sampler = all_labels(batch_size=QUERIES)
    for epoch in range(400):
        batch = sampler.batch(epoch, 0)
        row = int(np.flatnonzero(batch.query_ids == query)[0])
        here = (batch.positives.rows_P == row) & (batch.positives.weights("one") == 1)
        drawn[int(batch.positives.columns_P[here])] += 1
    assert set(drawn) == set(np.flatnonzero(DENSE[query]))
    assert min(drawn.values()) > 0.7 * 400 / len(drawn)


@pytest.mark.parametrize("by", ["uniform", "propensity"])
@given(wanted=st.one_of(st.none(), st.integers(1, 6)), seed=st.integers(0, 100))
def test_positives_are_drawn_up_to_a_number_without_replacement(by: Any, wanted: int | None, seed: int) -> None:
    draw = in_batch(positives=Draw(wanted, by)).drawn
    queries = np.random.default_rng(seed).permutation(QUERIES)[:20]
    (rows, drawn), ends = draw.pairs(queries, np.random.default_rng(seed)), 0
    assert np.array_equal(rows, np.sort(rows))
    for row, query in enumerate(queries):
        true = np.flatnonzero(DENSE[query])
        starts, ends = ends, ends + (len(true) if wanted is None else min(wanted, len(true)))
        assert len(set(drawn[starts:ends])) == ends - starts
        assert set(drawn[starts:ends]) <= set(true)
        assert set(rows[starts:ends]) <= {row}
    assert ends == len(drawn)


@pytest.mark.parametrize("by", ["uniform", "propensity"])
def test_positives_are_drawn_as_often_as_their_weights_say(by: Any) -> None:
    card = DATA.card.model_copy(update={"propensity_a": 2.0, "propensity_b": 0.1})  # weights far apart
    sampler = in_batch(replace(DATA, card=card), positives=Draw(1, by))
    weights_L = inverse_propensity(DATA.targets, 2.0, 0.1) if by == "propensity" else np.ones(LABELS)
    query = int(np.argmax(DENSE.sum(1)))
    true = np.flatnonzero(DENSE[query])
    _, drawn = sampler.drawn.pairs(np.full(20_000, query), np.random.default_rng(0))
    found = np.bincount(drawn, minlength=LABELS)[true] / len(drawn)
    np.testing.assert_allclose(found, weights_L[true] / weights_L[true].sum(), atol=0.012)


def test_a_second_draw_weighs_what_the_first_left() -> None:
    """Two of three labels are drawn: each as often as the orders in which it is among the first two are likely."""
    sampler = in_batch(positives=Draw(2, "propensity"))
    query = int(np.flatnonzero(DENSE.sum(1) == 3)[0])
    sampler.drawn.weights_L = np.ones(LABELS)
    true, weights = np.flatnonzero(DENSE[query]), np.array([1.0, 2.0, 5.0]) / 8
    sampler.drawn.weights_L[true] = weights
    _, drawn = sampler.drawn.pairs(np.full(20_000, query), np.random.default_rng(0))
    both = [weights[i] * weights[j] / (1 - weights[i]) for i in range(3) for j in range(3) if i != j]
    wanted = [
        sum(both[0:2]) + both[2] + both[4],
        sum(both[2:4]) + both[0] + both[5],
        sum(both[4:6]) + both[1] + both[3],
    ]
    np.testing.assert_allclose(np.bincount(drawn, minlength=LABELS)[true] / 20_000, wanted, atol=0.012)


def test_the_shortlist_holds_the_nearest_that_are_neither_true_nor_ignored() -> None:
    nearest_NK = nearest(hard()).nearest_NK
    assert nearest_NK is not None
    scores = (VECTORS[0] @ VECTORS[1].T).numpy()
    for query in range(QUERIES):
        allowed = [j for j in np.argsort(-scores[query]) if not DENSE[query, j] and not IGNORED[query, j]]
        assert nearest_NK[query].tolist() == allowed[:10]


def test_a_shortlist_is_padded_where_labels_run_out() -> None:
    sampler = hard(shortlist=1000, per_query=1000)
    nearest_NK = nearest(sampler).nearest_NK
    assert nearest_NK is not None
    assert (nearest_NK >= 0).sum(1).tolist() == (~DENSE & ~IGNORED).sum(1).tolist()
    batch = sampler.batch(0, 0)
    free = (~DENSE & ~IGNORED)[batch.query_ids].any(0)
    assert set(np.flatnonzero(free)) <= set(batch.label_ids.tolist())


@settings(max_examples=20)
@given(wanted=st.integers(1, 12), seed=st.integers(0, 50))
def test_negatives_are_drawn_without_replacement_from_the_shortlist(wanted: int, seed: int) -> None:
    sampler = hard(per_query=wanted, batch_size=1, seed=seed)
    nearest_NK = nearest(sampler).nearest_NK
    assert nearest_NK is not None
    for index in range(sampler.num_batches(0)):
        batch = sampler.batch(0, index)
        (query,), pool = batch.query_ids, batch.label_ids
        negatives = [label for label in pool if not DENSE[query, label]]
        assert len(negatives) == min(wanted, 10)
        assert set(negatives) <= set(nearest_NK[query].tolist())
        assert len(pool) == len(negatives) + 1


def test_start_and_every_say_when_the_shortlist_is_made() -> None:
    asked: list[int] = []
    sampler = in_batch(negatives=[Nearest(start=2, every=3)])
    plain = in_batch()
    for epoch in range(10):

        def queries(epoch: int = epoch) -> torch.Tensor:
            asked.append(epoch)
            return VECTORS[0]

        sampler.refresh(epoch, Embeddings(queries, lambda: VECTORS[1]))
        if epoch < 2:
            assert nearest(sampler).nearest_NK is None
            assert len(sampler.batch(epoch, 0).label_ids) <= 16
    assert asked == [2, 5, 8]
    plain.refresh(5, Embeddings(lambda: pytest.fail("in-batch asks for nothing"), lambda: VECTORS[1]))


@pytest.mark.parametrize("make", [hard, clustered])
def test_a_state_goes_round(make: Make) -> None:
    first = make()
    parts = {"negatives": [Nearest(shortlist=10, start=0)]}
    second = in_batch(**parts, order=Clusters(4, start=0, vectors="fresh")) if make is clustered else in_batch(**parts)
    assert second.state() == {}
    assert not same(first.batch(0, 0), second.batch(0, 0))
    second.load_state(first.state())
    assert all(same(first.batch(1, index), second.batch(1, index)) for index in range(first.num_batches(1)))
    second.load_state({})
    assert nearest(second).nearest_NK is None
    assert second.state() == {}


def test_each_source_of_negatives_adds_its_own() -> None:
    """As UniDEC has them, clusters and explicit negatives together."""
    sampler, plain = clustered(), in_batch()
    nearest_NK = nearest(sampler).nearest_NK
    assert nearest_NK is not None
    for index in range(sampler.num_batches(0)):
        batch = sampler.batch(0, index)
        _, drawn = plain.drawn.pairs(batch.query_ids, sampler.rng("batch", 0, index))
        assert set(drawn) < set(batch.label_ids)
        assert set(batch.label_ids) - set(drawn) <= set(nearest_NK[batch.query_ids].ravel())


def test_a_part_serves_one_sampler() -> None:
    part = Nearest()
    in_batch(negatives=[part])
    with pytest.raises(ValueError, match="this Nearest already belongs to a sampler"):
        in_batch(negatives=[part])


@given(seed=st.integers(0, 99), added=st.integers(0, LABELS))
def test_a_wider_pool_has_its_true_pairs_and_the_chosen_ones_of_before(seed: int, added: int) -> None:
    sampler = in_batch(seed=seed)
    batch = sampler.batch(0, 0)
    more = np.random.default_rng(seed).permutation(LABELS)[:added]
    wide = sampler.with_pool(batch, np.union1d(batch.label_ids, more))
    marked = np.zeros((len(batch.query_ids), len(wide.label_ids)), int)
    np.add.at(marked, (wide.positives.rows_P.numpy(), wide.positives.columns_P.numpy()), 1)
    assert np.array_equal(marked, DENSE[np.ix_(wide.query_ids, wide.label_ids)])
    for which in CHOICES:
        before, after = (chosen_pairs(each, which) for each in (batch, wide))
        assert before == after


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.name for recipe in RECIPES])
def test_a_named_sampler_makes_batches_of_its_own_parts(recipe: Any) -> None:
    one, other = (recipe(DATA, batch_size=16, seed=3) for _ in range(2))
    assert same(one.batch(0, 0), other.batch(0, 0))
    assert not set(map(id, one.parts)) & set(map(id, other.parts))


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
        value = getattr(losses, loss)(queries[[row]], labels, alone, alone.weights("one"), temperature=1.0)
    value.backward()
    assert value.item() > 0
    assert labels.grad is not None
    assert labels.grad[-1] @ queries[row] < 0  # a step along -grad raises this score,
    assert all(labels.grad[j] @ queries[row] > 0 for j in range(len(batch.label_ids) - 1))  # and lowers the others


def only(batch: Batch, row: int) -> dict[str, torch.Tensor]:
    """The fields of the positives of one query of the batch."""
    mine = batch.positives.rows_P == row
    columns, one = batch.positives.columns_P[mine], batch.positives.weights("one")[mine]
    return {"rows_P": torch.zeros_like(columns), "columns_P": columns, "num_queries": 1, "chosen": {"one": one}}


class Counts(Negatives):
    """Keeps a number, an array and a tensor."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"number": 3, "array": np.arange(2), "tensor": torch.ones(2)}

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.empty(0, np.int64)

    def state(self) -> dict[str, Any]:
        return self.kept

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.kept = state


def test_the_state_of_a_part_is_restored_as_tensors() -> None:
    first, second = (Sampler(DATA, batch_size=5, seed=0, negatives=[Counts()]) for _ in range(2))
    second.load_state(first.state())
    found = second.negatives[0].state()
    assert {name: own.tolist() for name, own in found.items()} == {"number": 3, "array": [0, 1], "tensor": [1.0, 1.0]}
