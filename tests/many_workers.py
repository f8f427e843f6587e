"""Functions on several gloo processes at once: what a sharded equality needs.

The processes are started once a test session and kept: a call costs a rendezvous. They are forked from a server that
has imported what they need, so that torch is imported once, not once for each of them.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from xmcbench import DualEncoder
from xmcbench.engine.workers import Workers, current_workers

T = TypeVar("T")
MOST = 4
PATIENCE = timedelta(seconds=300)  # a collective that one worker left out must fail, not hang


@cache
def _processes() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*DualEncoder.late_imports, "transformers.models.bert.modeling_bert", "pytest"])
    return ProcessPoolExecutor(MOST, mp_context=context)


def on_workers(size: int, function: Callable[..., T], *args: Any) -> list[T]:
    """What `function(workers, *args)` returned on each of `size` workers; it and `args` are of modules."""
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = f"file://{Path(directory) / 'rendezvous'}"
        return in_processes([(_join, rendezvous, rank, size, function, args) for rank in range(size)])


def in_processes(calls: list[tuple[Any, ...]]) -> list[Any]:
    """What these functions, each with its arguments, returned in a process each, all at the same time."""
    futures = [_processes().submit(*call) for call in calls]
    return [future.result(PATIENCE.total_seconds() * 2) for future in futures]


def _join(rendezvous: str, rank: int, size: int, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        workers: Workers = current_workers()
        assert (workers.rank, workers.size) == (rank, size)
        return function(workers, *args)
    finally:
        dist.destroy_process_group()
