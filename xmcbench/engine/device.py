"""The device that models live on, and the copies to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

GPU = "cuda"  # the kind of device that is used where there is one


def default_device() -> torch.device:
    """The current GPU where there is one, else the CPU."""
    import torch

    return torch.device(GPU if torch.get_device_module(GPU).is_available() else "cpu")


def upload(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """An array, or a tensor on the CPU, on `device`; copied from pinned memory, so that a GPU keeps computing."""
    import torch

    tensor = torch.as_tensor(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def seed_random(seed: int, device: torch.device) -> None:
    """Seed what torch draws on `device`. On a CPU that alone: for other devices torch notes the call's stack, 1 ms."""
    import torch

    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
