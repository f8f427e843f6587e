"""Where these tests run: on a GPU under `pytest -m gpu`, else on the pretended one."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pretend_device
import pytest
import torch

from xmcbench.engine import device

DEVICE = "cuda" if torch.cuda.is_available() else pretend_device.NAME
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="shows what only CUDA has: `pytest -m gpu` beside a GPU")


@contextmanager
def models_on(kind: str) -> Iterator[None]:
    """Make `kind` the device that models live on: DEVICE, or `cpu`."""
    pretends = kind == pretend_device.NAME
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "GPU", kind)
        with pretend_device.pretended_gpu() if pretends else nullcontext():
            yield


@contextmanager
def waits() -> Iterator[Callable[[], Counter[str]]]:
    """Yield a function that tells what made the host wait for the GPU since the block began."""
    if DEVICE == pretend_device.NAME:
        before = pretend_device.noted()
        yield lambda: pretend_device.noted() - before
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield lambda: Counter(
                f"{Path(warning.filename).name}:{warning.lineno}"
                for warning in caught
                if "synchroniz" in str(warning.message)
            )
    finally:
        torch.cuda.set_sync_debug_mode("default")
