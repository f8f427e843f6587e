"""Dropout whose masks belong to texts: a function of a text's seed, of which call of the forward pass drops, and of the
value's place. The micro-batch that a text came in, its padding, the number of workers and the device change nothing.

A value is dropped where its 16 random bits are below the rate. That rounds the rate to a multiple of 2^-16; the scale
is that of the rounded rate, so the expectation is exact. The bits are a hash, not the draws of a generator: a word of
64 bits, enough for four values, is a text's number and a place's number, combined by exclusive or and mixed by two
multiplications. On a CPU this is faster than torch's dropout, which draws a double per value on one thread.

Legend: M texts, * further dimensions of a tensor, K words of 64 bits per text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from xmcbench.engine.device import upload
from xmcbench.trial.run import derive_seed
from xmcbench.trial.splitmix64 import splitmix64

LEVELS = 2**16
FACTORS = 0xD6E8FEB86659FD93, 0xBF58476D1CE4E5B9  # odd, with bits that look random
CHUNK = 2**14  # words mixed at once, so that they stay in a core's cache


class SeededDropout(TorchFunctionMode):
    """Within this context a text's dropout masks depend only on its seed (uint64 [M]) and the number of the call.

    It replaces `torch.nn.functional.dropout`, and the dropout within `scaled_dot_product_attention`, of tensors whose
    first dimension is the texts. Dropout of any other tensor is torch's own. It does not reach into what
    `torch.compile` compiled, nor into `nn.MultiheadAttention`.
    """

    entered: ClassVar[list[SeededDropout]] = []  # the last one counts

    def __init__(self, seeds_M: np.ndarray) -> None:
        super().__init__()
        self.seeds_M = seeds_M
        self.calls = 0
        self._uploaded: Tensor | None = None  # the seeds on a GPU

    def __enter__(self) -> SeededDropout:
        self.entered.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.entered.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.dropout:
            func = self.dropout
        elif func is functional.scaled_dot_product_attention:
            func = self.attention
        return func(*args, **(kwargs or {}))

    def dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Like `torch.nn.functional.dropout`: each value is 0 with probability `p`, otherwise divided by 1 - p."""
        dropped = round(p * LEVELS)
        if not training or dropped in (0, LEVELS) or len(input) != len(self.seeds_M) or not input.numel():
            return functional.dropout(input, p, training, inplace)
        self.calls += 1
        kept = self._kept(input.shape, dropped, input.device).to(input.dtype)
        return input.mul_(kept) if inplace else input * kept

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Like `torch.nn.functional.scaled_dot_product_attention`, in separate products if anything is dropped."""
        if dropout_p == 0:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
        return self.dropout(scores.softmax(-1), dropout_p) @ value

    def _kept(self, shape: torch.Size, dropped: int, device: torch.device) -> Tensor:
        """Float32 of that shape: 0 where a value is dropped, else what keeps the expectation."""
        last, sizes, scale = shape[-1], (*shape[1:-1], -(-shape[-1] // 4)), LEVELS / (LEVELS - dropped)
        if device.type == "cpu":
            numbers_M = mixed(self.seeds_M + np.uint64(self.calls))
            kept = torch.from_numpy(_kept(numbers_M, _places(sizes, device).numpy().view(np.uint64), dropped, scale))
        else:
            if self._uploaded is None:
                self._uploaded = upload(self.seeds_M.view(np.int64), device)
            kept = _kept_on_device(splitmix64(self._uploaded + self.calls), sizes, dropped) * scale
        return kept.view(*shape[:-1], -1)[..., :last]


def repeated() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Contexts of a checkpointed layer, for its pass and for its recomputation: both drop the same.

    It is the `context_fn` of `torch.utils.checkpoint`.
    """
    # Torch repeats its own draws; a copy continues from the number of calls so far.
    return nullcontext(), copy(SeededDropout.entered[-1]) if SeededDropout.entered else nullcontext()


def text_seeds(seed: int, kind: str, ids_M: np.ndarray) -> np.ndarray:
    """Uint64 [M]: a seed for each of the texts (or rows of anything) `ids_M`, of `kind`, under `seed`."""
    return mixed(ids_M.astype(np.uint64) + np.uint64(derive_seed(seed, kind)))


def row_dropout(seed: int, kind: str, ids_M: np.ndarray) -> SeededDropout:
    """Within this context dropout of tensors with a row for each id depends on `seed`, `kind` and the ids alone.

    For dropout in a method's own modules: workers hold different labels, and masks must not follow which worker holds a
    label. In `loss`, `int(torch.randint(2**62, ()))` is a seed that all workers draw alike.
    """
    return SeededDropout(text_seeds(seed, kind, ids_M))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64 of uint64 numbers."""
    hashes: np.ndarray = splitmix64(numbers.view(np.int64)).view(np.uint64)
    return hashes


@lru_cache(maxsize=16)
def _places(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Int64 [K]: the numbers of a text's words, which depend on their coordinates and not on the sizes."""
    numbers = torch.zeros((), dtype=torch.int64, device=device)
    for size in sizes:
        numbers = splitmix64(numbers[..., None] + torch.arange(1, size + 1, device=device))
    return numbers.flatten()


def _kept(numbers_M: np.ndarray, places_K: np.ndarray, dropped: int, scale: float) -> np.ndarray:
    """Float32 [M, 4 K]: 0 where a value's 16 bits are less than `dropped`, else `scale`."""
    texts = max(1, CHUNK // max(1, len(places_K)))
    kept = np.empty((len(numbers_M), 4 * len(places_K)), np.float32)
    for start in range(0, len(numbers_M), texts):
        words = numbers_M[start : start + texts, None] ^ places_K
        words *= np.uint64(FACTORS[0])
        words ^= words >> np.uint64(32)
        words *= np.uint64(FACTORS[1])
        bits = words.view(np.uint16)
        np.multiply(bits >= dropped, np.float32(scale), out=kept[start : start + texts], dtype=np.float32)
    return kept


def _kept_on_device(numbers_M: Tensor, sizes: tuple[int, ...], dropped: int) -> Tensor:
    """Bool [M, 4 K]: what `_kept` computes, in torch's signed integers, which wrap around."""
    words_MK = numbers_M[:, None] ^ _places(sizes, numbers_M.device)
    words_MK *= FACTORS[0] - 2**64
    words_MK ^= (words_MK >> 32) & 0xFFFFFFFF
    words_MK *= FACTORS[1] - 2**64
    # A signed number of 16 bits compares as an unsigned one after both lost half of the levels.
    return (words_MK.view(torch.int16) ^ -(LEVELS // 2)) >= dropped - LEVELS // 2
