"""What the harness makes of seconds that a ledger does not explain."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.meter import Meter, count_compilers, metering, uncharged_work

STEPS, SECONDS = Budget(steps=5), Budget(device_seconds=10)


def why(
    budget: Budget, stages: dict[str, float], points: int = 0, calls: int = 0, clock: Any = "wall", **measured: float
) -> str:
    """The reason, where processors computed as long in each stage as it took."""
    ledger = Ledger(stage_seconds=stages, stage_cpu_seconds=stages, teacher_calls=calls, clock=clock)
    return uncharged_work(Meter(**measured), ledger, budget, 20, points)  # type: ignore[arg-type]


# Stages, what was measured, and the start of the reason.
CASES: dict[str, tuple[Budget, dict[str, Any], dict[str, float], str]] = {
    "all is charged": (STEPS, {"train": 100.0}, {"seconds": 100.5, "cpu_seconds": 100.0}, ""),
    "asleep in no stage": (STEPS, {}, {"seconds": 5.0, "cpu_seconds": 0.1}, "fit took 5.0 seconds, 5.0 of them in no"),
    "waited for a core": (STEPS, {"prepare": 1.0}, {"seconds": 50.0, "waited_seconds": 46.0, "cpu_seconds": 4.0}, ""),
    "asleep on a loaded machine": (
        STEPS, {}, {"seconds": 50.0, "waited_seconds": 40.0, "cpu_seconds": 1.0}, "fit took 10.0 seconds, 10.0 of",
    ),
    "computed in no stage": (
        STEPS, {"prepare": 1.0}, {"seconds": 60.0, "waited_seconds": 58.0, "cpu_seconds": 60.0},
        "fit took 60.0 seconds of processors",
    ),
    "children work": (
        STEPS, {"train": 20.0}, {"seconds": 20.0, "cpu_seconds": 20.0, "children_cpu_seconds": 19.0},
        "fit took 20.0 seconds of processors, 19.0 of them in child processes",
    ),
    "children help": (STEPS, {"train": 9.0}, {"seconds": 9.0, "cpu_seconds": 9.0, "children_cpu_seconds": 4.0}, ""),
    "children under a budget of seconds": (
        SECONDS, {"train": 9.0}, {"seconds": 9.0, "cpu_seconds": 9.0, "children_cpu_seconds": 9.0}, "",
    ),
    "a program that says what it spends": (
        STEPS, {"train": 9.0},
        {"seconds": 9.0, "cpu_seconds": 9.0, "children_cpu_seconds": 9.0, "program_cpu_seconds": 9.0}, "",
    ),
    "index": (SECONDS, {"train": 10.0, "index": 8.0}, {"seconds": 18.0}, "fit took 8.0 seconds beside a budget of 10"),
    "index on a loaded machine": (SECONDS, {"train": 10.0, "index": 8.0}, {"seconds": 18.0, "waited_seconds": 9.0}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_seconds_are_judged_without_waiting_for_a_core(case: str) -> None:
    budget, stages, measured, reason = CASES[case]
    found = why(budget, stages, **measured)
    assert found.startswith(reason) if reason else not found


def test_by_processor_time_only_what_is_computed_beside_a_budget_counts() -> None:
    stages, given = {"train": 10.0, "index": 8.0}, {"clock": "processor", "seconds": 900.0, "waited_seconds": 890.0}
    assert why(SECONDS, stages, **given, cpu_seconds=18.0).startswith("fit took 8.0 seconds beside a budget of 10")
    assert not why(SECONDS, {"train": 10.0}, **given, cpu_seconds=12.0)
    told = why(SECONDS, {"train": 10.0}, **given, cpu_seconds=40.0, children_cpu_seconds=30.0)
    assert told.startswith("fit took 40.0 seconds of processors, 30.0 of them in no stage"), "a child that never ended"


def test_each_part_of_a_training_may_index_the_labels() -> None:
    six_passes = {"texts": Counter(index=6 * 20)}
    assert not why(STEPS, {}, parts=3, **six_passes)  # type: ignore[arg-type]
    told = "fit encoded 120 texts in the stage index, which is for 20 labels"
    assert [why(STEPS, {}, parts=parts, **six_passes) for parts in (0, 2)] == [told, told]  # type: ignore[arg-type]


def test_a_teachers_process_is_no_child_of_the_method() -> None:
    assert not why(STEPS, {"judge": 9.0}, calls=3, seconds=9.0, cpu_seconds=9.0, children_cpu_seconds=9.0)


BURN = "sum(range(3 * 10**6))"


def test_processes_that_compile_are_no_children_of_the_method() -> None:
    """What a method starts beside them counts as before."""
    import torch

    def slow_backend(graph: Any, _: object) -> Any:
        subprocess.run([sys.executable, "-c", BURN], check=True)
        return graph

    count_compilers()
    with metering() as meter:
        torch.compile(lambda x: x * 2, backend=slow_backend)(torch.ones(2))
    assert meter.children_cpu_seconds > 0
    assert meter.program_cpu_seconds == meter.children_cpu_seconds
    with metering() as meter:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    assert meter.program_cpu_seconds == 0 < meter.children_cpu_seconds


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux counts how long threads wait")
def test_waiting_for_a_core_is_told_from_sleeping() -> None:
    """Two threads on one core: one of them always waits. A thread that sleeps does not."""
    cores, end = os.sched_getaffinity(0), time.monotonic() + 1.0
    os.sched_setaffinity(0, {min(cores)})
    try:
        with metering() as busy:
            threads = [threading.Thread(target=_hash_until, args=(end,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.05)
                if time.monotonic() > end - 0.3:  # before the threads, and what is known of them, end
                    break
        for thread in threads:
            thread.join()
        with metering() as asleep:
            time.sleep(0.5)
    finally:
        os.sched_setaffinity(0, cores)
    assert busy.waited_seconds > 0.1
    assert asleep.waited_seconds < asleep.seconds / 2
    assert asleep.seconds - asleep.waited_seconds > 0.2


def _hash_until(end: float) -> None:
    """Compute without the interpreter's lock, so that threads compete for a core."""
    from hashlib import sha256

    block = bytes(1 << 20)
    while time.monotonic() < end:
        sha256(block).digest()
