"""How many trials of a suite with `resources: {parallel: auto}` run at once on this machine."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from xmcbench.data.pairs import usable_cores

SPARE = 0.8  # the share of free memory that trials are expected to fill at most
GB = 1e9


def at_once(trials: int, needed: Iterable[float | None]) -> tuple[int, str]:
    """How many of so many `trials` run at once, and the reason in words.

    There is at most one on each core, and together they leave a fifth of the free memory. `needed` has the bytes that
    each trial is predicted to need, None where that is not known; without any prediction trials run one at a time.
    """
    largest, free = max((size for size in needed if size is not None), default=None), psutil.virtual_memory().available
    if largest is None:
        return 1, "one trial runs at a time: no trial's memory can be predicted"
    cores = usable_cores()
    count = max(1, min(cores, trials, int(SPARE * free / largest)))
    room = f"{cores} cores and {free / GB:.1f} GB of free memory; the largest trial needs about {largest / GB:.1f} GB"
    if count == 1:
        return 1, f"one trial runs at a time: there are {room}"
    return count, f"{count} trials run side by side, so tables show no seconds: there are {room}"
