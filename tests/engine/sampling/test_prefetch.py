from __future__ import annotations

from typing import Any

import numpy as np
from toy import toy_data

from xmcbench.engine.sampling import Batch, Sampler
from xmcbench.engine.sampling.sampler import Prefetch


class Counted(Sampler):
    """A `Sampler` that notes which batches were made."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.made: list[tuple[int, int]] = []

    def batch(self, epoch: int, index: int) -> Batch:
        self.made.append((epoch, index))
        return super().batch(epoch, index)


def test_batches_are_the_samplers_and_each_is_made_once() -> None:
    data = toy_data()
    sampler, plain = (Counted(data, batch_size=20, seed=1) for _ in range(2))
    prefetch = Prefetch(sampler)
    wanted = [(epoch, index) for epoch in range(2) for index in range(3)]
    for place in wanted:
        ahead, direct = prefetch.batch(*place), plain.batch(*place)
        assert np.array_equal(ahead.query_ids, direct.query_ids)
        assert np.array_equal(ahead.label_ids, direct.label_ids)
    assert sampler.made == wanted  # none of the next epoch was made before its time


def test_any_batch_may_be_asked_for() -> None:
    sampler = Sampler(toy_data(), batch_size=20, seed=1)
    prefetch = Prefetch(sampler)
    for place in [(0, 1), (0, 0), (3, 2)]:
        assert np.array_equal(prefetch.batch(*place).query_ids, sampler.batch(*place).query_ids)
