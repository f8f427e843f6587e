"""Checkpoints: one folder per step, with a safetensors file per worker and a JSON note. Written atomically.

What all workers share (weights, optimiser, sampler) is in worker 0's file. Label tables are in the files of the
workers that hold their rows, with the rows' ids, so that another number of workers can pick up theirs.
"""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from xmcbench.engine.workers import Workers
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory

NOTE = "note.json"
IDS = "ids"  # of a table's rows, in the group of the table
Groups = dict[str, dict[str, Tensor]]


def save(directory: Path, groups: Groups, note: dict[str, Any], workers: Workers, shared: bool = True) -> None:
    """Write the folder `directory`: each worker its `groups` of named tensors, worker 0 the JSON-able note; atomic.

    Every worker calls this, and returns when the folder is there. Without `shared` each has a folder of its own, which
    holds what this worker wrote.
    """
    makes = workers.rank == 0 or not shared
    partial = directory.with_name(f".{directory.name}.partial")
    with atomic_directory(directory, partial) if makes else nullcontext():
        workers.barrier()
        _write(partial / _file(workers.rank), groups)
        workers.barrier()
        if makes:
            (partial / NOTE).write_text(json.dumps({"workers": workers.size, "note": note}))
            shutil.rmtree(directory, ignore_errors=True)  # an older checkpoint of the same step
    workers.barrier()


def newest(root: Path) -> Path | None:
    """The checkpoint of the latest step under `root`, or None."""
    return max(root.glob("step-*"), default=None)


def prune(root: Path, count: int) -> None:
    """Remove all but the last `kept` checkpoints under `root`."""
    for old in sorted(root.glob("step-*"))[:-count]:
        shutil.rmtree(old, ignore_errors=True)


def step_directory(root: Path, step: int) -> Path:
    """Where the checkpoint of a step goes; the names sort by step."""
    return root / f"step-{step:010d}"


def load(directory: Path) -> tuple[list[Groups], dict[str, Any]]:
    """What `save` wrote, on the CPU: the groups of each worker, and the note.

    Raises XMCBenchError where the folder is not a checkpoint.
    """
    try:
        content = json.loads((directory / NOTE).read_text())
        return [_read(directory / _file(rank)) for rank in range(content["workers"])], content["note"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise XMCBenchError(f"{directory}: not a readable checkpoint ({error}); delete it to start over") from error


def deal(parts: list[dict[str, Tensor]], ids_R: Tensor) -> dict[str, Tensor]:
    """The rows `ids_R` of a table whose rows lie in `parts`, with their ids; tensors without rows are alike in all."""
    found_N, order_N = torch.cat([part[IDS] for part in parts]).sort()
    rows_R = order_N[torch.searchsorted(found_N, ids_R)]
    names = [name for name in parts[0] if name != IDS]
    return {
        name: torch.cat([part[name] for part in parts])[rows_R] if parts[0][name].ndim else parts[0][name]
        for name in names
    }


def _file(rank: int) -> str:
    return f"worker-{rank}.safetensors"


def _write(path: Path, groups: Groups) -> None:
    flat = {
        f"{group}/{name}": tensor.detach().contiguous().clone()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }
    save_file(flat, path)


def _read(path: Path) -> Groups:
    groups: Groups = {}
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (no mapping)
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = file.get_tensor(key)
    return groups


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: `<parameter number>.<name>`."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, entry in state.items() for name, tensor in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take back what `optimizer_tensors` gave."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        whole["state"].setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict(whole)
