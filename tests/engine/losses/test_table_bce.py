"""Cross-entropy over a table: value, gradients, norm and step are those of autograd on the whole, in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from xmcbench.engine.flops import counting
from xmcbench.engine.losses import Positives, cross_entropy_of_rows, score_sums
from xmcbench.engine.matrix_products import FORMULAS
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig

B, L, D = 5, 37, 4


def case() -> tuple[Tensor, Tensor, Positives, Tensor]:
    """Queries, rows, true pairs and the same as a matrix."""
    generator = torch.Generator().manual_seed(0)
    queries, rows = torch.randn(B, D, generator=generator), torch.randn(L, D, generator=generator)
    true = torch.rand(B, L, generator=generator) < 0.1
    places = true.nonzero()
    return queries, rows, Positives(places[:, 0], places[:, 1], B, L), true.float()


def made(rows: Tensor, **settings: object) -> LabelTable:
    config = TableConfig.model_validate({"optimizer": "sgd", "weight_decay": 0.01, **settings})
    table = LabelTable(np.arange(L), D, config, seed=0)
    table.weight.copy_(rows)
    return table


@pytest.mark.parametrize("width", [1, 8, L])
@pytest.mark.parametrize("upstream", [1.0, 7.0])
def test_value_gradients_norm_and_step_are_those_of_autograd(
    width: int, upstream: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(score_sums.CHUNK_SCORES, "cpu", width * B)
    queries, rows, positives, true = case()
    whole_queries, whole_rows = queries.double().requires_grad_(), rows.double().requires_grad_()
    wanted = binary_cross_entropy_with_logits(whole_queries @ whole_rows.T, true.double(), reduction="sum") / B
    (wanted * upstream).backward()
    assert whole_queries.grad is not None
    assert whole_rows.grad is not None

    table = made(rows)
    queries.requires_grad_()
    loss = cross_entropy_of_rows(queries, table, positives)
    (loss * upstream).backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    torch.testing.assert_close(queries.grad, whole_queries.grad.float(), rtol=1e-4, atol=1e-5)
    norm = float(table.gradient_norm_squared())
    assert norm == pytest.approx(float((whole_rows.grad**2).sum()), rel=1e-4)
    table.step(0.3, scale=0.5)
    stepped = whole_rows.detach() - 0.3 * (0.5 * whole_rows.grad + 0.01 * whole_rows.detach())
    torch.testing.assert_close(table.weight, stepped.float(), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_all_rows_is_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(score_sums.CHUNK_SCORES, "cpu", 8 * B)
    queries, rows, positives, _ = case()
    table = made(rows, dtype="e4m3")
    sizes: list[int] = []
    update = table._update

    def spied(place: slice, gradient_MD: Tensor, rate: float, key: int) -> None:
        sizes.append(gradient_MD.shape[0])
        update(place, gradient_MD, rate, key)

    monkeypatch.setattr(table, "_update", spied)
    cross_entropy_of_rows(queries.requires_grad_(), table, positives).backward()
    table.step(0.1)
    assert sizes == [8, 8, 8, 8, 5]
    assert table.weight.dtype == torch.float8_e4m3fn


def test_a_table_takes_one_gradient_a_step() -> None:
    queries, rows, positives, _ = case()
    table = made(rows)
    table(torch.tensor([0]))
    with pytest.raises(RuntimeError, match="deferred once a step"):
        cross_entropy_of_rows(queries.requires_grad_(), table, positives).backward()


def test_its_step_is_charged_what_torch_multiplies() -> None:
    """Products in place (`addmm_`) have formulas here, which torch's counter lacks."""
    queries, rows, positives, _ = case()
    table = made(rows, dtype="e4m3")
    unknown = {kernel: formula for kernel, formula in FORMULAS.items() if kernel not in flop_registry}
    for formula in unknown.values():
        formula._get_raw = True  # type: ignore[attr-defined]  # given tensors, not shapes
    with FlopCounterMode(display=False, custom_mapping=unknown) as counted:
        with counting() as charged:
            cross_entropy_of_rows(queries.requires_grad_(), table, positives).backward()
        table.step(0.1)
    assert charged.flops == counted.get_total_flops() > 0
    assert charged.module_flops == 0
