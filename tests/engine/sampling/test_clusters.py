"""Clusters are balanced and of like vectors; batches are made of them, when the schedule says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from many_workers import on_workers
from torch import Tensor
from torch.nn.functional import normalize
from toy import QUERIES, UNLABELLED, toy_data

from xmcbench.engine.sampling import Clusters, Embeddings, Sampler, balanced_clusters, clusters
from xmcbench.engine.sampling.clusters import _of_length_1
from xmcbench.engine.workers import Workers

DATA = toy_data()
DRAWN = QUERIES - len(UNLABELLED)


def vectors(number: int, seed: int = 0, dimension: int = 6) -> Tensor:
    return torch.randn(number, dimension, generator=torch.Generator().manual_seed(seed))


def embeddings(queries_ND: Tensor, **changes: Any) -> Embeddings:
    return Embeddings(lambda: queries_ND, lambda: pytest.fail("clusters need no labels"), **changes)


def sampler(order: Clusters, seed: int = 3, batch_size: int = 16) -> Sampler:
    return Sampler(DATA, batch_size=batch_size, seed=seed, order=order)


def show_all(plan: Sampler, queries_ND: Tensor) -> None:
    """Train an epoch on the rows of `queries_ND`."""
    for index in range(plan.num_batches(0)):
        batch = plan.batch(0, index)
        plan.observe(batch, queries_ND[batch.query_ids], torch.empty(len(batch.label_ids), 6))


# Clustering -------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(number=st.integers(1, 90), power=st.integers(0, 7), seed=st.integers(0, 99), alike=st.sampled_from([1, 3, 90]))
def test_clusters_partition_and_their_sizes_differ_by_at_most_one(
    number: int, power: int, seed: int, alike: int
) -> None:
    """Also where most vectors are the same, and every split is a tie."""
    vectors_ND = vectors(number, seed)[torch.arange(number) % alike]
    clusters_N = balanced_clusters(vectors_ND, 2**power, np.random.default_rng(seed))
    assert clusters_N.shape == (number,)
    sizes = np.bincount(clusters_N, minlength=2**power)
    assert len(sizes) == 2**power or len(sizes) == number
    assert sizes.max() - sizes.min() <= 1


def test_the_same_seed_gives_the_same_clusters_and_length_is_nothing_to_them() -> None:
    vectors_ND = vectors(300)
    one, same, longer, other = (
        balanced_clusters(each, 32, np.random.default_rng(seed))
        for each, seed in ((vectors_ND, 0), (vectors_ND, 0), (vectors_ND * 8, 0), (vectors_ND, 1))
    )
    assert np.array_equal(one, same)
    assert np.array_equal(one, longer)
    assert not np.array_equal(one, other)


def test_vectors_of_a_large_dataset_are_clustered_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors_ND = vectors(700, 3)
    rows = np.flatnonzero(np.arange(700) % 7)
    whole = balanced_clusters(vectors_ND[rows], 64, np.random.default_rng(0))
    given = vectors_ND.clone()
    monkeypatch.setattr(clusters, "AT_ONCE", 100 * vectors_ND.shape[1])
    assert np.array_equal(balanced_clusters(vectors_ND, 64, np.random.default_rng(0), rows), whole)
    assert torch.equal(vectors_ND, given)
    copied: list[int] = []
    monkeypatch.setattr(clusters, "_of_length_1", lambda rows: copied.append(rows.numel()) or _of_length_1(rows))
    balanced_clusters(vectors_ND, 64, np.random.default_rng(0))
    assert max(copied) == copied[0] == vectors_ND.numel()  # the first split; then one half, one quarter, ...
    assert copied[1:3] == [vectors_ND.numel() // 2] * 2
    assert max(copied[7:]) <= 100 * vectors_ND.shape[1]


def test_groups_that_are_there_are_found() -> None:
    """Eight tight groups of 16, in random order: random starts may split two, and no more."""
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 16))
    vectors_ND = normalize(vectors(8, 1, 64), dim=1)[groups] + 0.01 * vectors(128, 2, 64)
    clusters_N = balanced_clusters(vectors_ND, 8, np.random.default_rng(0))
    assert sum(len(set(groups[clusters_N == cluster])) == 1 for cluster in range(8)) >= 4


def reference(vectors_ND: np.ndarray, starts: tuple[int, int]) -> np.ndarray:
    """One split, member by member in float64: which are in the second half."""
    centres = vectors_ND[list(starts)]
    fit, half = -np.inf, len(vectors_ND) // 2
    while True:
        lean = [float(v @ centres[1] - v @ centres[0]) for v in vectors_ND]
        order = sorted(range(len(lean)), key=lambda place: lean[place])
        halves = [vectors_ND[order[:half]], vectors_ND[order[half:]]]
        centres = np.stack([members.sum(0) / np.linalg.norm(members.sum(0)) for members in halves])
        before, fit = fit, np.mean([v @ c for members, c in zip(halves, centres, strict=True) for v in members])
        if fit - before < 1e-4:
            return np.isin(np.arange(len(lean)), order[half:])


@pytest.mark.parametrize("number", [3, 9, 40, 101])
def test_a_split_is_that_of_the_definition(number: int) -> None:
    for seed in range(5):
        vectors_ND = normalize(vectors(number, seed).double(), dim=1)
        random = np.random.default_rng(seed).random(2)
        one = int(random[0] * number)
        starts = one, (one + 1 + int(random[1] * (number - 1))) % number
        found = balanced_clusters(vectors_ND, 2, np.random.default_rng(seed)) == 1
        assert np.array_equal(found, reference(vectors_ND.numpy(), starts))


def test_other_numbers_of_clusters_are_refused() -> None:
    for number in (0, 3, 12):
        with pytest.raises(ValueError, match=f"expected a power of two as number of clusters, found {number}"):
            balanced_clusters(vectors(20), number, np.random.default_rng(0))


# Batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_is_clusters_laid_end_to_end(seed: int) -> None:
    order = Clusters(4, start=0, vectors="fresh")
    plan = sampler(order, seed)
    plan.refresh(0, embeddings(vectors(QUERIES)))
    assert order.clusters_Q is not None
    cluster_of = dict(zip(plan.query_ids.tolist(), order.clusters_Q.tolist(), strict=True))
    for epoch in (0, 1):
        visited = [cluster_of[query] for query in plan.arranged(epoch).tolist()]
        changes = 1 + sum(one != other for one, other in pairwise(visited))
        assert changes == len(set(visited)) == 16  # 57 queries in clusters of at most 4
    assert not np.array_equal(plan.arranged(0), plan.arranged(1))
    batches = [plan.batch(1, index).query_ids for index in range(plan.num_batches(1))]
    assert np.array_equal(np.concatenate(batches), plan.arranged(1))


@given(size=st.integers(1, 40), batch_size=st.integers(1, 60), epoch=st.integers(0, 5), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_an_epoch_of_clusters_visits_each_labelled_query_once(
    size: int, batch_size: int, epoch: int, seed: int
) -> None:
    plan = sampler(Clusters(size, start=0, growth=(2, 4), every=1, vectors="fresh"), seed, batch_size)
    plan.refresh(epoch, embeddings(vectors(QUERIES, seed)))
    visited = np.concatenate([plan.batch(epoch, index).query_ids for index in range(plan.num_batches(epoch))])
    assert sorted(visited.tolist()) == sorted(set(range(QUERIES)) - set(UNLABELLED))


def test_larger_clusters_make_batches_of_likes() -> None:
    def likeness(order: Clusters | None) -> float:
        plan = Sampler(DATA, batch_size=8, seed=0, order=order)
        plan.refresh(0, embeddings(vectors(QUERIES, 1, 3)))
        unit_ND = normalize(vectors(QUERIES, 1, 3), dim=1)
        places = [(epoch, index) for epoch in range(20) for index in range(7)]  # without an epoch's last, of one query
        batches = [unit_ND[plan.batch(*place).query_ids] for place in places]
        return float(np.mean([(batch @ batch.T).mean().item() for batch in batches]))

    shuffled, pairs, eights = (
        likeness(order) for order in (None, Clusters(2, 0, vectors="fresh"), Clusters(8, 0, vectors="fresh"))
    )
    assert shuffled < pairs < eights


def test_the_schedule_says_when_and_how_large() -> None:
    order = Clusters(2, start=2, every=3, growth=(5, 6), vectors="fresh")
    plan, clustered, stages = sampler(order), [], []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        stages.append(name)
        yield

    for epoch in range(9):
        asked: list[int] = []
        queries = lambda asked=asked: asked.append(1) or vectors(QUERIES)  # noqa: E731
        plan.refresh(epoch, Embeddings(queries, lambda: vectors(1), stage=stage))
        if asked:
            assert order.clusters_Q is not None
            clustered.append((epoch, int(order.clusters_Q.max()) + 1))
        assert epoch >= 2 or order.clusters_Q is None
    # 57 queries in clusters of 2, 4 and, as two growths have passed, 8.
    assert clustered == [(2, 32), (5, 16), (8, 8)]
    assert stages == ["cluster"] * 3


def test_growth_is_that_of_the_paper() -> None:
    """For 294,805 queries (LF-AmazonTitles-131K): 2.2 a cluster, 4.5 from epoch 10, 576 from epoch 200."""
    order = Clusters(4, start=10, growth=(10, 25, 50, 75, 100, 125, 150, 200))
    plan = sampler(order)
    plan.query_ids = np.arange(294_805)
    sizes = [round(294_805 / order.num_clusters(epoch), 1) for epoch in (0, 9, 10, 25, 199, 200)]
    assert sizes == [2.2, 2.2, 4.5, 9.0, 287.9, 575.8]


# The bank ---------------------------------------------------------------------------------------------------------


def test_a_bank_clusters_what_training_saw_and_asks_for_nothing() -> None:
    seen_ND = vectors(QUERIES, 5).half().float()
    banked, fresh = Clusters(4, start=1), Clusters(4, start=1, vectors="fresh")
    plan, other = sampler(banked), sampler(fresh)
    assert plan.observes
    assert not other.observes
    show_all(plan, vectors(QUERIES, 6))  # and what was seen before is forgotten
    show_all(plan, seen_ND)
    plan.refresh(1, Embeddings(lambda: pytest.fail("a bank asks for nothing"), lambda: vectors(1)))
    other.refresh(1, embeddings(seen_ND))
    assert banked.clusters_Q is not None
    assert np.array_equal(banked.clusters_Q, fresh.clusters_Q)


def test_a_bank_goes_round_and_before_it_is_full_there_is_nothing_to_cluster() -> None:
    first, second = (sampler(Clusters(4, start=1, every=1)) for _ in range(2))
    show_all(first, vectors(QUERIES))
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    for plan in (first, second):
        plan.refresh(1, embeddings(torch.empty(0)))
    assert np.array_equal(first.arranged(1), second.arranged(1))
    assert {name: tensor.dtype for name, tensor in second.state().items()} == {
        "0.clusters": torch.int64,
        "0.bank": torch.float16,
    }
    with pytest.raises(ValueError, match="the bank is empty before the first epoch"):
        Clusters(start=0)


def shared(workers: Workers) -> list[int]:
    """The clusters on this worker, whose vectors differ from the others' as by rounding, and more."""
    order = Clusters(4, start=0, vectors="fresh")
    plan = sampler(order)
    plan.refresh(0, embeddings(vectors(QUERIES, seed=workers.rank), workers=workers))
    assert order.clusters_Q is not None
    return order.clusters_Q.tolist()


def test_all_workers_have_the_clusters_of_the_first() -> None:
    found = on_workers(3, shared)
    assert found[0] == found[1] == found[2]
