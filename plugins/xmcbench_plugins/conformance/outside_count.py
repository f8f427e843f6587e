"""Counts from outside what a training computes, to hold beside what it charges: operations, tokens, linear solvers.

Nothing here reads a ledger's counts or the harness's formulas. Torch's own counter sees every kernel, also those that
the harness counts by formula and those of threads that a method starts; kernels that it does not know are counted by
their shapes. Tokens are what tables of words look up, without padding. A model of scikit-learn is counted by the
iterations that it reports, or is unknown.

What is computed to measure or to save memory (`uncounted`) is left out, as in what is charged.
"""

from __future__ import annotations

import dis
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.encoders.static import WordBags
from xmcbench.engine.matrix_products import FORMULAS, operations_of
from xmcbench.trial.budget import BUDGETED_STAGES, Ledger, current_stage
from xmcbench.trial.meter import is_uncounted

LEARNT = ("coef_", "coefs_", "components_", "cluster_centers_", "dual_coef_")  # of a model that multiplied to learn
CLOSE = 0.05
PASSES = 3 / 2  # charged over computed, of an encoder that computes two
OF_ITERATION = 4  # operations for each number of a row: a product with the weights, and a multiple added to them
SOLVERS = re.compile(r"[\\/](numpy|scipy|scipy[\\/]sparse)[\\/](linalg|optimize)[\\/]")
LIBRARIES = re.compile(r"[\\/](numpy|scipy|sklearn|torch)[\\/](?!_lib[\\/])")  # without wrappers of functions of scipy
NORMS = {"norm", "vector_norm", "matrix_norm"}
THREAD_CALLS = threading.Thread._bootstrap_inner.__code__  # type: ignore[attr-defined]  # what calls `run` in a new thread
aten = torch.ops.aten


@dataclass
class OutsideCount:
    """What was computed, by the stage of the ledger that was open ("" for none, as in a method's own threads)."""

    flops: Counter[str] = field(default_factory=Counter)  # of matrix products
    bag_flops: Counter[str] = field(default_factory=Counter)  # of means of word vectors
    tokens: Counter[str] = field(default_factory=Counter)  # without padding
    padded_tokens: Counter[str] = field(default_factory=Counter)
    index_flops: int = 0  # of these, those of the stage `index` that no text encoder computed
    spread_flops: Counter[str] = field(default_factory=Counter)  # of products by broadcasting, forward
    gradient_flops: int = 0  # of backward passes
    solver_flops: int = 0
    unknown: list[str] = field(default_factory=list)  # what learnt or solved, whose operations nobody can tell

    def within_budget(self, counts: Counter[str]) -> int:
        """What was counted in stages that a budget covers, or in none."""
        return sum(count for stage, count in counts.items() if stage in ("", *BUDGETED_STAGES))


@contextmanager
def counting_from_outside() -> Iterator[OutsideCount]:
    """Count what the block computes in this process."""
    count = OutsideCount()
    reader = _Reader(count)
    formulas = _formulas(count, reader)
    watch = _Watch(count, formulas)
    begun = register_module_forward_pre_hook(reader.begin)
    ended = register_module_forward_hook(reader.end, always_call=True)
    try:
        with watch.watching(), FlopCounterMode(display=False, custom_mapping=formulas):
            yield count
        for model, rows in watch.models.values():
            _add_solver(count, model, rows)
    finally:
        begun.remove()
        ended.remove()


