"""Label tables: only touched rows change, and they change as the same rows of a dense table would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from many_workers import MOST, on_workers
from pydantic import ValidationError
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xmcbench.engine.gradient_norm import clip, global_gradient_norm
from xmcbench.engine.tables import label_table, row_optimizers
from xmcbench.engine.tables.label_table import LabelTable, TableConfig
from xmcbench.engine.workers import ALONE, Workers

N, D, RATE = 13, 6, 0.05
ADAM = {"optimizer": "adam", "weight_decay": 0.02}
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-2}
PLAIN = {"optimizer": "sgd"}
DTYPES = ["float32", "bf16"]
EVERY = [{**optimizer, "dtype": dtype} for optimizer in (ADAM, SGD, PLAIN) for dtype in DTYPES]


def normal(block: Tensor, generator: Generator) -> None:
    block.normal_(0, 0.5, generator=generator)


def table(config: dict[str, Any], ids: Tensor | None = None) -> LabelTable:
    made = LabelTable(torch.arange(N) if ids is None else ids, D, TableConfig(**config), seed=3)
    made.fill(normal)
    return made


def pool(step: int) -> Tensor:
    """Rows of a step, some of them repeatedly."""
    return torch.randint(0, N, (8,), generator=torch.Generator().manual_seed(step))


def loss(rows_SD: Tensor, ids: Tensor, step: int) -> Tensor:
    """Smooth, and different for every id, step and dimension."""
    target_SD = torch.sin(ids[:, None] * 7.0 + torch.arange(D) + step)
    return ((rows_SD.float() - target_SD) ** 2).sum()


def train(made: LabelTable, steps: range, at: Callable[[int], float] = lambda step: 1 / (step + 1)) -> LabelTable:
    for step in steps:
        rows = pool(step)
        loss(made(rows), rows, step).backward()
        made.step(RATE * at(step), scale=0.5)
    return made


def same(first: LabelTable, second: LabelTable) -> bool:
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def copies(made: LabelTable) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in made.state_dict().items()}


# Which rows change, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reference", "settings"),
    [
        (ADAM, torch.optim.AdamW, {"weight_decay": 0.02}),
        (SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
        (PLAIN, torch.optim.SGD, {}),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_all_rows_every_step_is_the_dense_optimiser(
    config: dict[str, Any], reference: Any, settings: dict[str, float], named: bool
) -> None:
    ours, everything = table(config), torch.randperm(N)
    dense = ours.weight.clone().requires_grad_()
    torchs = reference([dense], lr=RATE, **settings)
    for step in range(30):
        if named:
            loss(ours(everything), everything, step).backward()
        else:
            loss(ours(), torch.arange(N), step).backward()
        ours.step(RATE)
        torchs.zero_grad()
        loss(dense, torch.arange(N), step).backward()
        torchs.step()
    torch.testing.assert_close(ours.weight, dense.detach(), rtol=1e-5, atol=1e-6)


def test_rows_that_the_method_writes_do_not_learn() -> None:
    made = table({"optimizer": "none"})
    before = made.weight.clone()
    assert not made.learns
    assert not made(torch.tensor([1, 2])).requires_grad
    made.step(RATE)
    assert torch.equal(made.weight, before)
    assert made.state_dict().keys() == {"weight", "updates"}


@pytest.mark.parametrize("config", EVERY)
def test_rows_that_are_not_touched_keep_every_bit(config: dict[str, Any]) -> None:
    made = train(table(config), range(5))
    before, rows = copies(made), torch.tensor([1, 4, 4, 9])
    loss(made(rows), rows, 5).backward()
    made.step(RATE)
    untouched = torch.ones(N, dtype=torch.bool)
    untouched[rows] = False
    for name, tensor in made.state_dict().items():
        if tensor.ndim:
            assert torch.equal(tensor[untouched], before[name][untouched]), name
    assert (made.weight[rows] != before["weight"][rows]).any(1).all()


@pytest.mark.parametrize("config", [ADAM, SGD])
def test_touched_rows_do_as_rows_of_a_table_that_has_no_others(config: dict[str, Any]) -> None:
    mine = torch.tensor([2, 3, 8])
    whole, part = table(config), table(config, mine)
    for step in range(10):
        places = torch.tensor([[0, 2], [1, 2]][step % 2])
        loss(whole(mine[places]), mine[places], step).backward()
        loss(part(places), mine[places], step).backward()
        whole.step(RATE)
        part.step(RATE)
    for name, tensor in part.state_dict().items():
        torch.testing.assert_close(tensor, whole.state_dict()[name][mine] if tensor.ndim else tensor, rtol=0, atol=0)


def test_repeated_rows_are_summed_once_each_and_touched_once() -> None:
    rows = torch.tensor([5, 2, 5, 5])
    weights = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    made = table(PLAIN)
    start = made.weight.clone()
    (made(rows) * weights[:, None]).sum().backward()
    assert float(made.gradient_norm_squared()) == pytest.approx(D * (1101.0**2 + 10.0**2), rel=1e-6)
    made.step(RATE)
    moved = (start - made.weight) / RATE
    torch.testing.assert_close(moved[5], torch.full((D,), 1101.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(moved[2], torch.full((D,), 10.0), rtol=1e-4, atol=0)

    adam = table(ADAM)
    adam(rows).sum().backward()
    adam.step(RATE)
    assert adam.get_buffer("touches").nonzero().flatten().tolist() == [2, 5]
    assert adam.get_buffer("touches").max() == 1


@pytest.mark.parametrize("second", [pool(1), None])
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_leaves_of_a_step_are_combined(dtype: str, second: Tensor | None) -> None:
    """Asked for twice, on the query side and the label side, the rows get both gradients in one update."""
    made = table({**PLAIN, "dtype": dtype})
    start = made.weight.float().clone()
    first, other, unused = made(pool(0)), made(second), made(pool(2))
    assert unused.is_leaf
    (first.sum() * 2 + (other.sum() * 4 if second is None else other.sum() * 3)).backward()
    made.step(RATE)
    wanted = 2 * torch.bincount(pool(0), minlength=N) + (
        4 if second is None else 3 * torch.bincount(second, minlength=N)
    )
    tolerance = 1e-5 if dtype == "float32" else 0.2
    torch.testing.assert_close(
        (start - made.weight.float()) / RATE, wanted[:, None].expand(N, D).float(), rtol=tolerance, atol=tolerance
    )


def test_rows_the_loss_made_nothing_of_are_touched_like_rows_without_gradient() -> None:
    """Whether a worker's part of the loss depends on its rows must not show in how they decay."""
    unused, zero = table(ADAM), table(ADAM)
    unused(pool(0))
    (zero(pool(0)) * 0).sum().backward()
    unused.step(RATE)
    zero.step(RATE)
    assert same(unused, zero)
    assert unused.get_buffer("touches").sum() == len(torch.unique(pool(0)))


