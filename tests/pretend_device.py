"""A GPU that does not exist: tensors on the device `pretend` hold CPU tensors, and compute what these compute.

torch lets Python register a device, and a wrapper subclass run its operations. So the engine takes the path that it
takes on a GPU, on any machine, and four mistakes show that a CPU hides:

- an operation on tensors of two devices raises, as on CUDA;
- random numbers drawn on the device are others than those drawn on the CPU;
- sums are rounded otherwise than on the CPU, and those that CUDA adds in no fixed order otherwise each time;
- whatever makes the host wait for the device is noted, with the function of the engine that asked for it.

It shows nothing of CUDA's kernels, of their speed, of NCCL or of autocast. Importing this registers the device, before
torch's first backward pass as it has to be; but not beside a real GPU.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from xmcbench.engine import device
from xmcbench.engine.losses.own_scores import NUMBERS
from xmcbench.engine.losses.score_sums import CHUNK_SCORES
from xmcbench.engine.search.exact import SIZES
from xmcbench.engine.tables import row_optimizers

NAME = "pretend"
CODE = tuple(str(Path(__file__).parents[1] / folder) for folder in ("xmcbench", "plugins"))
# The host reads a result, or needs a size that the device computes.
READS = {
    "aten::_local_scalar_dense", "aten::_unique2", "aten::bincount", "aten::equal", "aten::masked_select",
    "aten::nonzero", "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",
}  # fmt: skip
# CUDA adds these in another order than the CPU, which a change by `ULPS` at most stands for. The sum's own bits decide,
# so that equal sums stay equal.
SUMS = {
    "aten::_embedding_bag", "aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::_softmax",
    "aten::_softmax_backward_data", "aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::bmm", "aten::cumsum",
    "aten::linalg_vector_norm", "aten::logsumexp", "aten::mean", "aten::mm", "aten::native_layer_norm",
    "aten::native_layer_norm_backward", "aten::sum",
}  # fmt: skip
# It adds these in the order in which threads come, so that two equal calls differ.
UNORDERED = {
    "aten::_embedding_bag_dense_backward", "aten::embedding_dense_backward", "aten::index_add", "aten::index_add_",
    "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_",
}  # fmt: skip
_calls = itertools.count(1)  # of these
ULPS = 8  # sums of a hundred numbers, in two orders, differ by about so many last places
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}  # by a mask: the device counts its elements first
WATCHING = ("__torch_dispatch__", "__torch_function__")  # these hooks see an operation that another function asked for
_noted: Counter[str] = Counter()


class PretendTensor(Tensor):
    """A tensor on the pretended device; `inner` has its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        with torch.inference_mode(False):  # else a view of a tensor from outside inference mode has no version
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=torch.device(NAME, 0),
            )
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {NAME}"


class _Backend(_DummyBackendModule):
    """`torch.pretend`: what `torch.cuda` is for CUDA."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed + 1)  # other numbers than the CPU's

    def get_rng_state(self, device: object = NAME) -> Tensor:  # noqa: ARG002
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: object = NAME) -> None:  # noqa: ARG002
        self.generator.set_state(state)

    def is_initialized(self) -> bool:
        return True

    def mem_get_info(self) -> tuple[int, int]:
        return 2**40, 2**40

    def memory_allocated(self) -> int:
        return 0

    def max_memory_allocated(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute `func` on the tensors within; return what is on the pretended device wrapped again."""
    name, composite, _ = _about(func)
    if composite:  # in inference mode these come here whole
        return func.decompose(*args, **kwargs)
    if name == "aten::_to_copy":
        return _to_copy(func, args[0], **kwargs)
    if name == "aten::copy_":
        return _copy(args[0], args[1], *args[2:], **kwargs)
    _check_devices(name, args, kwargs)
    if name in READS and "output_size" not in kwargs:
        _note(name)
    plain_args, plain_kwargs = _mapped(_inner, args), {key: _mapped(_inner, kwargs[key]) for key in kwargs}
    if plain_kwargs.get("device") is not None:
        plain_kwargs["device"] = torch.device("cpu")
    with _device_generator(func, kwargs):
        out = func(*plain_args, **plain_kwargs)
    if name in SUMS or name in UNORDERED:
        _round_otherwise(out, next(_calls) if name in UNORDERED else 0)
    return _wrapped(func, args, kwargs, out)


def _round_otherwise(out: Any, salt: int) -> None:
    """Move float32 numbers, in place, by up to `ULPS` last places: by how many, their bits and `salt` decide."""
    for sums in out if isinstance(out, tuple) else (out,):
        if isinstance(sums, Tensor) and sums.dtype == torch.float32:
            bits = sums.view(torch.int32).long()
            moved = ((bits * 0x9E3779B1 + salt * 0x85EBCA6B) >> 16) % (2 * ULPS + 1) - ULPS  # a hash
            kept = (sums.abs() < 1e-30) | ~sums.isfinite()
            sums.copy_(torch.where(kept, bits, bits + moved).int().view(torch.float32))


