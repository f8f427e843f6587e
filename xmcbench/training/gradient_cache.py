"""The gradient cache (Gao et al., 2021): a batch of any size through an encoder, in bounded memory, exactly.

1. `embed` runs the texts through the encoder in micro-batches and hands out the embeddings as one leaf tensor.
   Micro-batches whose activations fit the memory budget keep their graph; the others leave only embeddings.
2. The caller computes a loss on the leaf and calls its `backward`.
3. `backward` pushes the leaf's gradient through the kept graphs, and through a second forward pass of the others.

Each micro-batch draws its dropout from a seed of its own, so the second pass sees the masks of the first, and a
resumed run those of an unbroken one. Micro-batches hold texts of like length: short titles are hardly padded.

Legend: N texts, M texts of a micro-batch, W its longest text in tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xmcbench.data.tokens import Tokens, micro_batches
from xmcbench.method import derive_seed

Encode = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TextRows:
    """Some rows of some tokenised texts."""

    tokens: Tokens
    rows: np.ndarray


@dataclass
class _MicroBatch:
    places: Tensor  # [M] rows of the batch's embeddings
    ids_MW: Tensor
    mask_MW: Tensor
    seed: int
    output_MD: Tensor | None  # with its graph, where that fits the memory budget


class GradientCache:
    """Embeds batches through `encode(ids [M, W], mask [M, W]) -> [M, D]`.

    At most `graph_tokens` padded tokens keep their activations (but one micro-batch at a time always does).
    """

    def __init__(
        self,
        encode: Encode,
        *,
        device: torch.device,
        pad_id: int,
        micro_batch_tokens: int,
        graph_tokens: int,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.encode = encode
        self.device = device
        self.pad_id = pad_id
        self.micro_batch_tokens = micro_batch_tokens
        self.graph_tokens = graph_tokens
        self.autocast = autocast

    def embed(self, parts: list[TextRows], seed: int) -> CachedEmbeddings:
        """Embed the texts of all parts, one part after another."""
        lengths_N = np.concatenate([part.tokens.lengths[part.rows] for part in parts])
        held, made = 0, []
        leaf_ND: Tensor | None = None
        for number, group in enumerate(micro_batches(lengths_N, self.micro_batch_tokens)):
            ids, mask = _padded(parts, group, self.pad_id)
            micro = _MicroBatch(
                torch.from_numpy(group.copy()).to(self.device),
                torch.from_numpy(ids).to(self.device, non_blocking=True),
                torch.from_numpy(mask).to(self.device, non_blocking=True),
                derive_seed(seed, number),
                None,
            )
            held += ids.size
            keep = held <= self.graph_tokens
            output_MD = self._run(micro, with_graph=keep)
            if leaf_ND is None:
                leaf_ND = output_MD.new_empty((len(lengths_N), output_MD.shape[1]))
            leaf_ND[micro.places] = output_MD.detach()
            micro.output_MD = output_MD if keep else None
            made.append(micro)
        if leaf_ND is None:
            raise ValueError("a batch needs at least one text")
        return CachedEmbeddings(self, leaf_ND.requires_grad_(), made, int(lengths_N.sum()))

    def _run(self, micro: _MicroBatch, *, with_graph: bool) -> Tensor:
        torch.manual_seed(micro.seed)
        with torch.set_grad_enabled(with_graph), self.autocast():
            return self.encode(micro.ids_MW, micro.mask_MW)

    def pull(self, micro: _MicroBatch, gradient_MD: Tensor) -> None:
        """Add to the parameters' gradients what one micro-batch owes."""
        output_MD = micro.output_MD if micro.output_MD is not None else self._run(micro, with_graph=True)
        micro.output_MD = None
        output_MD.backward(gradient_MD.to(output_MD.dtype))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class CachedEmbeddings:
    """`embeddings` [N, D], a leaf; `tokens` real tokens were encoded for it. Bound to its own forward pass."""

    cache: GradientCache
    embeddings: Tensor
    micro: list[_MicroBatch]
    tokens: int

    def backward(self) -> None:
        """Push the leaf's gradient into the encoder's parameters. Call once, after the loss's `backward`."""
        gradient_ND = self.embeddings.grad
        if gradient_ND is None:
            raise ValueError("no gradient at the embeddings: call the loss's backward first, and this one once")
        for micro in self.micro:
            self.cache.pull(micro, gradient_ND[micro.places])
        self.embeddings.grad = None  # spent: a second call must not add it again


def _padded(parts: list[TextRows], group: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask [M, W] of a group that may mix texts of several parts, in the group's order."""
    bounds = np.cumsum([0, *(len(part.rows) for part in parts)])
    pieces = []
    for part, start, end in zip(parts, bounds, bounds[1:], strict=False):
        mine = np.flatnonzero((group >= start) & (group < end))
        pieces.append((mine, *part.tokens.padded(part.rows[group[mine] - start], pad_id)))
    shape = (len(group), max(ids.shape[1] for _, ids, _ in pieces))
    all_ids, all_mask = np.full(shape, pad_id, np.int64), np.zeros(shape, bool)
    for mine, ids, mask in pieces:
        all_ids[mine, : ids.shape[1]], all_mask[mine, : ids.shape[1]] = ids, mask
    return all_ids, all_mask