@pytest.mark.parametrize("config", EVERY)
def test_chunks_make_no_difference(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(table(config), range(4))
    monkeypatch.setitem(row_optimizers._CHUNK, "cpu", 2 * D)
    chunked = train(table(config), range(4))
    assert same(chunked, whole)


@pytest.mark.parametrize("config", EVERY)
def test_all_rows_are_handed_out_without_a_copy(config: dict[str, Any]) -> None:
    made = table(config)
    leaf = made()
    assert leaf.data_ptr() == made.weight.data_ptr()
    assert leaf.dtype == made.weight.dtype
    assert made(pool(0)).dtype == torch.float32


def test_the_scale_is_of_the_gradient_not_of_the_decay() -> None:
    made = table({**PLAIN, "weight_decay": 0.5})
    start = made.weight.clone()
    made(pool(0)).sum().backward()
    made.step(RATE, scale=0.0)
    touched = torch.unique(pool(0))
    torch.testing.assert_close(made.weight[touched], start[touched] * (1 - RATE * 0.5))


def test_reading_without_autograd_leaves_nothing_to_update() -> None:
    made = table(ADAM)
    with torch.no_grad():
        assert not made(pool(0)).requires_grad
    before = copies(made)
    made.step(RATE)
    assert torch.equal(made.weight, before["weight"])
    assert int(made.updates) == 1


@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize("num_rows", [0, N])
def test_no_rows(config: dict[str, Any], num_rows: int) -> None:
    """A worker's shard of a pool may be empty, and so may its table."""
    made = table(config, torch.arange(num_rows))
    before = copies(made)
    leaf = made(torch.empty(0, dtype=torch.int64))
    assert leaf.shape == (0, D)
    leaf.sum().backward()
    if num_rows == 0:
        made().sum().backward()
    assert float(made.gradient_norm_squared()) == 0
    made.step(RATE)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items() if tensor.ndim)


