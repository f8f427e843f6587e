"""The positives that a loss trains on, in batches where most labels of a pool are true by chance.

Ten labels, some far more frequent than others: a batch draws most of them, and a query's labels are in its pool whether
or not they were drawn for it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2
from toy import toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling import AllLabels, Batch, Draw, Sampler
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import Workers
from xmcbench.evaluation import inverse_propensity

QUERIES, LABELS, EPOCHS = 40, 10, 250
LEAST_P = 1e-4
Chosen = tuple[int, ...]  # labels of a query, ascending


def skewed() -> TrainingData:
    """Queries with one to five labels, of which the first are true for almost all of them."""
    rng = np.random.default_rng(5)
    targets = (rng.random((QUERIES, LABELS)) < 0.8 / (1 + np.arange(LABELS))).astype(np.float32)
    targets[np.arange(QUERIES), rng.integers(LABELS, size=QUERIES)] = 1
    toy = toy_data()
    card = toy.card.model_copy(update={"propensity_a": 1.5, "propensity_b": 0.5})  # weights far apart
    empty = sp.csr_array(targets.shape, dtype=np.float32)
    return replace(
        toy, card=card, texts=toy.texts[:QUERIES], label_texts=toy.label_texts[:LABELS],
        targets=sp.csr_array(targets), ignore=empty,
    )  # fmt: skip


DATA = skewed()
TRUE: list[list[int]] = [np.flatnonzero(row).tolist() for row in DATA.targets.toarray()]


def trained_on(batch: Batch, which: Any, num_workers: int) -> dict[int, Chosen]:
    """The labels that the losses of `num_workers` workers train on, by query. Every weight is 0 or 1."""
    found = defaultdict(list)
    for rank in range(num_workers):
        share = Shard(LABELS, Workers(rank, num_workers)).share(batch)
        weights_P = share.positives.weights(which).numpy()
        assert set(weights_P) <= {0, 1}
        rows, columns = (
            places.numpy()[weights_P > 0] for places in (share.positives.rows_P, share.positives.columns_P)
        )
        for query, label in zip(batch.query_ids[rows], share.label_ids[columns], strict=True):
            found[int(query)].append(int(label))
    return {query: tuple(sorted(labels)) for query, labels in found.items()}


def chance(found: dict[tuple[int, Chosen], float], wanted: dict[tuple[int, Chosen], float]) -> float:
    """How probable it is that counts lie this far from those wanted: the p-value of a chi-square test."""
    assert found.keys() <= wanted.keys()
    queries = {query for query, _ in wanted}
    statistic = sum((found.get(key, 0.0) - count) ** 2 / count for key, count in wanted.items())
    return float(chi2.sf(statistic, len(wanted) - len(queries)))


def drawn_sets(query: int, by: str, count: int) -> dict[Chosen, float]:
    """The probability of each set of labels: one after another, by weight among those that are left."""
    weights_L = inverse_propensity(DATA.targets, 1.5, 0.5) if by == "propensity" else np.ones(LABELS)
    size = min(count, len(TRUE[query]))
    chances = dict.fromkeys(combinations(TRUE[query], size), 0.0)
    for order in permutations(TRUE[query], size):
        left, probability = list(TRUE[query]), 1.0
        for label in order:
            probability *= weights_L[label] / weights_L[left].sum()
            left.remove(label)
        chances[tuple(sorted(order))] += probability
    return chances


@cache
def batches(size: int, by: Any = "uniform", count: int = 1, *, everything: bool = False) -> list[Batch]:
    negatives = [AllLabels()] if everything else []
    sampler = Sampler(DATA, batch_size=size, seed=2, positives=Draw(count, by), negatives=negatives)
    return [sampler.batch(epoch, index) for epoch in range(EPOCHS) for index in range(sampler.num_batches(epoch))]


def counted(batches: list[Batch], which: Any) -> dict[tuple[int, Chosen], float]:
    found: dict[tuple[int, Chosen], float] = defaultdict(float)
    for batch in batches:
        for key in trained_on(batch, which, 1).items():
            found[key] += 1
    return found


@pytest.mark.parametrize("size", [2, 8, QUERIES])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("by", ["uniform", "propensity"])
def test_drawn_positives_have_the_draws_distribution_at_any_batch_size(by: str, count: int, size: int) -> None:
    wanted = {
        (query, labels): EPOCHS * probability
        for query in range(QUERIES)
        for labels, probability in drawn_sets(query, by, count).items()
    }
    made = batches(size, by, count)
    assert chance(counted(made, "drawn"), wanted) > LEAST_P
    if (count, size) == (1, 8):  # one of the labels in the pool is another distribution: the test sees it
        assert chance(counted(made, "one"), wanted) < 1e-12


@pytest.mark.parametrize(("size", "everything"), [(3, False), (8, False), (QUERIES, False), (8, True)])
@pytest.mark.parametrize("by", ["uniform", "propensity"])
@pytest.mark.parametrize("which", ["one", "one-by-draws"])
def test_one_positive_of_the_pool_is_uniform_or_by_draws(which: str, by: str, size: int, everything: bool) -> None:
    """Public code has a column for each query: a label that n queries drew has n columns."""
    made = batches(size, by, everything=everything)
    wanted: dict[tuple[int, Chosen], float] = defaultdict(float)
    for batch in made:
        columns = [labels[0] for labels in trained_on(batch, "drawn", 1).values()]
        for query in batch.query_ids.tolist():
            pool = [label for label in TRUE[query] if label in batch.label_ids]
            weights = [columns.count(label) if which == "one-by-draws" else 1 for label in pool]
            for label, weight in zip(pool, weights, strict=True):
                if weight:
                    wanted[query, (label,)] += weight / sum(weights)
    assert chance(counted(made, which), wanted) > LEAST_P


@pytest.mark.parametrize("which", ["drawn", "one", "one-by-draws", "all"])
@pytest.mark.parametrize("count", [1, 2])
def test_workers_train_on_the_positives_of_one(count: int, which: str) -> None:
    for batch in batches(8, "propensity", count)[:50]:
        found = [trained_on(batch, which, num_workers) for num_workers in (1, 2, 3)]
        assert found[0] == found[1] == found[2]
        if which == "all":
            pool = set(batch.label_ids.tolist())
            assert found[0] == {query: tuple(sorted(pool & set(TRUE[query]))) for query in batch.query_ids.tolist()}
