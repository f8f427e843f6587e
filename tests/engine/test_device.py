"""TF32 on a GPU: torch's two settings for it agree, whichever a user has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from xmcbench.engine.device import tensor_float32

PRODUCTS = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    yield
    PRODUCTS.allow_tf32 = False
    PRODUCTS.fp32_precision = "none"


def older(allowed: bool) -> Callable[[], None]:
    return lambda: setattr(PRODUCTS, "allow_tf32", allowed)


def newer(precision: str) -> Callable[[], None]:
    return lambda: setattr(PRODUCTS, "fp32_precision", precision)


USERS = {
    "nothing": lambda: None,
    "older, off": older(allowed=False),
    "older, on": older(allowed=True),
    "newer, off": newer("ieee"),
    "newer, on": newer("tf32"),
}


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("user", USERS)
def test_the_block_has_its_precision_and_the_users_comes_back(user: str, allowed: bool) -> None:
    USERS[user]()
    before = PRODUCTS.fp32_precision
    with tensor_float32(allowed):
        assert (PRODUCTS.fp32_precision == "tf32") == allowed
        if user != "newer, on":  # then torch refuses to read them outside of the block too
            assert PRODUCTS.allow_tf32 == allowed
            assert (torch.get_float32_matmul_precision() == "high") == allowed
    assert PRODUCTS.fp32_precision == before


def test_a_block_with_tf32_can_be_profiled() -> None:
    """The profiler reads the older setting at each operation."""
    with tensor_float32(allowed=True), profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert any("mm" in event.key for event in profiler.key_averages())
