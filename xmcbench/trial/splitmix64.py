"""SplitMix64 (Steele, Lea & Flood, 2014): an integer hash for int64 arrays of numpy and int64 tensors of torch alike.

Signed arithmetic wraps around, so that the bits are those of the unsigned original.
"""

from __future__ import annotations

from typing import Any

Integers = Any  # an int64 array of numpy or tensor of torch; a result is of the same kind

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def splitmix64(numbers: Integers) -> Integers:
    """The output of SplitMix64 in each of the states `numbers` times the golden ratio."""
    return mix(numbers * _GOLDEN)


def mix(numbers: Integers) -> Integers:
    """The finalizer of SplitMix64, a bijection of 64-bit integers."""
    for shift, factor in _ROUNDS:
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Integers, places: int) -> Integers:
    """`numbers` shifted to the right, with zeros from the left."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)
