"""What the harness counts itself while a method fits and predicts, to compare with what the method charges.

`Encoder.forward` reports the tokens and texts that it reads, and torch's optimisers the updates that they make. Both
are counted by the stage of the ledger in which they happen.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter  # as it is before a method may change the module
from typing import Any

import psutil

from xmcbench.trial.budget import BUDGETED_STAGES, UNCHARGED, Budget, Ledger, current_stage

ROUNDING = 0.01  # of a ledger's tokens: what may be missing
SHARE, FEW_SECONDS = 0.5, 2.0  # of a budget of seconds, or of those charged: what work outside of them may take
PASSES = 2  # over all labels, in the stage `index`


@dataclass
class Meter:
    """Counts by stage, and seconds from outside."""

    tokens: Counter[str] = field(default_factory=Counter)  # real ones that the encoder read
    texts: Counter[str] = field(default_factory=Counter)
    updates: Counter[str] = field(default_factory=Counter)  # of optimisers
    seconds: float = 0.0  # wall clock
    cpu_seconds: float = 0.0  # of this process and its children


_meter: Meter | None = None  # of this process: a method may compute in threads of its own
_uncounted: ContextVar[bool] = ContextVar("_uncounted", default=False)


def encoded(texts: int, tokens: Any) -> None:
    """Count a forward pass over so many texts; `tokens` is a number, or a tensor that is read at the end."""
    if _meter is not None and not _uncounted.get():
        stage = current_stage()
        _meter.texts[stage] += texts
        _meter.tokens[stage] += tokens


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing in the block: it repeats a pass to save memory, or measures what a pass costs."""
    token = _uncounted.set(True)
    try:
        yield
    finally:
        _uncounted.reset(token)


@contextmanager
def metering() -> Iterator[Meter]:
    """Count what happens in the block, in this process."""
    global _meter
    meter = _meter = Meter()
    hook = _count_updates(meter)
    start, cpu = perf_counter(), cpu_seconds()
    try:
        yield meter
    finally:
        meter.seconds, meter.cpu_seconds = perf_counter() - start, max(0.0, cpu_seconds() - cpu)
        _meter = None
        if hook is not None:
            hook.remove()


def _count_updates(meter: Meter) -> Any:
    """A handle of the hook that torch's optimisers call; None where the method's modules import no torch."""
    if "torch" not in sys.modules:
        return None
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(lambda *_: meter.updates.update([current_stage()]))


def cpu_seconds() -> float:
    """Processor time of this process, of its children that ended and of those that run."""
    times = os.times()
    running = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            own = child.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        running += own.user + own.system
    return times.user + times.system + times.children_user + times.children_system + running


def uncharged_work(meter: Meter, ledger: Ledger, budget: Budget, num_labels: int, points: int) -> str:
    """Why the work that was counted in `fit` is more than the ledger says; empty if it is not.

    `points` is the length of the curve: each evaluation encodes all labels, and queries of its own.
    """
    tokens = {stage: int(count) for stage, count in meter.tokens.items()}
    charged = sum(count for stage, count in tokens.items() if stage not in ("index", UNCHARGED))
    if charged > ledger.encoder_tokens * (1 + ROUNDING):
        return f"fit encoded {charged:,} tokens and charged {ledger.encoder_tokens:,}: charge what the encoder reads"
    if meter.texts["index"] > PASSES * num_labels:
        return f"fit encoded {meter.texts['index']:,} texts in the stage index, which is for {num_labels:,} labels"
    if tokens.get(UNCHARGED) and not points:
        return f"fit encoded {tokens[UNCHARGED]:,} tokens in uncharged(), which is for evaluations on the curve"
    if outside := [stage for stage, updates in meter.updates.items() if updates and stage not in BUDGETED_STAGES]:
        return f"fit trained in the stage {outside[0] or 'of another thread'}, which the budget does not cover"
    seconds = ledger.stage_seconds
    if (missing := meter.seconds - sum(seconds.values())) > SHARE * meter.seconds + FEW_SECONDS:
        return f"fit took {meter.seconds:.1f} seconds, {missing:.1f} of them in no stage: the ledger was changed"
    unlimited = meter.seconds - ledger.device_seconds - seconds.get("judge", 0.0)
    unlimited -= seconds.get(UNCHARGED, 0.0) if points else 0.0
    limit = budget.device_seconds
    if limit is not None and unlimited > SHARE * limit + FEW_SECONDS:
        return (
            f"fit took {unlimited:.1f} seconds beside a budget of {limit:g}: only indexing is free, up to {SHARE:.0%}"
        )
    return ""