def test_rows_are_found_by_their_number_in_the_whole_table() -> None:
    made = table(ADAM, torch.tensor([2, 5, 11]))
    assert made.rows_of(torch.tensor([11, 2, 2])).tolist() == [2, 0, 0]
    for absent in (0, 3, 12):
        with pytest.raises(IndexError, match="none of the 3"):
            made.rows_of(torch.tensor([5, absent]))


@pytest.mark.parametrize("config", EVERY)
def test_it_has_no_parameters_and_its_state_is_rows_or_scalars(config: dict[str, Any]) -> None:
    made = table(config)
    assert not list(made.parameters())
    assert {tensor.shape[:1] for tensor in made.state_dict().values()} == {(N,), ()}


# bfloat16 ----------------------------------------------------------------------------------------------------------


def after_tiny_steps(dtype: str) -> Tensor:
    """Weights of 1 that went down 2,000 times by an eightieth of the distance between 1 and the next bfloat16."""
    made = LabelTable(torch.arange(64), 64, TableConfig(optimizer="sgd", dtype=dtype), seed=0)
    made.weight.fill_(1.0)
    gradient = torch.ones_like(made.weight)
    for _ in range(2_000):
        made().grad = gradient
        made.step(5e-5)
    return made.weight.double()


def test_small_updates_are_not_lost() -> None:
    """To nearest, bfloat16 would stay at 1 for ever."""
    plain = torch.ones((), dtype=torch.bfloat16)
    assert plain - torch.tensor(5e-5, dtype=torch.bfloat16) == plain
    wanted = after_tiny_steps("float32")
    assert (wanted - 0.9).abs().max() < 2e-3  # float32 has rounded too
    stochastic = after_tiny_steps("bf16")
    assert abs(float(stochastic.mean()) - 0.9) < 1e-3
    assert 0 < float(stochastic.std()) < 0.03


@pytest.mark.parametrize("config", [ADAM, SGD, PLAIN])
def test_bf16_learns_what_float32_learns(config: dict[str, Any]) -> None:
    steps, steady = range(300), lambda _step: 0.5
    exact, ours = train(table(config), steps, steady), train(table({**config, "dtype": "bf16"}), steps, steady)
    assert ours.weight.dtype == torch.bfloat16
    assert (ours.weight.float() - exact.weight).abs().mean() < 0.01
    assert (exact.weight - table(config).weight).abs().mean() > 0.3


def test_rounding_differs_between_steps_and_seeds() -> None:
    def rounded(seed: int, steps: int) -> Tensor:
        made = LabelTable(torch.arange(N), 512, TableConfig(**PLAIN, dtype="bf16"), seed=seed)
        for _ in range(steps):
            made.weight.fill_(1.0)
            made().grad = torch.full_like(made.weight, 0.02)
            made.step(RATE)
        return made.weight

    assert torch.equal(rounded(0, 1), rounded(0, 1))
    assert not torch.equal(rounded(0, 1), rounded(1, 1))
    assert not torch.equal(rounded(0, 1), rounded(0, 2))


# Resumed, and dealt out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", EVERY)
def test_a_loaded_table_goes_on_bit_by_bit(config: dict[str, Any]) -> None:
    unbroken = train(table(config), range(9))
    kept = copies(train(table(config), range(4)))
    resumed = LabelTable(torch.arange(N), D, TableConfig(**config), seed=3)
    resumed.load_state_dict(kept)
    assert same(train(resumed, range(4, 9)), unbroken)


def share(size: int, rank: int) -> Tensor:
    """Rows dealt like cards; of three workers and more, the first gets those of the second."""
    owner = torch.arange(N) % size
    if size > 2:
        owner[owner == 1] = 0
    return (owner == rank).nonzero()[:, 0]


