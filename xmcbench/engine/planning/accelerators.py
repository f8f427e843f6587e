"""Peak throughput and memory of devices, from the manufacturers' data sheets.

The bf16 peaks are of dense matrix products that accumulate in float32; V100 and T4 have no bf16, their peaks are of
float16. The float32 peaks are without TF32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xmcbench.errors import UnknownNameError

UTILISATION = 0.3  # assumed fraction of peak throughput
GB = 1e9


@dataclass(frozen=True)
class Accelerator:
    """A device: peak operations per second by precision, and bytes of memory."""

    name: str
    bf16: float
    float32: float
    memory: float
    source: str

    def peak(self, precision: str) -> float:
        return self.bf16 if precision == "bf16" else self.float32


_ALL = (
    Accelerator("v100-32gb", 125e12, 15.7e12, 32 * GB, "NVIDIA V100 data sheet, SXM2 (float16)"),
    Accelerator("t4", 65e12, 8.1e12, 16 * GB, "NVIDIA T4 data sheet (float16)"),
    Accelerator("a10", 125e12, 31.2e12, 24 * GB, "NVIDIA A10 data sheet"),
    Accelerator("a6000", 154.8e12, 38.7e12, 48 * GB, "NVIDIA RTX A6000 data sheet"),
    Accelerator("a100-40gb", 312e12, 19.5e12, 40 * GB, "NVIDIA A100 data sheet"),
    Accelerator("a100-80gb", 312e12, 19.5e12, 80 * GB, "NVIDIA A100 data sheet"),
    Accelerator("l4", 121e12, 30.3e12, 24 * GB, "NVIDIA L4 data sheet"),
    Accelerator("h100", 989.4e12, 67e12, 80 * GB, "NVIDIA H100 data sheet, SXM"),
    Accelerator("h200", 989.4e12, 67e12, 141 * GB, "NVIDIA H200 data sheet, SXM"),
)
ACCELERATORS = {device.name: device for device in _ALL}
HERE = "here"  # the device that trials use on this machine, its peak measured


def accelerator(name: str) -> Accelerator:
    """The device called `name`; `here` is this machine. Raises `UnknownNameError` for another name."""
    if name == HERE:
        import psutil
        import torch

        gpu = device_kind() == "cuda"
        memory = torch.cuda.get_device_properties(0).total_memory if gpu else psutil.virtual_memory().total
        return _Here(HERE, 0.0, 0.0, float(memory), f"measured in {'seconds' if gpu else 'CPU time'}")
    if name not in ACCELERATORS:
        raise UnknownNameError("accelerator", name, [*ACCELERATORS, HERE], "--accelerator")
    return ACCELERATORS[name]


class _Here(Accelerator):
    """The device of this machine; its peak is measured when it is first asked for."""

    def peak(self, precision: str) -> float:
        return measured_peak(precision, device_kind())


def device_kind() -> str:
    """The kind of device that trials use on this machine: `cpu` or `cuda`."""
    from xmcbench.engine.device import default_device

    return default_device().type


@cache
def measured_peak(precision: str, device: str = "cpu", size: int = 1024) -> float:
    """Operations per second of the fastest of several products of two square matrices, in `bf16` or `float32`.

    On a CPU: of one thread in its own CPU time, times the threads of a trial, so that other work does not count.
    """
    from time import perf_counter, thread_time

    import torch

    on_gpu, threads = device == "cuda", torch.get_num_threads()
    clock, fastest = perf_counter if on_gpu else thread_time, 0.0
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    torch.set_num_threads(1)
    for _ in range(8):
        start = clock()
        torch.mm(left, right)
        if on_gpu:
            torch.cuda.synchronize()
        fastest = max(fastest, 2 * size**3 / (clock() - start))
    torch.set_num_threads(threads)
    return fastest if on_gpu else threads * fastest
