"""The device that models live on, and the copies to it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

GPU = "cuda"  # the kind of device that is used where there is one
_kind: ContextVar[str | None] = ContextVar("_kind", default=None)  # that `computing_on` names


def default_device() -> torch.device:
    """The current GPU where there is one, else the CPU; within `computing_on`, the device of that kind."""
    import torch

    return torch.device(_kind.get() or (GPU if torch.get_device_module(GPU).is_available() else "cpu"))


@contextmanager
def computing_on(kind: str) -> Iterator[None]:
    """Make `kind`, such as `cpu`, the kind of the default device in the block: a plan needs no GPU, also beside one."""
    token = _kind.set(kind)
    try:
        yield
    finally:
        _kind.reset(token)


CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def usable_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container, or what `ulimit -v` says,
    whichever is least.
    """
    import psutil

    limits = [psutil.virtual_memory().total]
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or `max`
            limits.append(int(file.read_text()))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min(limits + [most] * (most != resource.RLIM_INFINITY))


def device_peak_memory() -> int | None:
    """Peak memory in bytes that this process allocated on its GPU; None where it uses none. It imports no torch."""
    torch = sys.modules.get("torch")
    if torch is None or default_device().type == "cpu":
        return None
    gpu = torch.get_device_module(GPU)
    return int(gpu.max_memory_allocated()) if gpu.is_initialized() else None


def upload(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """An array, or a tensor on the CPU, on `device`; copied from pinned memory, so that a GPU keeps computing.

    Torch pins memory for one kind of device, its accelerator; for another kind the copy is a plain one.
    """
    import torch

    tensor = torch.as_tensor(array)
    if device.type == "cpu":
        return tensor
    accelerator = torch.accelerator.current_accelerator()
    pins = accelerator is not None and accelerator.type == device.type
    return tensor.pin_memory().to(device, non_blocking=True) if pins else tensor.to(device)


@contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Where `allowed`, a GPU's products of float32 matrices read their factors as TF32, with ten bits of the fraction,
    in the block: several times as fast. A CPU computes as it always does.

    torch has an older and a newer setting for this and refuses to read either where they disagree, which its profiler
    and its compiler do. The older one sets both.
    """
    import torch

    products = torch.backends.cuda.matmul
    newer = products.fp32_precision
    if (newer == "tf32") == allowed:
        yield
        return
    try:
        older = products.allow_tf32
    except RuntimeError:  # they disagree already
        older = None
    products.allow_tf32 = allowed
    try:
        yield
    finally:
        if older is not None:
            products.allow_tf32 = older
        products.fp32_precision = newer


def synchronise() -> None:
    """Wait until the default device has computed all that it was given. On a CPU this returns at once."""
    import torch

    if (device := default_device()).type != "cpu":
        torch.get_device_module(device).synchronize()


def seed_random(seed: int, device: torch.device) -> None:
    """Seed what torch draws on `device`. On a CPU that alone: for other devices torch notes the call's stack, 1 ms."""
    import torch

    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
