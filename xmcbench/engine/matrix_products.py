"""Watches torch's matrix products as they are computed, forward and backward, and passes on their operations.

Torch's own counter (`torch.utils.flop_counter`) knows the operations of most kernels. What it does not see is counted
here too: products in place (`addmm_`), of vectors, of sparse and of quantised matrices, the fused kernels of a CPU, and
decompositions (`torch.linalg`, by the usual counts for dense matrices). Kernels in which nothing is a matrix product
(sums, activations, optimisers) are not counted, as there. A complex product counts as four real ones.

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
OF_COMPLEX = 4  # products of real numbers for one of complex numbers
SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
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
            if not _is_composite(kernel) or "fbgemm" in kernel.name():  # which multiply themselves
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
            charge(operations_of(formula, args, kwargs, result))
        return result

    return call


def operations_of(formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """The operations on real numbers of a kernel with these arguments."""
    complex_too = any(isinstance(each, Tensor) and each.is_complex() for each in args)
    return int(formula(*args, **kwargs, out_val=result)) * (OF_COMPLEX if complex_too else 1)


def _entries(matrix: Tensor) -> int:
    """The numbers of a matrix that a product reads."""
    if not _is_sparse(matrix):
        return matrix.numel()
    values = matrix._values() if matrix.layout == torch.sparse_coo else matrix.values()
    return values.numel()  # of blocks, all numbers


def _is_sparse(matrix: Tensor) -> bool:
    return matrix.layout in SPARSE


def _of_product(left: Tensor, right: Tensor, **_: Any) -> int:
    """[..., M, K] times [..., K, N], or times [K]."""
    if _is_sparse(right):
        if not _is_sparse(left):
            return 2 * prod(left.shape[:-1]) * _entries(right)
        columns, rows = left.to_sparse()._indices()[1], right.to_sparse()._indices()[0]
        return 2 * int(torch.bincount(rows, minlength=len(right))[columns].sum())  # pairs of numbers that meet
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


def _of_convolution_backward(gradient: Tensor, inputs: Tensor, weights: Tensor, *others: Any, **_: Any) -> int:
    """Gradients of inputs and of weights, as far as wanted. Torch's own formula takes groups of channels for one."""
    transposed, wanted = others[4], others[7]
    forward = 2 * (inputs if transposed else gradient).numel() * weights[0].numel()
    return forward * (bool(wanted[0]) + bool(wanted[1]))


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


def _of_pairs(rows: Tensor, *_: Any, **__: Any) -> int:
    """[M, D], each row with each later one."""
    return rows.numel() * (len(rows) - 1)


