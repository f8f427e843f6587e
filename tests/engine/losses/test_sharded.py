"""Labels dealt out over 1 to 4 processes: the parts sum to the one-worker loss, and every gradient is its own.

What one worker computes equals the equations (`test_losses`). Legend: B queries, S labels, D dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from many_workers import on_workers
from torch import Tensor

from xmcbench import losses
from xmcbench.engine.losses import Positives, score_sums
from xmcbench.engine.workers import Workers

from . import reference
from .cases import CASES, embeddings, outcome

B, S, D, TAU = 6, 13, 4, 0.3
SHARDS = {
    "one": [13],
    "two": [9, 4],
    "two, one empty": [13, 0],
    "three, the first empty": [0, 6, 7],
    "four": [3, 4, 1, 5],
    "four, one empty": [5, 1, 0, 7],
}
Outcomes = dict[str, tuple[np.ndarray, ...]]


def truth_for(sizes: list[int]) -> np.ndarray:
    """Query 0 has the last label of each shard, query 1 none, query 2 the last of all alone, query 3 all labels."""
    truth = np.random.default_rng(3).random((B, S)) < 0.25
    truth[:4] = False
    truth[0, [end - 1 for end in np.cumsum(sizes) if end]] = True
    truth[2, -1] = True
    truth[3] = True
    return truth


def share(whole: Positives, start: int, stop: int, workers: Workers) -> Positives:
    """The pairs of the labels from `start` to `stop`."""
    mine = (whole.columns_P >= start) & (whole.columns_P < stop)
    chosen = {which: weights_P[mine] for which, weights_P in whole.chosen.items()}
    return Positives(whole.rows_P[mine], whole.columns_P[mine] - start, B, stop - start, chosen, workers)


def outcomes(queries: Tensor, labels: Tensor, positives: Positives) -> Outcomes:
    return {
        name: tuple(tensor.numpy() for tensor in outcome(case, queries, labels, positives, TAU))
        for name, case in CASES.items()
    }


def whole(sizes: list[int]) -> Outcomes:
    return outcomes(*embeddings((B, S), dimensions=D), reference.positives_of(truth_for(sizes)))


def part(workers: Workers, sizes: list[int]) -> Outcomes:
    """What one worker gets, in chunks of two labels."""
    score_sums.CHUNK_SCORES["cpu"] = 2 * B
    queries, labels = embeddings((B, S), dimensions=D)
    stop = sum(sizes[: workers.rank + 1])
    start = stop - sizes[workers.rank]
    mine = labels[start:stop].detach().requires_grad_()
    positives = share(reference.positives_of(truth_for(sizes)), start, stop, workers)
    return outcomes(queries, mine, positives)


@pytest.mark.long
@pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
def test_loss_and_every_gradient_equal_one_workers(sizes: list[int]) -> None:
    parts = on_workers(len(sizes), part, sizes)
    for name, (value, of_queries, of_labels) in whole(sizes).items():
        found: list[Any] = [each[name] for each in parts]
        near = {"rtol": 1e-6 if "averaged" in name or "psl" in name else 1e-11, "atol": 1e-11, "err_msg": name}
        np.testing.assert_allclose(sum(each[0] for each in found), value, **near)
        np.testing.assert_allclose(sum(each[1] for each in found), of_queries, **near)
        np.testing.assert_allclose(np.concatenate([each[2] for each in found]), of_labels, **near)


def hard(workers: Workers, sizes: list[int]) -> set[tuple[int, int]]:
    """The hardest pairs that one worker holds, by the labels' numbers in the whole pool."""
    queries, labels = embeddings((B, S), dimensions=D)
    stop = sum(sizes[: workers.rank + 1])
    start = stop - sizes[workers.rank]
    positives = share(reference.positives_of(truth_for(sizes)), start, stop, workers)
    found = losses.hardest_pairs(queries, labels[start:stop], positives, 3)
    return set(zip(found.rows_P.tolist(), (found.columns_P + start).tolist(), strict=True))


@pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
def test_workers_hold_the_hardest_pairs_of_one(sizes: list[int]) -> None:
    queries, labels = embeddings((B, S), dimensions=D)
    whole = losses.hardest_pairs(queries, labels, reference.positives_of(truth_for(sizes)), 3)
    wanted = sorted(zip(whole.rows_P.tolist(), whole.columns_P.tolist(), strict=True))
    assert sorted(pair for part in on_workers(len(sizes), hard, sizes) for pair in part) == wanted


def test_the_last_label_of_each_shard_is_a_positive_of_some_query() -> None:
    sizes = SHARDS["four"]
    positives = reference.positives_of(truth_for(sizes))
    stop = 0
    for rank, size in enumerate(sizes):
        start, stop = stop, stop + size
        mine = share(positives, start, stop, Workers(rank, len(sizes)))
        assert (0, size - 1) in set(zip(mine.rows_P.tolist(), mine.columns_P.tolist(), strict=True))
