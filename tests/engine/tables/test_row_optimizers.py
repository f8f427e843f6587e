"""Row optimisers equal torch's where every step touches all rows, and touch nothing else where it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xmcbench.engine.tables.row_optimizers import MomentumSGD, RowAdam, RowOptimizer

N, D, STEPS = 7, 5, 40
OPTIMIZERS = [
    (RowAdam(), torch.optim.AdamW, {"weight_decay": 0.0}),
    (RowAdam(weight_decay=0.1, betas=(0.8, 0.95), epsilon=1e-3), torch.optim.AdamW,
     {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
    (MomentumSGD(), torch.optim.SGD, {}),
    (MomentumSGD(0.9, weight_decay=1e-2), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
]  # fmt: skip


def gradients(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("optimizer", "reference", "settings"), OPTIMIZERS)
def test_all_rows_every_step_is_what_torch_does(
    optimizer: RowOptimizer,
    reference: type[torch.optim.Optimizer],
    settings: dict[str, float],
    dtype: torch.dtype,
) -> None:
    start = torch.linspace(-1, 1, N * D, dtype=dtype).view(N, D)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    torchs = reference([theirs], lr=1.0, **settings)  # type: ignore[call-arg]
    state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in optimizer.state(N, D).items()}
    for step, gradient in enumerate(gradients(dtype)):
        rate = 0.1 / (step + 1)  # a schedule
        optimizer.update(ours, gradient.clone(), state, rate)
        torchs.param_groups[0]["lr"] = rate
        theirs.grad = gradient
        torchs.step()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(ours, theirs.detach(), rtol=tolerance, atol=tolerance)
    assert (ours - start).abs().max() > 0.1


def adam_by_hand(start: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    """Kingma & Ba, Algorithm 1, with the decay of Loshchilov & Hutter, Algorithm 2, line 12; float64."""
    weight, mean, square = start.astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        corrected, spread = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        weight = weight - rate * corrected / (np.sqrt(spread) + 1e-8) - rate * decay * weight
    return weight


def test_a_row_counts_its_own_steps() -> None:
    """A row touched every third step ends where Adam on its gradients alone would end."""
    optimizer, rate = RowAdam(weight_decay=0.05), 0.01
    weight = torch.linspace(-1, 1, N * D).view(N, D)
    start, state = weight.numpy().copy(), optimizer.state(N, D)
    seen: dict[int, list[np.ndarray]] = {row: [] for row in range(N)}
    for step, gradient in enumerate(gradients()):
        for row in (row for row in range(N) if step % 3 == row % 3):
            place = slice(row, row + 1)
            views = {name: tensor[place] for name, tensor in state.items()}
            optimizer.update(weight[place], gradient[place].clone(), views, rate)
            seen[row].append(gradient[row].numpy().astype(np.float64))
    for row in range(N):
        wanted = adam_by_hand(start[row], seen[row], rate, decay=0.05)
        np.testing.assert_allclose(weight[row].numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert state["touches"].tolist() == [len(seen[row]) for row in range(N)]


def test_plain_descent_keeps_no_state() -> None:
    assert MomentumSGD().state(N, D) == {}


@pytest.mark.parametrize("optimizer", [RowAdam(), MomentumSGD(0.9)])
def test_state_is_rows(optimizer: RowOptimizer) -> None:
    assert {tensor.shape[0] for tensor in optimizer.state(N, D).values()} == {N}