def _of_linear(inputs: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    """[..., K] times weights of any storage, which make [..., N] of it."""
    return 2 * inputs.numel() * out_val.shape[-1]


def _of_groups(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """Products of groups of rows or columns: [M, K] or [G, M, K] with [K, N] or [G, K, N]."""
    return 2 * (left[0] if right.ndim < left.ndim else left).numel() * right.shape[-1]


def _of_sampled(chosen: Tensor, left: Tensor, *_: Any, **__: Any) -> int:
    """The entries of [M, K] times [K, N] that `chosen` has."""
    return 2 * _entries(chosen) * left.shape[-1]


def _sides(matrix: Tensor) -> tuple[int, int, int]:
    """Of [..., M, N]: how many matrices, and their shorter and longer side."""
    short, long = sorted(matrix.shape[-2:])
    return prod(matrix.shape[:-2]), short, long


def _cubes(count: float) -> Formula:
    """`count` operations for each cubed side of square matrices [..., N, N]."""
    return lambda matrix, *_, **__: round(count * matrix.numel() * matrix.shape[-1])


def _of_triangles(matrix: Tensor, *_: Any, **__: Any) -> int:
    """A decomposition of [..., M, N] into two triangles (LU)."""
    matrices, short, long = _sides(matrix)
    return round(matrices * short**2 * (long - short / 3))


def _of_reflections(matrix: Tensor, *_: Any, **__: Any) -> int:
    """The reflections that make [..., M, N] a triangle, or a matrix of such reflections."""
    return 2 * _of_triangles(matrix)


def _of_orthogonal(matrix: Tensor, mode: str = "reduced", **_: Any) -> int:
    """A QR decomposition, of which the mode "r" has no Q."""
    return (1 if mode == "r" else 2) * _of_reflections(matrix)


def _of_singular(matrix: Tensor, full: bool = False, vectors: bool = True, **_: Any) -> int:
    """Golub and Van Loan, Matrix Computations, 4th edition, section 8.6: with and without vectors."""
    matrices, short, long = _sides(matrix)
    if not vectors:
        return matrices * (2 * long * short**2 + 2 * short**3)
    return matrices * (4 * long**2 * short + 22 * short**3 if full else 6 * long * short**2 + 20 * short**3)


def _of_symmetric(matrix: Tensor, _: str = "L", vectors: bool = True, **__: Any) -> int:
    """Eigenvalues of symmetric matrices; as `_of_singular`, section 8.3."""
    return _cubes(9 if vectors else 4 / 3)(matrix)


def _of_right_sides(known: Tensor, *_: Any, **__: Any) -> int:
    """Right sides [..., N, K], each multiplied by two triangles [N, N]."""
    return 2 * known.numel() * known.shape[-2]


def _of_system(matrix: Tensor, known: Tensor, **_: Any) -> int:
    """A system of equations [..., N, N] with right sides [..., N, K], or [..., N]."""
    return _of_triangles(matrix) + 2 * known.numel() * matrix.shape[-1]


def _of_least_squares(matrix: Tensor, known: Tensor, *_: Any, **__: Any) -> int:
    """By a QR decomposition, whose reflections are applied to the right sides too."""
    return _of_reflections(matrix) + 4 * known.numel() * min(matrix.shape[-2:])


def _of_triangle(matrix: Tensor, known: Tensor, **_: Any) -> int:
    """A system of equations whose matrix [..., N, N] is a triangle."""
    return known.numel() * matrix.shape[-1]


def _of_rotated(_: Tensor, reflections: Tensor, other: Tensor, *__: Any, **___: Any) -> int:
    """A matrix to which reflections are applied."""
    return 4 * other.numel() * reflections.shape[-1]


def _third(formula: Formula) -> Formula:
    """Of a kernel whose third argument is the one that counts."""
    return lambda _, __, third, *others, **named: formula(third, *others, **named)


def _twice(formula: Formula) -> Formula:
    """Of a backward pass, which multiplies twice as much."""
    return lambda *args, **kwargs: 2 * formula(*args, **kwargs)


def _named(space: str, *names: str) -> list[Any]:
    """The kernels with these names, as far as this build of torch has them."""
    kernels = getattr(torch.ops, space)
    return [getattr(kernels, name) for name in names if hasattr(kernels, name)]


OF_LINEAR = [
    *_named("aten", "mkldnn_linear", "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation"),
    *_named("aten", "fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation"),
    *_named("aten", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
    *_named("aten", "_weight_int4pack_mm_with_scales_and_zeros", "_mixed_dtypes_linear"),
    *_named("mkl", "_mkl_linear"),
    *_named("mkldnn", "_linear_pointwise"),
    *_named("quantized", "linear", "linear_relu", "linear_tanh", "linear_leaky_relu", "linear_dynamic"),
    *_named("quantized", "linear_relu_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic_fp16"),
    *_named("quantized", "linear_dynamic_fp16_unpacked_weight"),
    *_named("onednn", "linear_dynamic_fp16", "linear_relu_dynamic_fp16", "qlinear_pointwise"),
    *_named("sparse", "qlinear", "qlinear_relu", "qlinear_dynamic", "qlinear_relu_dynamic"),
]

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
    aten.convolution_backward: _of_convolution_backward,
    aten._trilinear: _of_three,
    aten._cdist_forward: _of_distances,
    aten._cdist_backward: lambda _, left, right, *__, **___: _of_distances(left, right),  # of the left side alone
    aten._pdist_forward: _of_pairs,
    aten._pdist_backward: lambda _, rows, *__, **___: _of_pairs(rows),
    **dict.fromkeys((aten._sparse_sparse_matmul, aten.hspmm, aten._sparse_mm_reduce_impl), _of_product),
    **dict.fromkeys((aten.sspaddmm, aten._addmm_activation), _of_sum),
    aten.sparse_sampled_addmm: _of_sampled,
    **dict.fromkeys((aten._grouped_mm, aten._scaled_grouped_mm), _of_groups),
    **dict.fromkeys(OF_LINEAR, _of_linear),
    **dict.fromkeys((aten.linalg_lu_factor_ex, aten.linalg_lu, aten._linalg_det, aten._linalg_slogdet), _of_triangles),
    **dict.fromkeys((aten.linalg_cholesky_ex, aten.cholesky, aten.linalg_ldl_factor_ex), _cubes(1 / 3)),
    **dict.fromkeys((aten.geqrf, aten.linalg_householder_product), _of_reflections),
    **dict.fromkeys((aten.linalg_lu_solve, aten.linalg_ldl_solve), _third(_of_right_sides)),
    aten.linalg_inv_ex: _cubes(2),
    aten.cholesky_inverse: _cubes(2 / 3),
    aten.cholesky_solve: _of_right_sides,
    aten._linalg_solve_ex: _of_system,
    aten.linalg_solve_triangular: _of_triangle,
    aten.triangular_solve: lambda known, matrix, *_, **__: _of_triangle(matrix, known),
    aten.linalg_lstsq: _of_least_squares,
    aten.linalg_qr: _of_orthogonal,
    aten.ormqr: _of_rotated,
    aten._linalg_svd: _of_singular,
    aten._linalg_eigh: _of_symmetric,
    aten.linalg_eig: _cubes(25),
    aten._linalg_eigvals: _cubes(10),
}
