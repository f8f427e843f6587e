"""The memory that workers take: how much they may keep, the budget's limit on it, and its entry in the ledger."""

from __future__ import annotations

import psutil
import torch

from xmcbench.engine.device import default_device
from xmcbench.engine.workers import Workers
from xmcbench.trial.budget import Budget, Ledger, peak_memory


def kept_bytes(most_gib: float, room: float) -> int:
    """Bytes of activations that a worker keeps: `most_gib`, or half of its `room` if that is less.

    The other half is for what comes with the first step: gradients, moments, scores. Activations that are not kept are
    computed again, to equal values.
    """
    return int(min(most_gib * 2**30, max(0.0, room) / 2))


def room_now(budget: Budget, workers: Workers) -> float:
    """Bytes that this worker can still take: of its device, of which workers on processors have equal shares, and of
    the budget.
    """
    if (device := default_device()).type != "cpu":
        gpu = torch.get_device_module(device)
        free, taken = float(gpu.mem_get_info()[0]), gpu.memory_allocated()
    else:
        free, taken = psutil.virtual_memory().available / workers.size, psutil.Process().memory_info().rss
    return free if budget.peak_bytes is None else min(free, budget.peak_bytes - taken)


def check_memory(ledger: Ledger, budget: Budget, workers: Workers) -> None:
    """Raise `TooLargeError` on all workers where one has taken more memory than the budget allows a worker."""
    if budget.peak_bytes is None:
        return
    device = default_device()
    peak = peak_memory() if device.type == "cpu" else torch.get_device_module(device).max_memory_allocated()
    ledger.check_memory(budget, workers.largest(float(peak)))


def note_memory(ledger: Ledger, workers: Workers) -> None:
    """Enter the peak resident bytes of each worker into the ledger."""
    own = torch.tensor([peak_memory()], device=default_device())
    ledger.worker_bytes = workers.gather(own).tolist()
