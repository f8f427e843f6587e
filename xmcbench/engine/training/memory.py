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
    if default_device().type == "cuda":
        free, taken = float(torch.cuda.mem_get_info()[0]), torch.cuda.memory_allocated()
    else:
        free, taken = psutil.virtual_memory().available / workers.size, psutil.Process().memory_info().rss
    return free if budget.peak_bytes is None else min(free, budget.peak_bytes - taken)


def check_memory(ledger: Ledger, budget: Budget, workers: Workers) -> None:
    """Raise `TooLargeError` on all workers where one has taken more memory than the budget allows a worker."""
    if budget.peak_bytes is None:
        return
    device = default_device()
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else peak_memory()
    own = torch.tensor(float(peak), dtype=torch.float64, device=device)
    ledger.check_memory(budget, float(workers.max(own)))


def note_memory(ledger: Ledger, workers: Workers) -> None:
    """Enter the peak resident bytes of each worker into the ledger."""
    own = torch.tensor([peak_memory()], device=default_device())
    ledger.worker_bytes = workers.gather(own).tolist()