def dealt_out(
    workers: Workers, config: dict[str, Any], steps: int, limit: float
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Train this worker's rows on its share of each pool, clipped by the norm over all workers."""
    made = table(config, share(workers.size, workers.rank))
    replicated = torch.zeros(4, requires_grad=True)
    norms = []
    for step in range(steps):
        ids = pool(step)
        ids = ids[torch.isin(ids, made.row_ids)]
        replicated.grad = torch.full((4,), 0.5 * step)
        if len(ids) or step % 2:  # a worker without rows may not ask at all
            loss(made(made.rows_of(ids)), ids, step).backward()
        norms.append(float(global_gradient_norm([replicated], [made.gradient_norm_squared()], workers)))
        made.step(RATE, scale=clip([replicated], norms[-1], limit))
    state = {"ids": made.row_ids, **made.state_dict()}
    return {name: tensor.float().numpy() for name, tensor in state.items()}, norms


@pytest.mark.parametrize("config", [EVERY[0], EVERY[1], EVERY[5]])
@pytest.mark.parametrize("size", range(1, MOST + 1))
def test_a_table_dealt_out_ends_as_the_whole_one(config: dict[str, Any], size: int) -> None:
    """To the last bit, state and rounding included."""
    whole, norms = dealt_out(ALONE, config, 6, limit=1e9)
    parts = on_workers(size, dealt_out, config, 6, 1e9)
    for state, theirs in parts:
        np.testing.assert_allclose(theirs, norms, rtol=1e-6)
        for name, rows in state.items():
            wanted = whole[name][state["ids"].astype(int)] if rows.ndim else whole[name]
            np.testing.assert_array_equal(rows, wanted, err_msg=name)
    assert sorted(np.concatenate([state["ids"] for state, _ in parts])) == list(range(N))


@pytest.mark.parametrize("size", [2, MOST])
def test_a_table_dealt_out_is_clipped_as_the_whole_one(size: int) -> None:
    """By a norm that every worker finds the same; it is a sum in another order than the whole table's."""
    limit = 14.0
    whole, norms = dealt_out(ALONE, SGD, 6, limit)
    assert min(norms) < limit < max(norms)
    parts = on_workers(size, dealt_out, SGD, 6, limit)
    for state, theirs in parts:
        assert theirs == parts[0][1]
        np.testing.assert_allclose(theirs, norms, rtol=1e-6)
        np.testing.assert_allclose(state["weight"], whole["weight"][state["ids"].astype(int)], rtol=1e-5, atol=1e-6)


def test_every_worker_starts_with_its_rows_of_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_table, "_BLOCK", 4)
    whole = table(ADAM).weight
    assert whole.std() > 0.4
    assert not torch.equal(whole[:4], whole[4:8])
    for mine in (torch.tensor([0, 3, 6, 9, 12]), torch.tensor([5]), torch.arange(0)):
        assert torch.equal(table(ADAM, mine).weight, whole[mine])


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9}, {"rate": 1}, {"optimizer": "adagrad"}, {"dtype": "fp8"}, {"learning_rate": 0}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TableConfig(**settings)


class _NoIndexing(TorchDispatchMode):
    """Refuses to index 8-bit floats, for which not every GPU's build of torch has the kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "index" in func._schema.name and any(getattr(value, "dtype", None) == torch.float8_e4m3fn for value in args):
            raise NotImplementedError(f"{func._schema.name} of 8-bit floats")
        return func(*args, **(kwargs or {}))


def test_rows_in_eight_bits_are_indexed_as_bytes() -> None:
    table = LabelTable(torch.arange(12), 4, TableConfig(dtype="e4m3", learning_rate=0.1), seed=0)
    table.fill(lambda block, generator: block.normal_(generator=generator))
    before = table.weight.float()
    with _NoIndexing():
        table(torch.tensor([2, 5, 5])).square().sum().backward()
        table.step(0.1)
        rows = table(torch.tensor([2, 5]))
    assert torch.equal(rows, table.weight.float()[[2, 5]])
    assert (table.weight.float() != before).any(1).nonzero().ravel().tolist() == [2, 5]