def _wrapped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """What `func` returns: the very arguments that it wrote to, and new tensors for new ones."""
    written = _about(func)[2]
    if all(where is None for where in written):
        return _mapped(_wrap, out)
    given = [kwargs[where] if isinstance(where, str) else args[where] for where in written if where is not None]
    return tuple(given) if len(given) > 1 else given[0]


@cache
def _about(func: Any) -> tuple[str, bool, list[int | str | None]]:
    """The name of an operation, whether it is a composite one, and the argument that each of its results is."""
    schema = func._schema
    arguments = {
        frozenset(argument.alias_info.before_set): argument.name if argument.kwarg_only else place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    written = [
        arguments[frozenset(result.alias_info.before_set)]
        if result.alias_info is not None and result.alias_info.is_write
        else None
        for result in schema.returns
    ]
    return schema.name, func._can_decompose(), written


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """The value, or the values in a list or tuple, changed."""
    if type(values) in (list, tuple):
        return type(values)(_mapped(change, value) for value in values)
    return change(values)


def _check_devices(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise where CUDA would: for a CPU tensor of one dimension or more. CUDA copies indices, and waits for that."""
    if name in INDEXED:
        for index in args[1]:
            if index is not None and (index.dtype in (torch.bool, torch.uint8) or not isinstance(index, PretendTensor)):
                _note(name)
        args = (args[0], *args[2:])

    def check(value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, PretendTensor) and value.dim():
            raise RuntimeError(f"expected all tensors on one device, but {name} got some on {NAME} and some on the CPU")

    _mapped(check, (*args, *kwargs.values()))


def _to_copy(func: Any, source: Tensor, **options: Any) -> Tensor:
    target = options.pop("device", None)
    options.pop("non_blocking", None)
    out = func(_inner(source), **options)
    if target is not None and torch.device(target).type == "cpu":
        _note("to the CPU")
        return out
    return PretendTensor(out)


def _copy(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(into, PretendTensor):
        _note("to the CPU")
    elif not isinstance(source, PretendTensor) and not (non_blocking and hasattr(source, "pinned")):
        _note("upload")
    _inner(into).copy_(_inner(source))
    return into


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, PretendTensor) else value


def _wrap(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) else value


@contextmanager
def _device_generator(func: Any, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draw from the device's generator within the block."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"expected a generator on {NAME}, found one on the CPU")
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(_BACKEND.generator.get_state())
        yield
        _BACKEND.generator.set_state(torch.get_rng_state())


def _note(what: str) -> None:
    """Count a wait for the innermost function of the project that is being called."""
    frame = sys._getframe(1)
    while frame and (not frame.f_code.co_filename.startswith(CODE) or frame.f_code.co_name in WATCHING):
        frame = frame.f_back  # type: ignore[assignment]
    _noted[f"{frame.f_code.co_qualname}, {what}" if frame else what] += 1


def noted() -> Counter[str]:
    """How often the host has waited so far, by function and operation."""
    return _noted.copy()


def _pin(tensor: Tensor, *_: object) -> Tensor:
    if not tensor.is_cpu:
        raise RuntimeError(f"only memory of the CPU can be pinned, found a tensor on {tensor.device}")
    copied = tensor.clone()
    copied.pinned = True  # type: ignore[attr-defined]
    return copied


def _empty(size: Any, *, dtype: Any = None, **_: object) -> Tensor:
    return PretendTensor(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: object) -> Tensor:
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, into: Tensor, non_blocking: bool = False) -> Tensor:
    """The copy of `torch.tensor(..., device=...)`, which does not ask the subclass."""
    return _copy(into, source, non_blocking)


_BACKEND = _Backend()
_KERNELS: dict[str, Callable[..., Tensor]] = {
    "_copy_from": _copy_from,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
}


@cache
def registered() -> Library:
    """Register the device with torch. Raises `RuntimeError` beside a GPU, for which torch would then pin no memory."""
    if torch.cuda.is_available():
        raise RuntimeError("the pretended device stands in for a GPU, and this machine has one")
    _setup_privateuseone_for_python_backend(NAME, _BACKEND)
    library = Library("aten", "IMPL")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "PrivateUse1")
    return library  # whose end would take its kernels away


if not torch.cuda.is_available():
    registered()


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Make the pretended device the one that models live on; raises as `registered` does."""
    global _calls
    registered()
    _calls = itertools.count(1)  # a test does not depend on those before it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "GPU", NAME)
        patch.setattr(Tensor, "pin_memory", _pin)
        for sizes in (CHUNK_SCORES, NUMBERS, SIZES, row_optimizers._CHUNK):
            patch.setitem(sizes, NAME, sizes["cuda"])  # type: ignore[index, attr-defined]
        yield
