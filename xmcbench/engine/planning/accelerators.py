"""What a plan has to know of a device: its peak and its memory, from the makers' data sheets.

Peaks are of dense matrix products in bf16 with float32 sums, those of sparse matrices left out; a V100 and a T4 have no
bf16, theirs are of float16. float32 is what the device does without rounding the factors (no TF32).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xmcbench.errors import UnknownNameError

UTILISATION = 0.3  # of the peak, assumed where nobody says what is reached
GB = 1e9


@dataclass(frozen=True)
class Accelerator:
    """A device: operations a second at its peak, by precision, and bytes of memory."""

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
HERE = "here"  # the processors of this machine, their peak measured


def accelerator(name: str) -> Accelerator:
    """The device called `name`; `here` is this machine. Raises `UnknownNameError` for another name."""
    if name == HERE:
        return _here()
    if name not in ACCELERATORS:
        raise UnknownNameError("accelerator", name, [*ACCELERATORS, HERE], "--accelerator")
    return ACCELERATORS[name]


def _here() -> Accelerator:
    """This machine's processors: the best of a few matrix products is the peak."""
    from time import perf_counter

    import psutil
    import torch

    def peak(kind: torch.dtype) -> float:
        size, best = 1024, 0.0
        left, right = (torch.randn(size, size).to(kind) for _ in range(2))
        for _ in range(6):
            start = perf_counter()
            torch.mm(left, right)
            best = max(best, 2 * size**3 / (perf_counter() - start))
        return best

    found = Accelerator(HERE, 0.0, peak(torch.float32), float(psutil.virtual_memory().total), "measured")
    return replace(found, bf16=peak(torch.bfloat16))
