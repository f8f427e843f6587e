"""One integer hash for arrays and tensors: the published sequence, and a bijection."""

from __future__ import annotations

import numpy as np
import torch

from xmcbench.trial.splitmix64 import mix, splitmix64

SEQUENCE = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the original in C, seed 0


def test_arrays_and_tensors_give_the_published_sequence() -> None:
    states = np.arange(1, 4)
    assert splitmix64(states).view(np.uint64).tolist() == SEQUENCE
    assert splitmix64(torch.from_numpy(states)).numpy().view(np.uint64).tolist() == SEQUENCE


def test_no_two_numbers_share_a_hash() -> None:
    numbers = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)
    assert len(np.unique(mix(numbers))) == len(np.unique(numbers))
