"""What the harness counts itself while a method fits and predicts, to compare with what the method charges.

`Encoder.forward` reports the tokens and texts that it reads, and torch's optimisers the updates that they make. Both
are counted by the stage of the ledger in which they happen.

Seconds are judged without those in which the process was ready to run and no core was free: a loaded machine makes no
trial invalid.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter, process_time  # as they are before a method may change the module
from typing import Any

from xmcbench.trial.budget import BUDGETED_STAGES, UNCHARGED, Budget, Ledger, current_stage

ROUNDING = 0.01  # of a ledger's tokens: what may be missing
SHARE, FEW_SECONDS = 0.5, 2.0  # of a budget of seconds, or of those charged: what work outside of them may take
IMPORT_SECONDS = 60.0  # of processors, for imports before `fit`: several times those of torch and transformers
PASSES = 2  # over all labels, in the stage `index` of each part of a training


@dataclass
class Meter:
    """Counts by stage, and seconds from outside."""

    tokens: Counter[str] = field(default_factory=Counter)  # real ones that the encoder read
    texts: Counter[str] = field(default_factory=Counter)
    updates: Counter[str] = field(default_factory=Counter)  # of optimisers
    parts: int = 0  # of the training, as cycles, or the parts of a fusion; 0 where it is not divided
    seconds: float = 0.0  # wall clock
    waited_seconds: float = 0.0  # of these, those in which a thread was ready to run and had no core
    cpu_seconds: float = 0.0  # of this process and its children
    children_cpu_seconds: float = 0.0  # of these, those of its children
    program_cpu_seconds: float = 0.0  # of these, those of `run_program`: the method says what its programs spend


_meter: Meter | None = None  # of this process: a method may compute in threads of its own
_uncounted: ContextVar[bool] = ContextVar("_uncounted", default=False)


def encoded(texts: int, tokens: Any) -> None:
    """Count a forward pass over so many texts; `tokens` is a number, or a tensor that is read at the end."""
    if _meter is not None and not _uncounted.get():
        stage = current_stage()
        _meter.texts[stage] += texts
        _meter.tokens[stage] += tokens


def part_begun() -> None:
    """Count a part of the training, which ends with an index of its own."""
    if _meter is not None:
        _meter.parts += 1


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing in the block: it repeats a pass to save memory, or measures what a pass costs."""
    token = _uncounted.set(True)
    try:
        yield
    finally:
        _uncounted.reset(token)


def is_uncounted() -> bool:
    """Whether this thread is within a block of `uncounted`."""
    return _uncounted.get()


@contextmanager
def metering() -> Iterator[Meter]:
    """Count what happens in the block, in this process."""
    global _meter
    meter = _meter = Meter()
    hook = None
    if "torch" in sys.modules:  # else the method's modules import none
        from torch.optim.optimizer import register_optimizer_step_post_hook

        hook = register_optimizer_step_post_hook(lambda *_: meter.updates.update([current_stage()]))
    children, waits, processors, start = children_cpu_seconds(), _waits(), process_time(), perf_counter()
    try:
        yield meter
    finally:
        meter.seconds, processors = perf_counter() - start, process_time() - processors
        meter.waited_seconds = max((wait - waits.get(thread, 0.0) for thread, wait in _waits().items()), default=0.0)
        meter.children_cpu_seconds = max(0.0, children_cpu_seconds() - children)
        meter.cpu_seconds = processors + meter.children_cpu_seconds
        _meter = None
        if hook is not None:
            hook.remove()


@contextmanager
def running_program() -> Iterator[None]:
    """Count the processor time of children in the block as that of a program."""
    start = children_cpu_seconds()
    try:
        yield
    finally:
        if _meter is not None:
            _meter.program_cpu_seconds += max(0.0, children_cpu_seconds() - start)


