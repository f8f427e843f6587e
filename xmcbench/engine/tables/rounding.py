"""Rounding float32 to bfloat16, or to the 8 bits of e4m3, without losing small updates.

A bfloat16 has 8 bits of precision: where every step is rounded to nearest, a weight that should move by less than 1/512
of its size does not move. Stochastic rounding goes up with the probability of the part that does not fit, so that it is
right on average (ELMO trains its classifier so).

An e4m3 has 3 bits after the leading one down to 2^-6; below that its grid is the multiples of 2^-9. Adding random bits
to a float32 and cutting it to 3 bits, as public code does, is right on average above 2^-6 only: below, the result is
not on the grid, and the conversion rounds it again, to nearest. Here a value goes to one of its two neighbours on the
grid, wherever it is.

The noise is a hash of step, row and column, not the next draw of a generator: a row is rounded alike wherever it lies,
with whatever other rows, in chunks of whatever size, on any number of workers.

Legend: M rows, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xmcbench.trial.splitmix64 import splitmix64

_LOW_BITS = 16  # of a float32, which a bfloat16 lacks
_FLOAT_BITS, _FLOAT_BIAS = 23, 127  # of a float32: bits after the leading one, and what its exponent is stored with
_E4M3_BITS, _E4M3_LOWEST = 3, -6  # of an e4m3: the same bits, and the exponent below which all steps are equal
_E4M3_LARGEST = 448.0
_FINE = 24  # random bits where a share of a step decides


def stochastic(values_MD: Tensor, row_ids_M: Tensor, key: int) -> Tensor:
    """Float32 `values_MD` in bfloat16, each rounded up with the probability that makes its expectation the value.

    `row_ids_M` (int64) number the rows in the whole table, `key` is of the step. What is not finite stays so.
    """
    bits_MD = noise(row_ids_M, values_MD.shape[1], key).add_(values_MD.view(torch.int32))
    rounded_MD = bits_MD.bitwise_and_(-(1 << _LOW_BITS)).view(torch.float32)
    # A carry out of the bits of a NaN would make a number of it; zero times a NaN keeps it one.
    return rounded_MD.add_(values_MD, alpha=0.0).to(torch.bfloat16)


def stochastic_e4m3(values_MD: Tensor, row_ids_M: Tensor, key: int) -> Tensor:
    """Float32 `values_MD` in e4m3, each rounded up with the probability that makes its expectation the value.

    Arguments as of `stochastic`. Probabilities are multiples of 2^-24. Values beyond 448 become 448, what is not finite
    becomes NaN.
    """
    exponents_MD = (values_MD.view(torch.int32) >> _FLOAT_BITS).bitwise_and_(0xFF).sub_(_FLOAT_BIAS)
    steps_MD = exponents_MD.clamp_(min=_E4M3_LOWEST).sub_(_E4M3_BITS)  # as powers of two, so that products are exact
    step_MD = steps_MD.add_(_FLOAT_BIAS).bitwise_left_shift_(_FLOAT_BITS).view(torch.float32)
    places_MD = values_MD / step_MD
    below_MD = places_MD.floor()
    shares_MD = (places_MD - below_MD).mul_(2.0**_FINE)
    up_MD = noise(row_ids_M, values_MD.shape[1], key, _FINE) < shares_MD
    rounded_MD = below_MD.add_(up_MD).mul_(step_MD).clamp_(-_E4M3_LARGEST, _E4M3_LARGEST)
    return rounded_MD.masked_fill_(~values_MD.isfinite(), torch.nan).to(torch.float8_e4m3fn)


def noise(row_ids_M: Tensor, num_columns: int, key: int, bits: int = _LOW_BITS) -> Tensor:
    """Int32 [M, D] of so many random bits, a pure function of each row's id, the column and `key`."""
    rows_M1 = _mixed(row_ids_M + key)[:, None]
    columns_D = _mixed(torch.arange(num_columns, device=row_ids_M.device))
    bits_MD = rows_M1 + columns_D
    # Two rounds of multiply and shift, as in a hash function's finaliser; products wrap around.
    bits_MD.mul_(0x7FEB352D)
    bits_MD.bitwise_xor_((bits_MD >> 15).bitwise_and_(0x1FFFF))
    bits_MD.mul_(0x846CA68B - 2**32)
    return bits_MD.bitwise_right_shift_(32 - bits).bitwise_and_((1 << bits) - 1)


def _mixed(numbers: Tensor) -> Tensor:
    """Int32 hashes of int64 numbers: the lower half of SplitMix64."""
    mixed = splitmix64(numbers) & 0xFFFFFFFF
    return torch.where(mixed >= 2**31, mixed - 2**32, mixed).to(torch.int32)