def _formulas(count: OutsideCount, reader: _Reader) -> dict[Any, Callable[..., int]]:
    """Torch's formulas, and those of kernels that it does not know, each of which also counts by stage."""

    def by_stage(formula: Callable[..., int], counter: Counter[str]) -> Callable[..., int]:
        def counted(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
            operations = operations_of(formula, args, kwargs, out_val)
            if not is_uncounted():
                counter[current_stage()] += operations
                if torch._C._current_graph_task_id() >= 0:
                    count.gradient_flops += operations
                if counter is count.flops and current_stage() == "index" and not reader.passes:
                    count.index_flops += operations
            return operations

        counted._get_raw = True  # type: ignore[attr-defined]
        return counted

    bags = dict.fromkeys((aten._embedding_bag, aten._embedding_bag_forward_only), _of_bags)
    products = {**FORMULAS, **flop_registry, aten.convolution_backward: FORMULAS[aten.convolution_backward]}
    spread = dict.fromkeys((aten.mul, aten.mul_), _of_spread) | dict.fromkeys((aten.sub, aten.sub_), _of_differences)
    kinds = (products, count.flops), (bags, count.bag_flops), (spread, count.spread_flops)
    return {
        kernel: by_stage(formula, counter)
        for kernel_formulas, counter in kinds
        for kernel, formula in kernel_formulas.items()
    }


def _of_bags(vectors_VH: Tensor, ids_T: Tensor, *_: Any, **__: Any) -> int:
    return 2 * len(ids_T) * vectors_VH.shape[1]


def _of_spread(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """A product as [M, K, 1] times [1, K, N]: rows of both, which have a dimension in common; others are none."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        return 0
    sizes = [(1,) * (max(left.ndim, right.ndim) - each.ndim) + _own_sizes(each) for each in (left, right)]
    pairs = list(zip(*sizes, strict=True))
    of_left, of_right = any(b == 1 < a for a, b in pairs), any(a == 1 < b for a, b in pairs)
    common = any(1 < a == b for a, b in pairs)
    return 2 * prod(max(pair) for pair in pairs) if of_left and of_right and common else 0


def _own_sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape, without repeats (`expand`)."""
    if tensor.layout != torch.strided:
        return tuple(tensor.shape)
    return tuple(1 if not step else size for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _of_differences(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Differences of vectors, as [M, 1, K] and [1, N, K], of which distances are made."""
    vectors = isinstance(left, Tensor) and isinstance(right, Tensor) and left.ndim and right.ndim
    return _of_spread(left, right) if vectors and 1 < left.shape[-1] == right.shape[-1] else 0


@dataclass
class _Reader:
    """Counts the tokens of each pass through a text encoder: the most that a table of words in it looks up."""

    count: OutsideCount
    passes: list[nn.Module] = field(default_factory=list)  # begun and not ended, each within the one before it
    seen: list[tuple[int, int]] = field(default_factory=list)  # without padding and with it, by table

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Encoder) or hasattr(module, "get_input_embeddings"):
            self.passes.append(module)
        elif self.passes and module is getattr(self.passes[-1], "pooling", None):
            mask: Tensor = inputs[1]  # word vectors are looked up without padding, and pooled with it
            self.seen.append((int(mask.sum()), mask.numel()))
        elif self.passes and isinstance(module, nn.Embedding | nn.EmbeddingBag | WordBags) and inputs:
            ids: Tensor = inputs[0]
            padding = getattr(module, "padding_idx", None)
            real = ids.numel() if padding is None else int((ids != padding).sum())
            # A table without padding may be one of places, of which each text has as many as the longest.
            self.seen.append((ids.numel() if padding is None else real, ids.numel()))

    def end(self, module: nn.Module, *_: Any) -> None:
        if not self.passes or self.passes[-1] is not module:
            return
        self.passes.pop()
        if not self.passes:
            if self.seen and not is_uncounted():
                most = max(padded for _, padded in self.seen)
                self.count.tokens[current_stage()] += min(real for real, padded in self.seen if padded == most)
                self.count.padded_tokens[current_stage()] += most
            self.seen.clear()


class _Watch:
    """Python's profiler, which sees the threads that start and the models of scikit-learn that learn vectors."""

    def __init__(self, count: OutsideCount, formulas: dict[Any, Callable[..., int]]) -> None:
        self._count = count
        self.models: dict[tuple[int, int], tuple[Any, Any]] = {}  # with the rows that the call had which learnt them
        self._formulas = formulas
        self._counters: dict[int, ExitStack] = {}  # by the thread that each counts
        self._calls: list[FrameType] = []  # kept, so that their identities stay theirs

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the block, and the threads that start in it."""
        before, before_in_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before_in_threads)

    def _see(self, call: FrameType, event: str, _: Any) -> None:
        """Count a thread from its first call to its last return, and note a model when a call has taught it."""
        if event == "return" and _teaches(call.f_code) and hasattr(model := call.f_locals.get("self"), "get_params"):
            self.models[id(model), id(call)] = model, call.f_locals.get("X")
            self._calls.append(call)
        if event == "call" and call.f_back and _solves(call.f_code) and not _is_library(call.f_back.f_code):
            library = call.f_globals["__name__"].partition(".")[0]
            self._count.unknown.append(f"called {call.f_code.co_name} of {library}")
        if event in ("call", "return") and call.f_back and call.f_back.f_code is THREAD_CALLS:
            thread = threading.get_ident()
            if event == "call":
                self._counters[thread] = ExitStack()
                self._counters[thread].enter_context(FlopCounterMode(display=False, custom_mapping=self._formulas))
            elif thread in self._counters:
                self._counters.pop(thread).close()


@cache
def _solves(code: CodeType) -> bool:
    """Whether a function of numpy or scipy decomposes a matrix, or solves or minimises something."""
    name = code.co_name
    return bool(SOLVERS.search(code.co_filename)) and name[0].isalpha() and name not in NORMS


@cache
def _is_library(code: CodeType) -> bool:
    return bool(LIBRARIES.search(code.co_filename))


@cache
def _teaches(code: CodeType) -> bool:
    """Whether a function of scikit-learn assigns what a model learns."""
    stores = (each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR")
    return "sklearn" in code.co_filename and not {*LEARNT}.isdisjoint(stores)


def _add_solver(count: OutsideCount, model: Any, rows: Any) -> None:
    """Count what a model computed that was fitted to `rows`."""
    iterations, coefficients = getattr(model, "n_iter_", None), getattr(model, "coef_", None)
    if iterations is None or coefficients is None or rows is None:
        count.unknown.append(f"trained {type(model).__name__} of scikit-learn")
        return
    models = 1 if np.ndim(iterations) else np.atleast_2d(coefficients).shape[0]
    numbers = getattr(rows, "nnz", None) or np.size(rows)
    count.solver_flops += OF_ITERATION * models * int(np.sum(iterations)) * (numbers + rows.shape[0])


def miscounted(count: OutsideCount, ledger: Ledger, *, frozen: bool = False) -> str:
    """What the ledger charges otherwise than was counted, beyond `CLOSE` and the known differences; empty if nothing.

    Five differences are known. A training step is charged as three passes of an encoder; two are computed of the mean
    of word vectors, and at least two where weights are `frozen`, as with LoRA. Padding is multiplied and not charged. A
    pass over the labels in the stage `index` may be charged. Where no model of scikit-learn learns, `solver_flops` are
    those of a method's own products in numpy, which are taken as charged.
    """
    tokens, charged = count.within_budget(count.tokens), ledger.encoder_tokens
    if tokens > charged * (1 + CLOSE):
        return f"fit read {tokens:,} tokens with text encoders and charged {charged:,}"
    if charged > (tokens + count.tokens["index"]) * (1 + CLOSE):
        return f"fit charged {charged:,} tokens, and text encoders read {tokens:,}"
    if count.unknown and not ledger.solver_flops and "flops" not in ledger.not_counted:
        return f"fit {count.unknown[0]}, whose operations nobody counts"
    solved = count.solver_flops and not count.unknown  # what numpy multiplies nobody can count from outside
    if solved and abs(ledger.solver_flops - count.solver_flops) > CLOSE * count.solver_flops:
        return f"linear solvers took {count.solver_flops:,} operations, and fit charged {ledger.solver_flops:,}"
    own = ledger.flops - ledger.solver_flops
    if count.index_flops > own * (1 + CLOSE):
        return f"fit multiplied {count.index_flops:,} operations in the stage index, and charged {own:,} in all"
    products, bags = count.within_budget(count.flops), count.within_budget(count.bag_flops)
    real, padded = count.within_budget(count.tokens), count.within_budget(count.padded_tokens)
    padding = (padded / real) ** 2 if real else 1.0  # attention multiplies pairs of tokens
    if products + bags > own * (1 + CLOSE) * padding:
        return f"fit multiplied {products + bags:,} operations and charged {own:,}"
    spread = count.within_budget(count.spread_flops)
    if products + bags + spread > own * (1 + CLOSE) * padding:
        return f"fit made products of {spread:,} operations by broadcasting, and charged {own:,} in all: use matmul"
    most = PASSES * (products + bags) if frozen else products + PASSES * bags
    if own > (most + 3 * spread + count.flops["index"]) * (1 + CLOSE):
        return f"fit charged {own:,} operations, and {products + bags:,} were multiplied"
    return ""
