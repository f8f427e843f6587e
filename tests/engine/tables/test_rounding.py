"""bfloat16 with nothing lost: unbiased noise that depends on row, column and step alone."""

from __future__ import annotations

import pytest
import torch

from xmcbench.engine.tables import rounding

ROWS = torch.arange(1000)


def hashed(row: int, column: int, key: int) -> int:
    """The noise of one place, with Python's integers."""

    def mixed(number: int) -> int:
        state = number * 0x9E3779B97F4A7C15 % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ state >> shift) * factor % 2**64
        return (state ^ state >> 31) % 2**32

    bits = (mixed(row + key) + mixed(column)) * 0x7FEB352D % 2**32
    bits = (bits ^ bits >> 15) * 0x846CA68B % 2**32
    return bits >> 16


@pytest.mark.parametrize("key", [0, 12345, 2**63 - 100])
def test_the_noise_is_the_same_hash_everywhere(key: int) -> None:
    """Integer overflow must not depend on the machine: the noise is part of a trial's numbers."""
    found = rounding.noise(torch.tensor([0, 1, 99, 1_299_999]), 8, key)
    wanted = [[hashed(row, column, key) for column in range(8)] for row in (0, 1, 99, 1_299_999)]
    assert found.tolist() == wanted


def test_the_noise_is_uniform_and_independent_of_its_neighbours() -> None:
    noise = rounding.noise(ROWS, 512, key=7).double() / 2**16
    counts = torch.histc(noise, 64, 0, 1)
    expected = noise.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * (2 * 63) ** 0.5  # chi-squared, five sigma
    other_step = rounding.noise(ROWS, 512, key=8).double() / 2**16
    for shifted in (noise.roll(1, 0), noise.roll(1, 1), noise.roll((1, 1), (0, 1)), other_step):
        correlation = torch.corrcoef(torch.stack([noise.flatten(), shifted.flatten()]))[0, 1]
        assert abs(correlation) < 5 / noise.numel() ** 0.5


@pytest.mark.parametrize("value", [1 + 2**-10, -1 - 2**-10, 3.14159, 1e-30, -1e30, 1 - 2**-20])
def test_stochastic_rounding_is_right_on_average(value: float) -> None:
    values = torch.full((1000, 256), value, dtype=torch.float32)
    rounded = rounding.stochastic(values, ROWS, key=1).double()
    below, above = rounded.min(), rounded.max()
    assert above - below < abs(value) / 100  # the two neighbours
    sigma = float(above - below) / 2 / values.numel() ** 0.5
    assert abs(float(rounded.mean() - values[0, 0].double())) <= 5 * sigma


def test_what_fits_is_not_rounded() -> None:
    values = torch.randn(1000, 16).to(torch.bfloat16)
    assert torch.equal(rounding.stochastic(values.float(), ROWS, key=3), values)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800001, 0x7F800000, -0x00800000, -1])
def test_what_is_not_finite_stays_so(bits: int) -> None:
    """The NaN of CUDA's arithmetic has all bits set: any noise would carry into its sign and make it zero."""
    values = torch.full((1000, 16), bits, dtype=torch.int32).view(torch.float32)
    assert not rounding.stochastic(values, ROWS, key=3).isfinite().any()


def test_rows_are_rounded_alike_wherever_they_lie() -> None:
    values = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
    whole = rounding.stochastic(values, ROWS, key=5)
    some = torch.tensor([999, 3, 500])
    assert torch.equal(rounding.stochastic(values[some], some, key=5), whole[some])
    assert not torch.equal(rounding.stochastic(values, ROWS, key=6), whole)
