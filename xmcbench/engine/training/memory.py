"""The memory that workers take: checked against the budget while they train, noted in the ledger at the end."""

from __future__ import annotations

import torch

from xmcbench.engine.device import default_device
from xmcbench.engine.workers import Workers
from xmcbench.trial.budget import Budget, Ledger, peak_memory


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
