"""The pretended GPU notices what CUDA would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pretend_device
import pytest
import torch
from torch import Tensor

from xmcbench.engine.device import default_device, upload

GPU = f"{pretend_device.NAME}:0"


@pytest.fixture(autouse=True)
def _models_on_it() -> Iterator[None]:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, beside which none is pretended")
    with pretend_device.pretended_gpu():
        yield


def new_waits(work: Callable[[], object]) -> Counter[str]:
    before = pretend_device.noted()
    work()
    return pretend_device.noted() - before


def test_models_live_on_it() -> None:
    assert default_device().type == pretend_device.NAME
    linear = torch.nn.Linear(3, 2).to(default_device())
    assert linear.weight.device == torch.device(GPU)
    with pytest.raises(RuntimeError, match="numpy"):
        linear.weight.detach().numpy()


def test_it_computes_what_the_cpu_computes_but_for_the_rounding_of_sums() -> None:
    def trained(device: str) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        linear = torch.nn.Linear(4, 3).to(device)
        optimizer = torch.optim.AdamW(linear.parameters(), fused=True)
        inputs = torch.arange(20.0).view(5, 4).to(device)
        for _ in range(3):
            linear(inputs).topk(2).values.square().sum().backward()
            optimizer.step()
        inputs[1:3, 0].mul_(7)  # through a view
        return linear.weight.detach().cpu(), linear(inputs).detach().cpu()

    for found, wanted in zip(trained(pretend_device.NAME), trained("cpu"), strict=True):
        torch.testing.assert_close(found, wanted)


def test_sums_are_rounded_otherwise_and_some_otherwise_each_time() -> None:
    """Equal sums stay equal, whichever row they are in; those that CUDA adds in no order differ from call to call."""
    torch.manual_seed(0)
    left, right = torch.randn(6, 8), torch.randn(8, 5)
    there, places = left.to(GPU), torch.tensor([0, 0, 1, 1, 2, 2]).to(GPU)
    product, again = (torch.mm(there, right.to(GPU)).cpu() for _ in range(2))
    assert torch.equal(product, again)
    one, other = torch.mm(there[:1].expand(2, -1).contiguous(), right.to(GPU)).cpu()
    assert torch.equal(one, other)
    assert not torch.equal(product, left @ right)
    torch.testing.assert_close(product, left @ right, rtol=1e-5, atol=0)
    first, second = (torch.zeros(3, 8, device=GPU).index_add_(0, places, there).cpu() for _ in range(2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: here.index_select(0, there.long()),
        lambda here, there: here.add_(there),
        lambda here, there: torch.mm(here[None], there[:, None]),
    ],
)
def test_tensors_of_two_devices_do_not_mix(mix: Callable[[Tensor, Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mix(torch.ones(2, device=GPU), torch.ones(2))


@pytest.mark.parametrize(
    "wait",
    [
        float,
        bool,
        lambda one: one.expand(3).cpu(),
        lambda one: one.expand(3).tolist(),
        lambda one: one.expand(3).nonzero(),
        lambda one: one.expand(3)[one.expand(3) > 0],
        lambda one: one.expand(3).long().bincount(),
        lambda one: one.expand(3).unique(),
        lambda one: torch.equal(one, one),
        lambda one: torch.ones(3).to(one.device),
        lambda one: torch.ones(3).to(one.device, non_blocking=True),  # from memory that is not pinned
        lambda one: torch.tensor([1.0, 2.0], device=one.device),
        lambda one: one.expand(3)[torch.tensor([0, 2])],
        lambda one: torch.zeros(3).copy_(one.expand(3)),
    ],
)
def test_what_waits_is_noted(wait: Callable[[Tensor], object]) -> None:
    one = torch.ones((), device=GPU)
    assert new_waits(lambda: wait(one)).total() == 1


def test_what_does_not_wait_is_not_noted() -> None:
    def work() -> Any:
        rows = upload(np.array([0, 2]), torch.device(GPU))
        table = torch.zeros(3, 2, device=GPU)
        table[rows] = 1.0
        table.index_add_(0, rows, table[rows])
        return torch.full((2,), 3.0, device=GPU).topk(1), table.sort(), table.masked_fill(table > 0, 2.0)

    assert not new_waits(work)


def test_it_draws_other_numbers_than_the_cpu() -> None:
    def drawn(device: str) -> Tensor:
        torch.manual_seed(0)
        return torch.rand(5, device=device).cpu()

    assert not torch.equal(drawn(pretend_device.NAME), drawn("cpu"))
    assert torch.equal(drawn(pretend_device.NAME), drawn(pretend_device.NAME))
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(5, device=GPU).normal_(generator=torch.Generator())


def test_memory_is_pinned_for_no_other_device() -> None:
    """Torch would pin it for the accelerator that it prefers, and refuse to copy from there to another."""
    assert upload(np.arange(3), torch.device("meta")).device.type == "meta"


BESIDE_A_GPU = """
import sys, torch
torch.cuda.is_available = lambda: True  # as on a machine with a GPU
import pretend_device, pytest
assert pytest.main(["--collect-only", "-m", "gpu", "tests/gpu", "tests/test_pretend_device.py"]) == 0
import gpu_memory
assert sys.modules["gpu.places"].DEVICE == "cuda"
assert torch._C._get_privateuse1_backend_name() == "privateuseone", "a device was registered"
with pytest.raises(RuntimeError, match="this machine has one"), pretend_device.pretended_gpu():
    pass
"""


@pytest.mark.long
def test_beside_a_gpu_none_is_pretended() -> None:
    """Collecting the tests that run on a GPU registers no device, nor does importing a benchmark's plans."""
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root / "tests"), str(root / "benchmarks")])
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", BESIDE_A_GPU], cwd=root, env=environment, check=True)
