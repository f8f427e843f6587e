"""A table whose touched rows learn: they end as a dense optimiser's would, the others stay as they are."""

from __future__ import annotations

import pytest
import torch
from many_workers import on_workers
from torch.nn.functional import embedding

from xmcbench.engine.tables import row_optimizers
from xmcbench.engine.tables.row_optimizers import RowAdam
from xmcbench.engine.tables.touched_rows import RowUpdate, TouchedRows
from xmcbench.engine.workers import ALONE, Workers

FACTORS = (1.0, 0.6, 0.2)


def gradients(shape: tuple[int, ...], step: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("chunk", [2**18, 8])
@pytest.mark.parametrize("shape", [(7, 4), (7,)])
def test_rows_that_every_step_touches_end_as_with_adamw(
    shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_optimizers, "_CHUNK", {"cpu": chunk, "cuda": chunk})
    start, rows = gradients(shape, 9), torch.tensor([0, 2, 5, 6])
    table, dense = TouchedRows(start.clone()), torch.nn.Parameter(start[rows].clone())
    update = RowUpdate(table, RowAdam(0.1), rate=0.05)
    adamw = torch.optim.AdamW([dense], lr=0.05, weight_decay=0.1)
    for step, factor in enumerate(FACTORS):
        gradient = gradients((4, *shape[1:]), step)
        table.add_gradient(rows, gradient.clone())
        dense.grad, adamw.param_groups[0]["lr"] = gradient * 0.5, 0.05 * factor
        norm = update.gradient_norm_squared(ALONE)
        torch.testing.assert_close(norm, gradient.double().square().sum())
        update.step(factor, 0.5)
        adamw.step()
    torch.testing.assert_close(table.weight[rows], dense)
    assert torch.equal(table.weight[[1, 3, 4]], start[[1, 3, 4]])
    assert update.state["touches"].tolist() == [3, 0, 3, 0, 0, 3, 3]


def learnt(workers: Workers, parts: int) -> list[list[float]]:
    """A table after steps whose gradients are divided among the workers, in uneven and empty shares."""
    table = TouchedRows(torch.zeros(7, 2))
    update = RowUpdate(table, RowAdam(), rate=0.1)
    for step in range(4):
        words = torch.randint(0, 7, (6,), generator=torch.Generator().manual_seed(step))
        upstream = gradients((6, 2), step)
        shares = [slice(0, 1), slice(1, 6)] if step else [slice(0, 6), slice(0, 0)]
        for part in range(parts):
            if part % workers.size == workers.rank:
                mine = shares[part] if parts > 1 else slice(0, 6)
                rows = words[mine].unique()
                dense = torch.zeros(7, 2, requires_grad=True)
                (embedding(words[mine], dense) * upstream[mine]).sum().backward()
                table.add_gradient(rows, dense.grad[rows])
        update.gradient_norm_squared(workers)
        update.step(1.0, 1.0)
    return table.weight.tolist()


def test_gradients_of_several_parts_and_workers_are_summed() -> None:
    whole = torch.tensor(learnt(ALONE, 1))
    torch.testing.assert_close(torch.tensor(learnt(ALONE, 2)), whole)
    first, second = on_workers(2, learnt, 2)
    assert first == second
    torch.testing.assert_close(torch.tensor(first), whole)
