"""A method that ranks labels by inner products of vectors: settings, encoder, modules, and the vectors they make.

Whole collections of texts are embedded by all workers together: each embeds its share, and each gets all vectors.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from xmcbench.data.dataset import TrainingData
from xmcbench.data.extent import Extent
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig, Precision
from xmcbench.engine.search.index import Backend
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.method import Method
from xmcbench.trial.run import Progress, Run
from xmcbench.trial.versions import ENGINE_VERSION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.charging import Charging
    from xmcbench.engine.checkpoint import Groups
    from xmcbench.engine.encoders.encoder import Encoder
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sharding import Shard
    from xmcbench.engine.tables.label_table import LabelTable

BLOCK = 2**18  # rows of which modules compute vectors at a time
QUIET_SECONDS = 2.0  # a pass over texts reports its progress from then on


class VectorMethod(Method):
    """A method that scores a label for a query by the inner product of two vectors made from embeddings.

    The attributes are set once it is assembled or loaded; those of training while it is fitted.
    """

    many_workers: ClassVar[bool] = True
    late_imports: ClassVar[tuple[str, ...]] = (
        "transformers.generation.utils",
        "transformers.masking_utils",
        "transformers.modeling_layers",
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
        "xmcbench.engine.assembly",
    )
    encodes_labels: ClassVar[bool] = True
    """Whether label texts go through the encoder; without, the embeddings of S labels are [S, 0]."""

    class Config(Method.Config):
        """Settings every dual encoder has."""

        encoder: EncoderConfig = Field(
            EncoderConfig(), description="the text encoder: a name, or a mapping of the settings of encoders"
        )
        precision: Precision = Field(
            "float32",
            description="precision of matrix products in the encoder; bf16 is autocast; embeddings, scores and "
            "losses are float32",
        )
        max_query_length: int | None = Field(
            None, gt=1, description="tokens to which queries are truncated; null: the dataset card's `max_length`"
        )
        max_label_length: int | None = Field(
            None, gt=1, description="tokens to which labels are truncated; null: the card's `max_label_length`"
        )
        search: Backend = Field(
            "exact",
            description="search of predictions: exact, faiss-flat (same results), or faiss-hnsw (a graph) or faiss-ivf "
            "(clusters), which miss some labels",
        )
        micro_batch_tokens: int | None = Field(
            None,
            gt=0,
            description="padded tokens in one pass of the encoder; null: 2,048 on a CPU (bf16: 8,192), 65,536 on a GPU "
            "and for static",
        )

        def micro_batch_on(self, kind: str) -> int:
            """Padded tokens through the encoder at once on a device of that kind: `cpu`, or that of a GPU.

            A GPU needs large micro-batches to be busy. On a CPU small micro-batches waste the least on padding, but
            in bf16 each new shape of a product has a setup cost, so fewer and larger micro-batches are faster.
            """
            on_cpu = 8_192 if self.precision == "bf16" else 2_048
            large = kind != "cpu" or self.encoder.name == STATIC  # which pads nothing, and keeps a vector a text
            return self.micro_batch_tokens or (65_536 if large else on_cpu)

    config: VectorMethod.Config
    encoder: Encoder
    modules: nn.Module
    table_values: int = 0  # numbers in the label tables of all workers
    index_LD: Tensor
    query_length: int
    label_length: int
    # Set while the method is fitted.
    run: Run
    report: Callable[[Progress], None] | None = None  # shows the progress of long passes
    shard: Shard
    charging: Charging
    queries: Tokens  # of the training queries
    labels: Tokens

    @property
    def precision(self) -> Precision:
        """Of matrix products in the encoder."""
        return self.config.precision

    @cached_property
    def micro_batch_tokens(self) -> int:
        """Padded tokens through the encoder at once, on this process's device."""
        return self.config.micro_batch_on(default_device().type)

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        return {**super().versions(config), "engine": ENGINE_VERSION}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:
        """The lengths to which texts are cut follow the data where neither suite nor card says them."""
        limits = {"max_query_length": data.query_limit, "max_label_length": data.label_limit}
        stated = {name: limit for name, limit in limits.items() if limit is not None}
        return stated | super().following(given, data, budget)

    def charging_to(self, ledger: Ledger, budget: Budget | None = None) -> Charging:
        """The `Charging` that enters the costs of this model's encoder and scores into `ledger`, within `budget`."""
        from xmcbench.engine.charging import Charging
        from xmcbench.engine.workers import current_workers

        return Charging(ledger, self.encoder.flops, current_workers(), budget)

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        """The method's own modules over embeddings, trained with the encoder. None by default."""
        from torch import nn

        return nn.Module()

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The modules that `build_modules` made, from their saved tensors. A method with modules overrides both."""
        from torch import nn

        if tensors:
            raise TypeError(f"{type(self).__name__} has modules of its own, so it has to define load_modules")
        return nn.Module()

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] that queries are scored with, from their embeddings [N, D], on one device."""
        return embeddings_ND

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """The vectors [S, V] that labels are scored with, from their embeddings [S, D] and ids [S] (numpy, int)."""
        return embeddings_SD

    def mining_query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] of queries that samplers search with: by default those for scoring."""
        return self.query_vectors(embeddings_ND)

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """The vectors [S, V] of the labels `label_ids` [S] among which samplers search."""
        return self.label_vectors(embeddings_SD, label_ids)

    def label_groups(self, train: TrainingData, embeddings: Embeddings) -> np.ndarray | None:  # noqa: ARG002
        """[L] group numbers: labels of one group are held by one worker. None puts each label into its own group.

        For a method whose labels share vectors; `shard.groups_L` has the groups afterwards. `embeddings` are those of
        the encoder before training. Every worker calls this; a resumed run reuses the groups of its first start.
        """
        return None

    def embed(self, tokens: Tokens, stage: str = "embed queries") -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off. A long pass is reported as `stage`."""
        from xmcbench.engine.encoders.encoder import embed_all

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

        from xmcbench.engine.encoders.encoder import evaluating

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
        return {"encoder": self.encoder.trained_tensors(), "modules": self.module_tensors()}

    def load_tensors(self, groups: Groups) -> None:
        """Restore what `tensors` returned."""
        self.encoder.load_state_dict({**self.encoder.state_dict(), **groups["encoder"]})
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
