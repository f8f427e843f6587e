"""Memory and throughput of a GPU, measured in a process of its own: a CUDA context takes memory that trials need, and a
process that has one cannot fork others that use the GPU.

`python -m xmcbench.engine.planning.gpu_facts KIND SIZE` prints them as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache

SIZE = 8192  # rows and columns of the matrices: smaller products do not keep a large GPU busy
REPEATS = 8


@cache
def gpu_facts(kind: str, size: int = SIZE) -> dict[str, float]:
    """The current GPU's `memory` in bytes, and its peak in operations per second by precision: `float32`, `bf16`.

    The peak is that of the fastest of several products of square matrices, in the precision that scores have.
    """
    command = [sys.executable, "-m", __spec__.name, kind, str(size)]
    facts: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return facts


def _measured(kind: str, size: int) -> dict[str, float]:
    import torch

    device = torch.get_device_module(kind)
    memory = device.get_device_properties(0).total_memory if kind != "cpu" else 0
    peaks = {}
    for precision, dtype in {"float32": torch.float32, "bf16": torch.bfloat16}.items():
        left, right = (torch.randn(size, size, device=kind).to(dtype) for _ in range(2))
        seconds = []
        for _ in range(REPEATS):
            device.synchronize()
            start = time.perf_counter()
            torch.mm(left, right)
            device.synchronize()
            seconds.append(time.perf_counter() - start)
        peaks[precision] = 2 * size**3 / min(seconds)
    return {"memory": float(memory), **peaks}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], int(sys.argv[2]))))
