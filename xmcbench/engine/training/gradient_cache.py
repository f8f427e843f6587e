"""The gradient cache (Gao et al., 2021): a batch of any size through an encoder, in bounded memory, exactly.

1. `embed` runs the texts through the encoder in micro-batches and hands out the embeddings as one leaf tensor.
   Micro-batches whose activations fit the memory budget keep their graph; the others leave only embeddings.
2. The caller computes a loss on the leaf and calls its `backward`.
3. `backward` pushes the leaf's gradient through the kept graphs, and through a second forward pass of the others.

Dropout masks depend on the step's seed and the text (`SeededDropout`). So the second pass sees the masks of the first,
a resumed run those of an unbroken one, and the size of the micro-batches changes nothing but speed. Micro-batches hold
texts of similar length, which keeps padding small.

Legend: N texts, M texts of a micro-batch, D dimensions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from xmcbench.data.tokens import Tokens
from xmcbench.engine.device import seed_random, upload
from xmcbench.engine.encoders.dropout import SeededDropout, text_seeds
from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.trial.meter import uncounted


class SavedBytes(saved_tensors_hooks):
    """Counts the bytes that graphs made within this context keep alive: `total`, and of the `largest` tensor.

    It may be entered again to count on. Parameters and what else is `there` anyway do not count; what several
    operations keep counts once. The graphs have to outlive the count: storages are told apart by their addresses.
    """

    def __init__(self, there: Iterable[Tensor], *, compiled: bool = False) -> None:
        self.total = self.largest = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in there}
        note: Any = self._note
        if compiled:  # the compiler would trace the count, and recompile whenever it changes
            note = torch.compiler.disable(note)  # type: ignore[no-untyped-call]
        super().__init__(note, lambda tensor: tensor)

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.total += storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())
        return tensor.detach()  # an operation that kept its own result would keep itself alive


@dataclass(frozen=True)
class TextRows:
    """The rows `rows` of some tokenised texts. A text's dropout follows from its kind and row."""

    tokens: Tokens
    rows: np.ndarray
    kind: Literal["query", "label"]


@dataclass
class _Pass:
    """A micro-batch that passed the encoder. Its token ids are not kept: a second pass collates the texts again."""

    group_M: np.ndarray  # places of its texts in the batch
    output_MD: Tensor | None = None  # with its graph, where that fits the memory budget


@dataclass
class GradientCache:
    """Embeds batches through an encoder, about `micro_batch_tokens` tokens at once.

    Micro-batches keep their activations while these are at most `activation_bytes` (one at a time always does). What a
    micro-batch keeps is counted, not estimated.
    """

    encoder: Encoder
    device: torch.device
    micro_batch_tokens: int
    activation_bytes: int
    autocast: Callable[[], AbstractContextManager[object]]

    def embed(self, parts: list[TextRows], seed: int, kept_bytes: int = 0) -> CachedEmbeddings:
        """Embed the texts of all parts, one part after another; `seed` decides their dropout. There may be no texts.

        `kept_bytes` of activations are already kept from other texts of the step.
        """
        tokens = Tokens.joined([part.tokens.take(part.rows) for part in parts])
        waiting = deque(self.encoder.micro_batches(tokens.lengths, self.micro_batch_tokens))
        seeds_N = np.concatenate([text_seeds(seed, part.kind, part.rows) for part in parts])
        run = partial(self._run, tokens, seeds_N)
        leaf_ND = torch.empty((len(tokens), self.encoder.dimension), device=self.device)
        passes: list[_Pass] = []
        room = max(0, self.activation_bytes - kept_bytes)
        # Autocast casts a weight once per context, so a context spans many micro-batches. What was cast without a graph
        # must not serve where one is kept: hence two contexts.
        with self.autocast():
            saved, coming = SavedBytes(self.encoder.parameters(), compiled=self.encoder.config.compile), 0
            while waiting and saved.total + coming <= room:
                before, group_M = saved.total, waiting.popleft()
                output_MD = run(group_M, saved)
                leaf_ND[upload(group_M.copy(), self.device)] = output_MD.detach()
                passes.append(_Pass(group_M, output_MD))
                del output_MD  # the pass alone keeps the graph
                # Texts get shorter, so the next micro-batch keeps about as much, or less.
                coming = saved.total - before
            if saved.total > room:
                passes[-1].output_MD = None
        with self.autocast(), torch.no_grad():
            for group_M in waiting:
                leaf_ND[upload(group_M.copy(), self.device)] = run(group_M)
                passes.append(_Pass(group_M))
        return CachedEmbeddings(self, leaf_ND.requires_grad_(), run, passes, int(tokens.lengths.sum()), saved.total)

    def _run(
        self,
        tokens: Tokens,
        seeds_N: np.ndarray,
        group_M: np.ndarray,
        saved: AbstractContextManager[object] | None = None,
    ) -> Tensor:
        """The embeddings of the texts `group_M`; `saved` counts what their graph keeps."""
        texts = [upload(array, self.device) for array in self.encoder.collate(tokens, group_M)]
        seeds_M = seeds_N[group_M]
        # For what `SeededDropout` does not reach, as a compiled encoder's draws: alike in both passes, but dependent on
        # the micro-batch.
        seed_random(int(seeds_M[0]) >> 1, self.device)
        with saved or nullcontext(), nullcontext() if self.encoder.config.compile else SeededDropout(seeds_M):
            output_MD: Tensor = self.encoder(*texts)
        return output_MD


@dataclass(frozen=True)
class CachedEmbeddings:
    """`embeddings` [N, D], a leaf; `tokens` real tokens were encoded for it and at most `kept_bytes` kept.

    Bound to its own forward pass.
    """

    cache: GradientCache
    embeddings: Tensor
    run: Callable[[np.ndarray], Tensor]
    passes: list[_Pass]
    tokens: int
    kept_bytes: int

    def backward(self) -> None:
        """Push the leaf's gradient into the encoder's parameters. Call once, after the loss's `backward`."""
        if not self.passes:
            return
        gradient_ND = self.embeddings.grad
        if gradient_ND is None:
            raise ValueError("no gradient at the embeddings: call the loss's backward first, and this one once")
        for done in self.passes:
            output_MD, done.output_MD = done.output_MD, None
            if output_MD is None:
                with self.cache.autocast(), uncounted():
                    output_MD = self.run(done.group_M)
            places = upload(done.group_M.copy(), gradient_ND.device)
            output_MD.backward(gradient_ND[places])  # type: ignore[no-untyped-call]
            del output_MD  # with its graph, before the next one is built
        self.embeddings.grad = None  # spent: a second call must not add it again