@cache
def count_compilers() -> None:
    """From now on count the processes that compile for torch as a program's: they read no texts."""
    from torch._dynamo import callback

    compiling: list[AbstractContextManager[None]] = []

    def begin(*_: object) -> None:
        compiling.append(running_program())
        compiling[-1].__enter__()

    def end(*_: object) -> None:
        compiling.pop().__exit__(None, None, None)

    callback.on_compile_start(begin)
    callback.on_compile_end(end)


def children_cpu_seconds() -> float:
    """Processor time of the children of this process: of those that ended and of those that run."""
    import psutil

    times = os.times()
    seconds = times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            of_child = child.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        seconds += of_child.user + of_child.system
    return seconds


def _waits() -> dict[str, float]:
    """By thread of this process: seconds in which it was ready to run and had no core; empty where nobody counts them.

    Source: the second number of `/proc/PID/task/TID/schedstat` (Linux, Documentation/scheduler/sched-stats.rst).
    """
    waits = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread ended meanwhile
            waits[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return waits


def uncharged_work(meter: Meter, ledger: Ledger, budget: Budget, num_labels: int, points: int) -> str:
    """Why the work that was counted in `fit` is more than the ledger says; empty if it is not.

    `points` is the length of the curve: each evaluation encodes all labels, and queries of its own.
    """
    tokens = {stage: int(count) for stage, count in meter.tokens.items()}
    charged = sum(count for stage, count in tokens.items() if stage not in ("index", UNCHARGED))
    if charged > ledger.encoder_tokens * (1 + ROUNDING):
        return f"fit encoded {charged:,} tokens and charged {ledger.encoder_tokens:,}: charge what the encoder reads"
    if meter.texts["index"] > PASSES * num_labels * max(1, meter.parts):
        return f"fit encoded {meter.texts['index']:,} texts in the stage index, which is for {num_labels:,} labels"
    if tokens.get(UNCHARGED) and not points:
        return f"fit encoded {tokens[UNCHARGED]:,} tokens in uncharged(), which is for evaluations on the curve"
    if outside := [stage for stage, updates in meter.updates.items() if updates and stage not in BUDGETED_STAGES]:
        return f"fit trained in the stage {outside[0] or 'of another thread'}, which the budget does not cover"
    seconds, cpu, cpu_stages = ledger.stage_seconds, meter.cpu_seconds, ledger.stage_cpu_seconds
    active = max(0.0, meter.seconds - meter.waited_seconds)  # without waiting for a core
    total = sum(seconds.values())
    if (missing := active - total) > SHARE * active + FEW_SECONDS:
        return f"fit took {active:.1f} seconds, {missing:.1f} of them in no stage: the ledger was changed"
    if ledger.teacher_calls:
        cpu -= meter.children_cpu_seconds  # a teacher's process is no child of the method
    if (missing := cpu - sum(cpu_stages.values())) > SHARE * cpu + FEW_SECONDS:
        return f"fit took {cpu:.1f} seconds of processors, {missing:.1f} of them in no stage: the ledger was changed"
    limits = budget.spending()
    unseen = meter.children_cpu_seconds - meter.program_cpu_seconds
    if limits.keys() - {"device_seconds"} and not ledger.teacher_calls and unseen > SHARE * cpu + FEW_SECONDS:
        return (
            f"fit took {cpu:.1f} seconds of processors, {unseen:.1f} of them in child processes, whose tokens and "
            "steps nobody counts: use threads, or run_program"
        )
    by_processors = ledger.clock == "processor"
    measured, stages = (cpu, cpu_stages) if by_processors else (meter.seconds, seconds)
    beside = measured - ledger.device_seconds - stages.get("judge", 0.0)
    beside -= stages.get(UNCHARGED, 0.0) if points else 0.0
    beside *= active / meter.seconds if meter.seconds and not by_processors else 1.0
    limit = limits.get("device_seconds")
    if limit is not None and beside > SHARE * limit + FEW_SECONDS:
        return f"fit took {beside:.1f} seconds beside a budget of {limit:g}: only indexing is free, up to {SHARE:.0%}"
    return ""
