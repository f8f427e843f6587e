"""Watches torch's matrix products as they are computed, forward and backward, and passes on their operations.

Torch's own counter (`torch.utils.flop_counter`) knows the operations of most kernels. What it does not see is counted
here too: products in place (`addmm_`), of vectors, and the fused kernels of a CPU. Kernels in which nothing is a
matrix product (sums, activations, optimisers) are not counted, as there.

Torch's dispatcher looks at the keys of the thread that calls a kernel, and a backward pass has those of the thread that
began it. Each kernel that multiplies has a function here, under a key that no thread has outside of `watched`, and all
others fall through that key in C++. So watching costs some microseconds for a product, and nothing for other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C._functorch import peek_interpreter_stack
from torch.library import Library, fallthrough_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import flop_registry

Formula = Callable[..., int]  # the operations of a kernel, given its arguments and its result as `out_val`
Charge = Callable[[int], None]
aten = torch.ops.aten

KEY_NAME = "TESTING_ONLY_GenericMode"  # the dispatcher's first key that torch itself gives to no tensor and no thread
KEY = torch._C._dispatch_key_parse(KEY_NAME)
KEYS = torch._C.DispatchKeySet(KEY)
BELOW = torch._C._dispatch_keyset_full_after(KEY)
FAKE = torch._C._TorchDispatchModeKey.FAKE
CHARGE = "xmcbench charge"  # a name among the objects that torch hands from a thread to those of its backward passes
_libraries: dict[str, Any] = {}  # by namespace of kernels; torch forgets a function whose library is gone
_registered: set[Any] = set()
_known = 0  # how many kernels torch knew when they were last looked at


@contextmanager
def watched(charge: Charge) -> Iterator[None]:
    """Pass the operations of each matrix product in the block to `charge`, and to no block around it.

    Those of a backward pass that begins in the block are passed on too.
    """
    _register()
    before = _charge()
    torch._C._stash_obj_in_tls(CHARGE, charge)
    try:
        with torch._C._ForceDispatchKeyGuard(*_thread_keys(watch=True)), _taken_apart():
            yield
    finally:
        torch._C._stash_obj_in_tls(CHARGE, before)


@contextmanager
def unwatched() -> Iterator[None]:
    """Watch no matrix product in the block."""
    with torch._C._ForceDispatchKeyGuard(*_thread_keys(watch=False)):
        yield


def _thread_keys(watch: bool) -> tuple[Any, Any]:
    """The keys that the dispatcher includes and excludes in this thread, with or without that of the watch."""
    included = torch._C._dispatch_tls_local_include_set()
    return (included | KEYS if watch else included - KEYS), torch._C._dispatch_tls_local_exclude_set()


class TakenApart(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes kernels apart that torch makes of others.

    In inference mode another mode, such as torch's own counter, gets these kernels whole, and what they call does not
    reach the key of the watch.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler with the first kernel, which takes seconds and memory."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        included = torch._C._dispatch_tls_local_include_set()
        if not (included.has(KEY) and hasattr(func, "decompose") and _is_composite(func)):
            return func(*args, **(kwargs or {}))
        excluded = torch._C._dispatch_tls_local_exclude_set() - KEYS
        with self, torch._C._ForceDispatchKeyGuard(included, excluded):
            return func.decompose(*args, **(kwargs or {}))


def _taken_apart() -> AbstractContextManager[object]:
    """`TakenApart` where another mode would get kernels whole."""
    modes = _get_current_dispatch_mode_stack()
    needed = modes and not any(isinstance(mode, TakenApart) for mode in modes)
    return TakenApart() if needed else nullcontext()  # type: ignore[no-untyped-call]


def _is_composite(kernel: Any) -> bool:
    """Whether torch makes the kernel of others, which are counted."""
    return has_kernel(kernel.name(), "CompositeImplicitAutograd")


def _charge() -> Charge | None:
    known: bool = torch._C._is_key_in_tls(CHARGE)
    return torch._C._get_obj_in_tls(CHARGE) if known else None


def _register() -> None:
    """Put a function before each kernel that has a formula, unless torch makes it of others, which are counted."""
    global _known
    if (known := len(flop_registry) + len(torch._ops._higher_order_ops)) == _known:
        return
    _known = known
    if not _libraries:
        _library("_").fallback(fallthrough_kernel, KEY_NAME)
    new: set[Any] = {*flop_registry, *FORMULAS, *torch._ops._higher_order_ops.values()} - _registered
    _registered.update(new)
    for packet in new:
        if isinstance(packet, torch._ops.HigherOrderOperator):  # such as torch.cond, which is made of kernels
            packet.fallthrough(KEY)  # type: ignore[no-untyped-call]
            continue
        for overload in packet.overloads():
            kernel = getattr(packet, overload)
            if not _is_composite(kernel):
                function = _counting(kernel, FORMULAS.get(packet) or flop_registry[packet])
                _library(kernel.namespace).impl(kernel, function, KEY_NAME, with_keyset=True)


def _library(namespace: str) -> Any:
    """Where functions are put before the kernels of a namespace; that of `_` is for all kernels."""
    if namespace not in _libraries:
        _libraries[namespace] = Library(namespace, "IMPL", KEY_NAME)  # type: ignore[no-untyped-call]
    return _libraries[namespace]


def _counting(kernel: Any, formula: Formula) -> Callable[..., Any]:
    """`kernel`, whose operations are charged; what it calls in turn is not counted again."""

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if peek_interpreter_stack() is not None:  # of torch.func: the kernel comes again with the tensors as they are
            return kernel.redispatch(keys & BELOW, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            result = kernel.redispatch(keys & BELOW, *args, **kwargs)
        charge = _charge()
        if charge is not None and torch._C._get_dispatch_mode(FAKE) is None:  # a compiler traces without computing
            charge(int(formula(*args, **kwargs, out_val=result)))
        return result

    return call


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
        for dimension in missing:
            shape.insert(dimension, 1)
        sizes.append(shape)
    return 2 * prod(int(max(own)) for own in zip(*sizes, strict=True))


def _of_distances(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """[..., M, D] and [..., N, D]."""
    return 2 * left.numel() * right.shape[-2]


def _twice(formula: Formula) -> Formula:
    """Of a backward pass, which multiplies twice as much."""
    return lambda *args, **kwargs: 2 * formula(*args, **kwargs)


FORMULAS: dict[Any, Formula] = {
    **dict.fromkeys((aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot, aten._int_mm), _of_product),
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
