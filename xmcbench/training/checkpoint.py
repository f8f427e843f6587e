"""Checkpoints: tensors and a JSON note in one safetensors file, so that a kill leaves the old one or the new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from xmcbench.errors import XMCBenchError


def save(path: Path, groups: dict[str, dict[str, Tensor]], note: dict[str, Any]) -> None:
    """Write tensors, by group and name, and a JSON-able note; atomic."""
    flat = {
        f"{group}/{name}": tensor.detach().contiguous().clone()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        save_file(flat, partial, metadata={"note": json.dumps(note)})
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # a disk that filled up needs the room


def load(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What `save` wrote, on the CPU. Raises XMCBenchError where the file is not a checkpoint."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            note: dict[str, Any] = json.loads(file.metadata()["note"])
            for key in file.keys():  # noqa: SIM118 (no mapping)
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise XMCBenchError(f"{path}: not a readable checkpoint ({error}); delete it to start over") from error
    return groups, note


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
