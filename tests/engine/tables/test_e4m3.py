"""Eight bits without scaling: the true grid, rounding that is right on average on all of it, and rows that learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xmcbench.engine.tables import rounding
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig

ROWS = torch.arange(1000)
GRID = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
GRID = GRID[GRID.isfinite()].unique()  # ascending; -0 is 0
# Weights by Xavier's rule at 1.3 million labels are below .0021; 2^-6 is .0156.
SMALL = [0.0042, 0.0025, 0.0012, 0.0007]


def mean_rounded(value: float, seed: int = 1) -> float:
    values = torch.full((1000, 1024), value)
    return float(rounding.stochastic_e4m3(values, ROWS, seed).double().mean())


def by_random_bits(value: float) -> float:
    """The mean of what random bits make of a float32: 20 are added below the 3 that stay, the rest is cut off."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.full((1_000_000,), value).view(torch.int32)
    bits = (bits + torch.randint(0, 1 << 20, bits.shape, generator=generator, dtype=torch.int32)) & -(1 << 20)
    return float(bits.view(torch.float32).to(torch.float8_e4m3fn).double().mean())


def test_the_grid_has_253_numbers_and_what_is_on_it_is_not_rounded() -> None:
    assert len(GRID) == 253  # of 256 codes two are NaN and two are zero
    values = GRID[None].repeat(1000, 1)
    assert torch.equal(rounding.stochastic_e4m3(values, ROWS, key=3).float(), values)


@pytest.mark.parametrize("value", [*SMALL, -0.0012, 1e-5, 0.0156, 0.0157, -0.3, 1.99, 3.14159, 447.0])
def test_a_value_goes_to_one_of_its_neighbours_and_is_right_on_average(value: float) -> None:
    rounded = rounding.stochastic_e4m3(torch.full((1000, 1024), value), ROWS, key=1).float().unique()
    above = int(torch.searchsorted(GRID, torch.tensor(value)))
    assert set(rounded.tolist()) == {float(GRID[above - 1]), float(GRID[above])}
    sigma = float(GRID[above] - GRID[above - 1]) / 2 / 1_024_000**0.5
    assert abs(mean_rounded(value) - float(torch.tensor(value))) < 5 * sigma


@pytest.mark.parametrize(("value", "bias"), [(0.0042, -0.07), (0.0025, -0.22), (0.0012, 0.63), (0.0007, -1.0)])
def test_random_bits_are_biased_below_the_normal_numbers(value: float, bias: float) -> None:
    """What public code does, and the reason why it is not done here."""
    assert by_random_bits(value) / value - 1 == pytest.approx(bias, abs=0.01)
    assert mean_rounded(value) / value - 1 == pytest.approx(0.0, abs=0.01)
    assert by_random_bits(0.3) / 0.3 - 1 == pytest.approx(0.0, abs=0.001)


def test_the_ends_of_the_range() -> None:
    values = torch.tensor([[1e9, -1e9, 449.0, 2**-40, 0.0, -0.0]]).repeat(1000, 1)
    found = rounding.stochastic_e4m3(values, ROWS, key=1).float()
    assert torch.equal(found[0], torch.tensor([448.0, -448.0, 448.0, 0.0, 0.0, 0.0]))
    lost = torch.tensor([[torch.inf, -torch.inf, torch.nan]]).repeat(1000, 1)
    assert rounding.stochastic_e4m3(lost, ROWS, key=1).float().isnan().all()


def test_rows_are_rounded_alike_wherever_they_lie() -> None:
    values = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0)) / 100
    whole = rounding.stochastic_e4m3(values, ROWS, key=5).float()
    some = torch.tensor([999, 3, 500])
    assert torch.equal(rounding.stochastic_e4m3(values[some], some, key=5).float(), whole[some])


def table(seed: int, **settings: str) -> LabelTable:
    return LabelTable(torch.arange(40), 8, TableConfig(optimizer="sgd", **settings), seed=seed)  # type: ignore[arg-type]


def after_steps(made: LabelTable, steps: int = 20) -> Tensor:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        rows = torch.randint(0, 40, (30,), generator=generator)
        (made(rows) * torch.randn(30, 8, generator=generator)).sum().backward()
        made.step(0.001)
    return made.weight.double()


def test_small_steps_of_some_rows_are_those_of_float32_on_average() -> None:
    exact = after_steps(table(0))
    tables = [table(seed, dtype="e4m3") for seed in range(300)]
    assert tables[0].weight.dtype == torch.float8_e4m3fn
    ours = torch.stack([after_steps(each) for each in tables])
    error = ours.std(0) / len(tables) ** 0.5
    assert (ours.mean(0) - exact).abs().max() < 5.5 * error.max()
    assert exact.abs().max() < 2**-6  # where random bits fail


def test_small_random_rows_are_there_on_average() -> None:
    made = LabelTable(torch.arange(10_000), 64, TableConfig(optimizer="sgd", dtype="e4m3"), seed=0)
    made.fill(lambda block_ND, generator: block_ND.uniform_(-0.0021, 0.0021, generator=generator).abs_())
    assert float(made.weight.double().mean()) == pytest.approx(0.00105, rel=0.02)
