"""An assembled model: the text encoder, a method's own modules over its embeddings, and the labels this worker holds.

Whole collections of texts are embedded by all workers together: each embeds its share, and each gets all vectors.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import Precision
from xmcbench.trial.run import Progress

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.checkpoint import Groups
    from xmcbench.engine.encoders.encoder import Encoder
    from xmcbench.engine.sampling.sharding import Shard
    from xmcbench.engine.tables.label_table import LabelTable


BLOCK = 2**18  # rows of which modules compute vectors at a time
QUIET_SECONDS = 2.0  # a pass over texts reports its progress from then on


class Model:
    """The attributes are set once the model is assembled or loaded; `shard` only while it trains."""

    encoder: Encoder
    modules: nn.Module
    shard: Shard
    precision: Precision
    micro_batch_tokens: int
    table_values: int = 0  # numbers in the label tables of all workers
    report: Callable[[Progress], None] | None = None  # shows the progress of long passes while the method is fitted

    def embed(self, tokens: Tokens, stage: str = "embed queries") -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off. A long pass is reported as `stage`."""
        from xmcbench.engine.encoders.embedding import embed_all

        started = time.monotonic()

        def progress(finished: int) -> None:
            if self.report is not None and time.monotonic() - started > QUIET_SECONDS:
                self.report(Progress(stage, finished / len(tokens)))

        return embed_all(
            self.encoder,
            tokens,
            precision=self.precision,
            micro_batch_tokens=self.micro_batch_tokens,
            progress=progress,
        )

    def embed_queries(self, tokens: Tokens, vectors: Callable[[Tensor], Tensor]) -> Tensor:
        """[N, D] what `vectors` computes from the embeddings of N texts, on every worker."""
        workers = self.shard.workers
        places = [np.arange(rank, len(tokens), workers.size) for rank in range(workers.size)]
        with self.inference():
            own_N = places[workers.rank]
            mine = vectors_in_blocks(self.embed(tokens.take(own_N)), own_N, lambda rows_ND, _: vectors(rows_ND))
            return _in_order(workers.gather(mine), np.concatenate(places))

    def embed_labels(self, tokens: Tokens, vectors: Callable[[Tensor, np.ndarray], Tensor], *, encode: bool) -> Tensor:
        """[L, D] what `vectors` computes from the embeddings and the ids of labels, on every worker.

        Without `encode` the embeddings of S labels are [S, 0]. Each worker computes the vectors of the labels it holds.
        """
        import torch

        label_ids = self.shard.label_ids
        with self.inference():
            empty_S0 = torch.empty(len(label_ids), 0, device=default_device())
            embeddings_SD = self.embed(tokens.take(label_ids), "embed labels") if encode else empty_S0
            mine = vectors_in_blocks(embeddings_SD, label_ids, vectors)
            return _in_order(self.shard.workers.gather(mine), self.shard.everyone())

    @contextmanager
    def inference(self) -> Iterator[None]:
        """No gradients, and the method's modules without dropout."""
        import torch

        from xmcbench.engine.encoders.embedding import evaluating

        with torch.inference_mode(), evaluating(self.modules):
            yield

    def tables(self) -> dict[str, LabelTable]:
        """The label tables among the method's modules, by name."""
        from xmcbench.engine.tables.label_table import LabelTable

        return {name: module for name, module in self.modules.named_modules() if isinstance(module, LabelTable)}

    def module_tensors(self) -> dict[str, Tensor]:
        """The state of the method's modules that all workers share: label tables, which are sharded, are left out."""
        tables = tuple(f"{name}." if name else "" for name in self.tables())
        return {name: tensor for name, tensor in self.modules.state_dict().items() if not name.startswith(tables)}

    def tensors(self) -> Groups:
        """The weights that all workers share, by group: for checkpoints."""
        return {"encoder": self.encoder.state_dict(), "modules": self.module_tensors()}

    def load_tensors(self, groups: Groups) -> None:
        """Restore what `tensors` returned."""
        self.encoder.load_state_dict(groups["encoder"])
        self.modules.load_state_dict({**self.modules.state_dict(), **groups.get("modules", {})})

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, with the rows of label tables on all workers."""
        trained = sum(p.numel() for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad)
        return trained + self.table_values


def vectors_in_blocks(
    embeddings_NH: Tensor, ids_N: np.ndarray, vectors: Callable[[Tensor, np.ndarray], Tensor]
) -> Tensor:
    """[N, D] what `vectors` computes from embeddings and ids, `BLOCK` rows at a time to save memory."""
    block = embeddings_NH[:BLOCK]
    first = vectors(block, ids_N[:BLOCK])
    if first is block:  # the embeddings as they are
        return embeddings_NH
    if len(ids_N) <= BLOCK:
        return first
    computed_ND = first.new_empty(len(ids_N), first.shape[1])
    computed_ND[:BLOCK] = first
    for start in range(BLOCK, len(ids_N), BLOCK):
        rows = slice(start, start + BLOCK)
        computed_ND[rows] = vectors(embeddings_NH[rows], ids_N[rows])
    return computed_ND


def _in_order(rows: Tensor, places: np.ndarray) -> Tensor:
    """Rows in the order of the places they belong to, where row i belongs to `places[i]`."""
    import torch

    if len(places) < 2 or bool((np.diff(places) > 0).all()):
        return rows
    return rows[torch.from_numpy(np.argsort(places)).to(rows.device)]
