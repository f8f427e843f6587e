"""Watches torch's matrix products as they are computed, forward and backward, and passes on their operations.

Torch's own counter (`torch.utils.flop_counter`) knows the operations of most kernels. What it does not see is counted
here too: products in place (`addmm_`), of vectors, and the fused kernels of a CPU. Kernels in which nothing is a
matrix product (sums, activations, optimisers) are not counted, as there.

Watching costs some microseconds for every kernel, and nothing within `unwatched`, where the harness computes what it
counts by formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Formula = Callable[..., int]  # the operations of a kernel, given its arguments and its result as `out_val`
aten = torch.ops.aten


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context `charge` gets the operations of each matrix product, also of the backward pass that begins in
    it, whose kernels may run in another thread.
    """

    # By the identity of a kernel, which torch makes once: its formula, None without one, or that it is made of others,
    # as kernels are that arrive whole in inference mode.
    known: ClassVar[dict[int, Any]] = {}

    def __init__(self, charge: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.charge = charge
        self.paused = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler with the first kernel, which takes seconds and memory."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self.known.get(id(func), "unknown")
        if kind is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if kind == "unknown":
            self._learn(func)
            return self.__torch_dispatch__(func, types, args, kwargs)
        kwargs = kwargs or {}
        if kind == "composite":
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if not self.paused:
            self.charge(int(kind(*args, **kwargs, out_val=result)))
        return result

    @classmethod
    def _learn(cls, func: Any) -> None:
        packet = getattr(func, "_overloadpacket", func)
        formula = FORMULAS.get(packet) or flop_registry.get(packet)
        made = formula is None and hasattr(func, "decompose") and has_kernel(func.name(), "CompositeImplicitAutograd")
        cls.known[id(func)] = "composite" if made else formula


@contextmanager
def watched(charge: Callable[[int], None]) -> Iterator[None]:
    """Pass the operations of each matrix product in the block to `charge`, and to no block around it."""
    with unwatched(), ProductWatch(charge):
        yield


@contextmanager
def unwatched() -> Iterator[None]:
    """Watch no matrix product in the block. Other modes, as torch's own counter, are left as they are."""
    if not (stack := torch._C._len_torch_dispatch_stack()):
        yield
        return
    modes = [torch._C._get_dispatch_stack_at(place) for place in range(stack)]
    if modes and isinstance(modes[-1], ProductWatch):
        modes[-1].__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            modes[-1].__enter__()  # type: ignore[no-untyped-call]
        return
    below = [mode for mode in modes if isinstance(mode, ProductWatch)]  # there is at most one
    for mode in below:
        mode.paused += 1
    try:
        yield
    finally:
        for mode in below:
            mode.paused -= 1


def _entries(matrix: Tensor) -> int:
    """The numbers of a matrix that a product reads."""
    return int(matrix._nnz()) if matrix.layout != torch.strided else matrix.numel()


def _of_product(left: Tensor, right: Tensor, **_: Any) -> int:
    """[..., M, K] times [..., K, N], or times [K]."""
    return 2 * _entries(left) * (right.shape[-1] if 1 < right.ndim == left.ndim else 1)


def _of_sum(_: Tensor, left: Tensor, right: Tensor, *__: Any, **___: Any) -> int:
    """A product that is added to something."""
    return _of_product(left, right)


def _of_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """[..., M, D] queries, [..., N, D] keys and [..., N, E] values."""
    return 2 * query.numel() * key.shape[-2] + 2 * prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]


def _of_attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> int:
    """Scores again, and gradients of values, of scores, of queries and of keys."""
    of_keys = 2 * query.numel() * key.shape[-2]
    return 3 * of_keys + 2 * 2 * prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]


def _of_heads(query: Tensor, key: Tensor, value: Tensor, width: int, *_: Any, **__: Any) -> int:
    """`nn.MultiheadAttention` in one kernel: projections of queries, keys, values and results, and attention."""
    linear = 2 * width * (2 * query.numel() + key.numel() + value.numel())
    return linear + 4 * query.numel() * key.shape[-2]


def _of_layer(source: Tensor, width: int, *others: Any, **_: Any) -> int:
    """`nn.TransformerEncoderLayer` in one kernel."""
    inner: Tensor = others[12]  # the first matrix of the feed-forward part [F, D]
    return _of_heads(source, source, source, width) + 4 * source.numel() * inner.shape[0]


def _of_recurrence(inputs: Tensor, of_inputs: Tensor, of_state: Tensor, *_: Any, **__: Any) -> int:
    """A layer of a recurrent network over [T, B, D]."""
    return 2 * prod(inputs.shape[:2]) * (of_inputs.numel() + of_state.numel())


def _of_recurrences(inputs: Tensor, weights: list[Tensor], *_: Any, **__: Any) -> int:
    """All layers of a recurrent network over [T, B, D]."""
    return 2 * prod(inputs.shape[:2]) * sum(weight.numel() for weight in weights if weight.ndim > 1)


def _of_three(*tensors: Any, **_: Any) -> int:
    """The sum over products of three tensors (`nn.Bilinear`), each of which lacks some dimensions."""
    sizes = []
    for tensor, missing in zip(tensors[:3], tensors[3:6], strict=True):
        shape = list(tensor.shape)
        for place in missing:
            shape.insert(place, 1)
        sizes.append(shape)
    return 2 * prod(int(max(own)) for own in zip(*sizes, strict=True))


def _of_distances(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """[..., M, D] and [..., N, D]."""
    return 2 * left.numel() * right.shape[-2]


def _twice(formula: Formula) -> Formula:
    """Of a backward pass, which multiplies twice as much."""
    return lambda *args, **kwargs: 2 * formula(*args, **kwargs)


FORMULAS: dict[Any, Formula] = {
    **dict.fromkeys((aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot), _of_product),
    **dict.fromkeys((aten.addmm, aten.baddbmm, aten.addbmm, aten.addmv, aten._sparse_addmm), _of_sum),
    **dict.fromkeys((aten.addmm_, aten.baddbmm_, aten.addbmm_, aten.addmv_), _of_sum),
    aten._scaled_dot_product_flash_attention_for_cpu: _of_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _of_attention_backward,
    aten._native_multi_head_attention: _of_heads,
    aten._transformer_encoder_layer_fwd: _of_layer,
    aten.mkldnn_rnn_layer: _of_recurrence,
    aten.mkldnn_rnn_layer_backward: _twice(_of_recurrence),
    aten._cudnn_rnn: _of_recurrences,
    aten._cudnn_rnn_backward: _twice(_of_recurrences),
    aten._trilinear: _of_three,
    aten._cdist_forward: _of_distances,
    aten._cdist_backward: lambda _, left, right, *__, **___: 2 * _of_distances(left, right),
}
