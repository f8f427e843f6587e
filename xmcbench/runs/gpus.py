"""The GPUs of this machine, and which of its running trials use which."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path

from xmcbench.errors import XMCBenchError
from xmcbench.suite.resources import Needs

VISIBLE = "CUDA_VISIBLE_DEVICES"  # environment variable: the GPUs that a process sees, by number or identifier
# Files of which a Linux machine with a GPU has one: of NVIDIA's driver, of AMD's, of Windows' below Linux, of a Jetson.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu")


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them. No CUDA context is made.

    torch, whose import takes seconds, is asked only where the machine seems to have a GPU.
    """
    named = os.environ.get(VISIBLE)
    if named == "" or not any(Path(file).exists() for file in DEVICE_FILES):
        return []
    import torch

    count = torch.cuda.device_count()
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]


class Gpus:
    """Deals the GPUs `names` out to trials: to each the ones that the fewest trials use."""

    def __init__(self, names: Sequence[str]) -> None:
        self.users = Counter(dict.fromkeys(names, 0))

    def wanted(self, needs: Needs) -> int:
        """The number of GPUs that a trial wants: a worker wants one where there is any, unless its needs say a number.

        The part of a GPU is a whole one.
        """
        each = needs.gpus if needs.gpus is not None else float(bool(self.users))
        return needs.workers * ceil(each)

    def check(self, needs: Needs) -> None:
        """Raise XMCBenchError where a trial asks for more GPUs than there are."""
        if needs.gpus is not None and self.wanted(needs) > len(self.users):
            raise XMCBenchError(
                f"a trial asks for {needs.workers} workers of {needs.gpus:g} GPUs, and this machine has "
                f"{len(self.users)} GPUs: lower `resources`, or say --gpus-per-worker 0"
            )

    def has_free(self, needs: Needs) -> bool:
        """Whether a trial can have GPUs of its own; one that wants more than there are waits for all."""
        free = sum(count == 0 for count in self.users.values())
        return free >= min(self.wanted(needs), len(self.users))

    def take(self, needs: Needs) -> list[str]:
        """The GPUs of a trial, each used by as few other trials as can be; the workers of a trial share too few."""
        taken = sorted(self.users, key=lambda name: self.users[name])[: self.wanted(needs)]
        self.users.update(taken)
        return taken

    def give_back(self, names: Iterable[str]) -> None:
        """A trial that had these GPUs has ended."""
        self.users.subtract(names)
