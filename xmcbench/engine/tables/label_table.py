"""Tables of free vectors, one per label or cluster of labels; a step updates only the rows it uses.

One-vs-all classifiers (Renee, ELMO: all rows every step), UniDEC's classifier (the rows of the pool) and PRIME's bank
of vectors that clusters of labels share. Such a table is far larger than the encoder, so it is not among the parameters
that AdamW walks over: a step reads and writes the rows that it used, in chunks, so that no large table is ever in
float32 at once. It lies with its labels: a worker holds the rows of the labels it owns, and their optimiser state.

Legend: N rows of the table (of this worker), S rows asked for, U different ones among them, M rows of a chunk,
D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Generator, Tensor, nn

from xmcbench.engine.device import upload
from xmcbench.engine.gradient_norm import squared_norm
from xmcbench.engine.tables import rounding
from xmcbench.engine.tables.row_optimizers import rows_of_chunk
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.trial.run import derive_seed

_BLOCK = 4096  # rows that share a generator when a table is filled
# Places of all rows and their gradients [M, D], a chunk at a time; from the weights, as they are before it is updated.
Chunks = Callable[[Tensor], Iterator[tuple[slice, Tensor]]]


class LabelTable(nn.Module):
    """The rows `row_ids` of a whole table, and their optimiser state; zeros until `fill` or `weight.copy_`.

    `row_ids` [N], ascending, number this worker's rows in the whole table; callers speak of rows by their place there.
    `weight` [N, D] is float32, bfloat16 or float8_e4m3fn, the optimiser's state float32. `state_dict` has both, and no
    `row_ids`: the first dimension is rows in every tensor but scalars, which are alike on all workers. So rows can be
    dealt out to another number of workers, and training continues as it would have.

    >>> table = LabelTable(torch.arange(3), 2, TableConfig(optimizer="sgd", learning_rate=0.5), seed=0)
    >>> table(torch.tensor([2, 0, 2])).sum().backward()  # row 2 twice
    >>> table.step(0.5)
    >>> table.weight
    tensor([[-0.5000, -0.5000],
            [ 0.0000,  0.0000],
            [-1.0000, -1.0000]])
    """

    weight: Tensor
    row_ids: Tensor
    updates: Tensor

    def __init__(
        self, row_ids_N: Tensor | np.ndarray, dimension: int, config: TableConfig, seed: int | None = None
    ) -> None:
        """`seed` None takes torch's, which the engine derives from the trial's seed before `build_modules`."""
        super().__init__()
        self._ids = np.asarray(row_ids_N)  # which the host looks up
        row_ids_N = torch.as_tensor(row_ids_N)
        self.config = config
        self.seed = torch.initial_seed() if seed is None else seed
        self.optimizer = config.build_optimizer()
        shape = (len(row_ids_N), dimension)
        dtype = {"float32": torch.float32, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[config.dtype]
        state, updates = self.optimizer.state(*shape), torch.zeros((), dtype=torch.int64)
        for name, tensor in {"weight": torch.zeros(shape, dtype=dtype), **state, "updates": updates}.items():
            self.register_buffer(name, tensor)
        self.register_buffer("row_ids", row_ids_N.to(torch.int64), persistent=False)
        self.state_names = tuple(state)
        self._leaves: list[tuple[Tensor | None, Tensor]] = []
        self._combined: tuple[Tensor | None, Tensor] | None = None
        self._deferred: tuple[Chunks, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        return self.weight.shape[0]

    @property
    def learns(self) -> bool:
        """Whether rows that are asked for collect a gradient."""
        return self.config.optimizer != "none"

    def rows_of(self, ids_S: Tensor | np.ndarray) -> Tensor:
        """The positions of rows in this worker's part, int64 [S] on the CPU, as `forward` takes them.

        Raises IndexError if a row is on another worker.
        """
        ids_S = ids_S.numpy(force=True) if isinstance(ids_S, Tensor) else ids_S
        rows_S = np.searchsorted(self._ids, ids_S)
        if (rows_S == self.num_rows).any() or not np.array_equal(self._ids[rows_S], ids_S):
            raise IndexError(f"a row asked for is none of the {self.num_rows} that this worker holds")
        return torch.from_numpy(rows_S)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LabelTable:
        """Move the table, but not the number of updates, which the host reads in each step."""
        updates = self.updates
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.updates = updates
        return self

    @torch.no_grad()
    def fill(self, draw: Callable[[Tensor, Generator], object]) -> None:
        """Start from random vectors: `draw` fills a float32 block of rows, in place, with a generator.

        A block's generator is derived from the seed and the block's place in the whole table, so every worker draws
        for its rows what one worker would draw for all.
        """
        blocks_N = self.row_ids // _BLOCK
        for block in torch.unique(blocks_N).tolist():
            values = torch.empty(_BLOCK, self.weight.shape[1])
            draw(values, Generator().manual_seed(derive_seed(self.seed, "fill", block)))
            mine = (blocks_N == block).nonzero().flatten()
            values = values.to(self.weight.device)[self.row_ids[mine] % _BLOCK]
            if self.config.dtype == "e4m3":  # most values of a wide table lie below the smallest step
                values = rounding.stochastic_e4m3(values, self.row_ids[mine], derive_seed(self.seed, "fill rounding"))
            self.weight[mine] = values.to(self.weight.dtype)

    def forward(self, rows_S: Tensor | None = None) -> Tensor:
        """Rows [S, D] in float32, as a leaf of this step that collects a gradient; any row may be there repeatedly.

        `rows_S` is best on the CPU: a GPU is waited for. None gives all rows without a copy, in the table's own dtype.
        May be called more than once before `step`. Without autograd the rows are only read.
        """
        rows_S = None if rows_S is None else rows_S.cpu()
        leaf = self.weight.detach()
        if rows_S is not None:
            leaf = _take(leaf, upload(rows_S, leaf.device)).float()
        if self.learns and torch.is_grad_enabled():
            self._leaves.append((rows_S, leaf.requires_grad_()))
            self._combined = None
        return leaf

    def defer(self, gradients: Chunks, squared_norm: Tensor) -> None:
        """Make the gradient of all rows, of that norm (squared, float64), in the next step, in place of leaves."""
        if self._deferred is not None or self._leaves:
            raise RuntimeError("a table's gradient is deferred once a step, and then no row is asked for")
        self._deferred = gradients, squared_norm

    def gradient_norm_squared(self) -> Tensor:
        """Sum of squares of this step's gradient, float64: this worker's part of the squared global norm."""
        return self._deferred[1] if self._deferred else squared_norm(self._gradient()[1])

    @torch.no_grad()
    def step(self, rate: float, scale: float = 1.0) -> None:
        """Update the rows of this step's leaves at learning rate `rate`, gradients times `scale`; `forget` them.

        A row that was asked for is touched, also where the loss made nothing of it: that must not depend on which
        other rows lie with the worker. Every worker calls this each step, as the number of updates is part of the
        rounding.
        """
        key = derive_seed(self.seed, "rounding", int(self.updates))
        for place, gradient_MD in self._chunks():
            self._update(place, gradient_MD.float() * scale, rate, key)
        self.updates += 1
        self.forget()

    def forget(self) -> None:
        """Drop the gradients of this step."""
        self._leaves.clear()
        self._combined = self._deferred = None

    def _chunks(self) -> Iterator[tuple[slice | Tensor, Tensor]]:
        """Places of rows and their gradients [M, D] in this step, a chunk at a time."""
        if self._deferred:
            yield from self._deferred[0](self.weight)
            return
        rows, gradient = self._gradient()
        length = rows_of_chunk(self.weight)
        for start in range(0, gradient.shape[0], length):
            chunk = slice(start, start + length)
            yield chunk if rows is None else rows[chunk], gradient[chunk]

    def _update(self, place: slice | Tensor, gradient_MD: Tensor, rate: float, key: int) -> None:
        taken = {name: _take(self.get_buffer(name), place) for name in (*self.state_names, "weight")}
        weight_MD = taken["weight"].float()
        self.optimizer.update(weight_MD, gradient_MD, taken, rate)
        if self.config.dtype != "float32":
            rounded = rounding.stochastic if self.config.dtype == "bf16" else rounding.stochastic_e4m3
            weight_MD = rounded(weight_MD, _take(self.row_ids, place), key)
        if isinstance(place, Tensor):
            for name, rows in {**taken, "weight": weight_MD}.items():
                _bytes(self.get_buffer(name)).index_copy_(0, place, _bytes(rows))
        elif weight_MD is not taken["weight"]:  # a view is there already
            self.weight[place] = weight_MD

    @torch.no_grad()
    def _gradient(self) -> tuple[Tensor | None, Tensor]:
        """The different rows of this step (None: all) and their gradients, those of all leaves summed."""
        if self._combined is None:
            self._combined = self._sum_of_leaves()
        return self._combined

    def _sum_of_leaves(self) -> tuple[Tensor | None, Tensor]:
        leaves = [(rows, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad) for rows, leaf in self._leaves]
        some = [(rows, gradient) for rows, gradient in leaves if rows is not None]
        if full := [gradient for rows, gradient in leaves if rows is None]:
            total_ND = sum(full[1:], start=full[0])
            for rows_S, gradient_SD in some:
                total_ND = total_ND.index_add(0, upload(rows_S, total_ND.device), gradient_SD.to(total_ND.dtype))
            return None, total_ND
        if not some:
            return self.row_ids.new_empty(0), self.weight.new_empty(0, self.weight.shape[1])
        rows_S, device = torch.cat([rows for rows, _ in some]), self.weight.device
        gradient_SD = torch.cat([gradient for _, gradient in some]) if len(some) > 1 else some[0][1]
        rows_U, places_S = torch.unique(rows_S, return_inverse=True)
        if len(rows_U) == len(rows_S):
            return upload(rows_S, device), gradient_SD
        sums_UD = gradient_SD.new_zeros(len(rows_U), gradient_SD.shape[1])
        return upload(rows_U, device), sums_UD.index_add_(0, upload(places_S, device), gradient_SD)


def _bytes(tensor: Tensor) -> Tensor:
    """The tensor, or for 8-bit floats, which index operations do not take, its bytes."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def _take(tensor: Tensor, place: slice | Tensor) -> Tensor:
    """Some rows: a view if they are contiguous, else a copy."""
    return tensor[place] if isinstance(place, slice) else _bytes(tensor).index_select(0, place).view(tensor.dtype)
