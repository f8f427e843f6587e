"""Checkpoints: one folder per step, written atomically, with a safetensors file of each worker and a JSON note.

What all workers have alike (weights, optimiser, sampler) is in worker 0's file. Label tables are in the files of the
workers that hold their rows, with the ids of the rows, so that another number of workers can load them. Each worker
writes a manifest of its files, which is checked when the checkpoint is loaded.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from xmcbench.engine.workers import Workers
from xmcbench.files.atomic import atomic_directory
from xmcbench.files.manifest import DamagedFolder, check_manifest, write_manifest

_log = logging.getLogger(__name__)
NOTE = "note.json"
IDS = "ids"  # of a table's rows, in the group of the table
_file = "worker-{}.safetensors".format
_manifest = "worker-{}.json".format
Groups = dict[str, dict[str, Tensor]]


def save(directory: Path, groups: Groups, note: dict[str, Any], workers: Workers, shared: bool = True) -> None:
    """Write the folder `directory`: each worker its `groups` of named tensors, worker 0 the note, of JSON types.

    Every worker calls this, and it returns when the folder exists. Without `shared` each worker has a folder of its
    own, which contains only what this worker wrote.
    """
    makes, files = workers.rank == 0 or not shared, [_file(workers.rank)]
    partial = directory.with_name(f".{directory.name}.partial")
    with atomic_directory(directory, partial, replace=True) if makes else nullcontext():
        workers.barrier()
        _write(partial / _file(workers.rank), groups)
        if workers.rank == 0:
            (partial / NOTE).write_text(json.dumps({"workers": workers.size, "note": note}))
            files.append(NOTE)
        write_manifest(partial, files, _manifest(workers.rank))
        workers.barrier()
    workers.barrier()


def prune(root: Path, count: int) -> None:
    """Remove all but the last `count` checkpoints under `root`."""
    for old in sorted(root.glob("step-*"))[:-count]:
        shutil.rmtree(old, ignore_errors=True)


def step_directory(root: Path, step: int) -> Path:
    """The folder of the checkpoint of a step; names sort by step."""
    return root / f"step-{step:010d}"


def load(directory: Path, keys: Collection[str] = ()) -> tuple[list[Groups], dict[str, Any]]:
    """The content of a checkpoint on the CPU: the groups of each worker, and the note.

    Raises `DamagedFolder` where files are damaged, or where the note has not all of `keys`.
    """
    size, note = check(directory)
    if missing := [key for key in keys if key not in note]:
        raise DamagedFolder(f"{directory / NOTE}: not a checkpoint: found no key {missing[0]!r}")
    return [_read(directory / _file(rank)) for rank in range(size)], note


def check(directory: Path) -> tuple[int, dict[str, Any]]:
    """Number of workers and note of a checkpoint. Raises `DamagedFolder` unless all its files are intact."""
    check_manifest(directory, [_file(0), NOTE], _manifest(0))
    try:
        content = json.loads((directory / NOTE).read_bytes())
        size, note = int(content["workers"]), dict(content["note"])
    except (ValueError, KeyError, TypeError) as problem:
        raise DamagedFolder(f"{directory / NOTE}: not a checkpoint: {problem!r}") from problem
    for rank in range(1, size):
        check_manifest(directory, [_file(rank)], _manifest(rank))
    return size, note


def intact(root: Path, keys: Collection[str]) -> Iterator[tuple[Path, list[Groups], dict[str, Any]]]:
    """The checkpoints under `root` that can be loaded, newest first: place, groups of each worker, and note.

    A damaged one is removed, with a warning that names it.
    """
    for directory in sorted(root.glob("step-*"), reverse=True):
        try:
            yield directory, *load(directory, keys)
        except DamagedFolder as damage:
            discard(directory, damage)


def discard(directory: Path, damage: DamagedFolder) -> None:
    """Remove a damaged checkpoint and say so."""
    then = "training resumes from the checkpoint before it, or starts again"
    _log.warning("warning: %s; %s is removed, and %s", damage, directory.name, then)
    shutil.rmtree(directory, ignore_errors=True)


def deal(parts: list[dict[str, Tensor]], ids_R: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The rows `ids_R` of a table whose rows lie in `parts`, with their ids: each tensor of the table with its name.

    Tensors without rows are alike in all parts. A tensor is taken out of `parts` when its turn comes, so that it does
    not stay in memory beside the table it is copied to.
    """
    found_N, order_N = torch.cat([part.pop(IDS) for part in parts]).sort()
    rows_R = order_N[torch.searchsorted(found_N, ids_R)]
    in_order = torch.equal(rows_R, torch.arange(len(order_N)))  # the same number of workers: nothing is copied
    for name in list(parts[0]):
        tensors = [part.pop(name) for part in parts]
        if (in_order and len(parts) == 1) or not tensors[0].ndim:
            yield name, tensors[0]
        else:
            yield name, torch.cat(tensors)[rows_R]


def _write(path: Path, groups: Groups) -> None:
    """Write tensors from where they lie: a copy of a label table with its state would double its memory."""
    flat, storages = {}, set()
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            whole = tensor.detach().contiguous()
            storage = whole.untyped_storage().data_ptr()
            # The format refuses tensors that share memory.
            flat[f"{group}/{name}"] = whole.clone() if storage in storages else whole
            storages.add(storage)
    save_file(flat, path)


def _read(path: Path) -> Groups:
    """Each tensor maps the file anew: the memory of a tensor is free again when the tensor is."""
    groups: Groups = {}
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
    for key in keys:
        group, _, name = key.partition("/")
        with safe_open(path, framework="pt") as file:
            groups.setdefault(group, {})[name] = file.get_tensor(key)
    return groups


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: `<parameter number>.<name>`."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, entry in state.items() for name, tensor in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` returned."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        whole["state"].setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict(whole)
