"""These tests run on a GPU under `pytest -m gpu`, and otherwise on the pretended one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .places import DEVICE, models_on


@pytest.fixture(autouse=True)
def models_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Float32 products without TF32, as the harness leaves them."""
    if DEVICE == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    elif request.config.option.markexpr == "gpu":
        pytest.skip("needs a CUDA device")
    with models_on(DEVICE):
        yield
