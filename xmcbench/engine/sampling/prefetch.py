"""Prepares the next batch while the current one trains."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.sampler import Sampler


class Prefetch:
    """A sampler's batches. The next batch of the same epoch is prepared ahead; another epoch may need a refresh first.

    This is safe because a batch is a pure function of seed, epoch and index.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._next: tuple[tuple[int, int], Future[Batch]] | None = None

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at `index` of `epoch`."""
        ahead, self._next = self._next, None
        batch = ahead[1].result() if ahead and ahead[0] == (epoch, index) else self.sampler.batch(epoch, index)
        if index + 1 < self.sampler.num_batches(epoch):
            place = (epoch, index + 1)
            self._next = place, self._thread.submit(self.sampler.batch, *place)
        return batch
