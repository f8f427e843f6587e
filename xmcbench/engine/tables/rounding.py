"""Rounding float32 to bfloat16 without losing small updates.

A bfloat16 has 8 bits of precision: where every step is rounded to nearest, a weight that should move by less than 1/512
of its size does not move. Stochastic rounding goes up with the probability of the part that does not fit, so that it is
right on average (ELMO trains its classifier so). Compensation keeps that part: where a second bfloat16, as in Kahan's
summation, would round again, 16 bits hold all of it, as in the split weights of Kalamkar et al. (2020).

The noise is a hash of step, row and column, not the next draw of a generator: a row is rounded alike wherever it lies,
with whatever other rows, in chunks of whatever size, on any number of workers.

Legend: M rows, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xmcbench.trial.splitmix64 import splitmix64

_LOW_BITS = 16  # of a float32, which a bfloat16 lacks


def stochastic(values_MD: Tensor, row_ids_M: Tensor, key: int) -> Tensor:
    """Float32 `values_MD` in bfloat16, each rounded up with the probability that makes its expectation the value.

    `row_ids_M` (int64) number the rows in the whole table, `key` is of the step. What is not finite stays so.
    """
    bits_MD = noise(row_ids_M, values_MD.shape[1], key).add_(values_MD.view(torch.int32))
    rounded_MD = bits_MD.bitwise_and_(-(1 << _LOW_BITS)).view(torch.float32)
    # A carry out of the bits of a NaN would make a number of it; zero times a NaN keeps it one.
    return rounded_MD.add_(values_MD, alpha=0.0).to(torch.bfloat16)


def split(values_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 values as the nearest bfloat16 (the larger of two as near), and what that lacks, int16."""
    bits_MD = values_MD.view(torch.int32)
    nearest_MD = (bits_MD + (1 << _LOW_BITS - 1)).bitwise_and_(-(1 << _LOW_BITS))
    return nearest_MD.view(torch.float32).to(torch.bfloat16), (bits_MD - nearest_MD).to(torch.int16)


def join(nearest_MD: Tensor, rest_MD: Tensor) -> Tensor:
    """The float32 values that `split` took apart, to the last bit where they are finite."""
    return nearest_MD.float().view(torch.int32).add_(rest_MD).view(torch.float32)


def noise(row_ids_M: Tensor, num_columns: int, key: int) -> Tensor:
    """Int32 [M, D], uniform in 0 .. 65535, a pure function of each row's id, the column and `key`."""
    rows_M1 = _mixed(row_ids_M + key)[:, None]
    columns_D = _mixed(torch.arange(num_columns, device=row_ids_M.device))
    bits_MD = rows_M1 + columns_D
    # Two rounds of multiply and shift, as in a hash function's finaliser; products wrap around.
    bits_MD.mul_(0x7FEB352D)
    bits_MD.bitwise_xor_((bits_MD >> 15).bitwise_and_(0x1FFFF))
    bits_MD.mul_(0x846CA68B - 2**32)
    return bits_MD.bitwise_right_shift_(32 - _LOW_BITS).bitwise_and_(0xFFFF)


def _mixed(numbers: Tensor) -> Tensor:
    """Int32 hashes of int64 numbers: the lower half of SplitMix64."""
    mixed = splitmix64(numbers) & 0xFFFFFFFF
    return torch.where(mixed >= 2**31, mixed - 2**32, mixed).to(torch.int32)
