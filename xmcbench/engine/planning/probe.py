"""Observes what a method does with embeddings, on a few texts with random vectors, without an encoder.

Legend: B queries of a batch, S labels of its pool, L labels, D dimensions of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from xmcbench.engine import flops
from xmcbench.engine.assembly import add_modules
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders.encoder import evaluating
from xmcbench.engine.planning.workload import Workload
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.engine.workers import ALONE

FEW_QUERIES, FEW_LABELS = 48, 160
GROUPS = 512  # of labels, whose rows of a table are made to see what a row takes


@dataclass(frozen=True)
class Table:
    """A label table at full size. A row's bytes are those of its weights, optimiser state and other buffers."""

    rows: int
    row_bytes: float
    dimension: int
    learns: bool
    whole_gradient: bool = True  # whether the gradients of all rows that a step reads are there at once


@dataclass(frozen=True)
class Probe:
    """The observations."""

    flops_per_pair: float  # operations of a step on scores, per pair of a query and a label of its pool
    keeps_scores: bool  # whether the loss keeps scores of its forward pass for its backward pass
    mining_dimension: int  # of the vectors that samplers see
    scored_dimension: int  # of the vectors that are searched
    asks_queries: int  # how often the embeddings of all queries are requested before the first step
    asks_labels: int
    module_parameters: int  # of the method's own modules, label tables aside
    module_bytes: float  # that the backward pass through these modules takes, per text of a step
    tables: dict[str, Table]


class _FirstGroups(Shard):
    """The part of a worker that holds the first groups only: their rows lie in few of the blocks that are drawn."""

    def __init__(self, num_labels: int, groups_L: np.ndarray | None) -> None:
        super().__init__(num_labels, ALONE, groups_L)
        self.mine_L = self.groups_L < GROUPS
        self.label_ids = np.flatnonzero(self.mine_L)


class _NoEncoder(nn.Module):
    """Takes the place of a method's encoder, and has only its dimension."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension


def observe(method: EmbeddingMethod, work: Workload, dimension: int) -> Probe:
    """Build the method's modules over a few texts, take one step of its loss, and count operations and bytes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        few, counts = _few(method, work, dimension)
        flops_per_pair, keeps_scores, bytes_per_text = _scoring(few, work, dimension)
        tables = _tables(method, work, dimension)
        vectors = torch.randn(2, dimension)
        with evaluating(few.modules), torch.no_grad():
            mining, scored = few.mining_query_vectors(vectors), few.query_vectors(vectors)
    parameters = sum(p.numel() for p in few.modules.parameters() if p.requires_grad)
    return Probe(
        flops_per_pair=flops_per_pair,
        keeps_scores=keeps_scores,
        mining_dimension=mining.shape[1],
        scored_dimension=scored.shape[1],
        asks_queries=counts["queries"],
        asks_labels=counts["labels"],
        module_parameters=parameters,
        module_bytes=bytes_per_text if parameters else 0.0,
        tables=tables,
    )


def _few(method: EmbeddingMethod, work: Workload, dimension: int) -> tuple[EmbeddingMethod, dict[str, int]]:
    """The method with its modules over a few texts, and how often it requested all embeddings."""
    part = work.part(FEW_QUERIES, FEW_LABELS)
    smaller = {"batch_size": len(part.texts)}
    few = type(method)(method.config.model_copy(update=smaller))
    counts = {"queries": 0, "labels": 0}

    def requests(name: str, count: int) -> Any:
        def request() -> Tensor:
            counts[name] += 1
            return normalize(torch.randn(count, dimension), dim=1)

        return request

    embeddings = Embeddings(requests("queries", len(part.texts)), requests("labels", part.num_labels))
    few.encoder = _NoEncoder(dimension)  # type: ignore[assignment]
    few.modules, few.shard = nn.Module(), Shard(part.num_labels, ALONE)
    add_modules(few, part, ALONE, few.label_groups(part, embeddings), seed=0)
    with torch.no_grad():
        few.begin(embeddings)
    return few, counts


def _scoring(few: EmbeddingMethod, work: Workload, dimension: int) -> tuple[float, bool, float]:
    """One step of the loss: its operations on scores, per pair of a query and a label, whether it keeps scores, and the
    bytes per text that its backward pass takes: what is kept for it, and two gradients of the largest that is."""
    part = work.part(FEW_QUERIES, FEW_LABELS)
    sampler = few.sampler(part, 0)
    vectors = {n: normalize(torch.randn(n, dimension), dim=1) for n in {len(part.texts), part.num_labels}}
    sampler.refresh(0, Embeddings(lambda: vectors[len(part.texts)], lambda: vectors[part.num_labels]))
    batch = sampler.batch(0, 0)
    queries_BD = normalize(torch.randn(len(batch.query_ids), dimension), dim=1).requires_grad_()
    width = dimension if few.encodes_labels else 0
    labels_SD = normalize(torch.randn(len(batch.label_ids), width), dim=1).requires_grad_()
    few.modules.train()
    num_queries, num_labels = len(batch.query_ids), len(batch.label_ids)
    saved = SavedBytes(few.modules.parameters())
    with flops.counting() as scored:
        with saved:
            loss = few.loss(queries_BD, labels_SD, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    per_text = (saved.total + 2 * saved.largest) / (num_queries + num_labels)
    return scored.flops / (num_queries * num_labels), scored.kept_scores > 0, per_text


def _tables(method: EmbeddingMethod, work: Workload, dimension: int) -> dict[str, Table]:
    """The label tables at full size, from those of a few groups of labels."""
    total = work.train.num_labels
    full = type(method)(method.config)
    full.encoder = _NoEncoder(dimension)  # type: ignore[assignment]
    full.modules, full.shard = nn.Module(), Shard(total, ALONE)
    groups_L = full.label_groups(work.train, Embeddings(lambda: work.queries_ND, lambda: work.labels_LD))
    full.shard = _FirstGroups(total, groups_L)
    full.modules = full.build_modules(work.train)
    count = total if groups_L is None else int(np.max(groups_L)) + 1
    tables = {}
    for name, table in full.tables().items():
        rows = table.num_rows
        per_label = rows == len(full.shard.label_ids)
        held = sum(buffer.nbytes for buffer in table.buffers() if buffer.ndim)
        tables[name] = Table(
            rows=total if per_label else count,
            row_bytes=held / max(1, rows),
            dimension=table.weight.shape[1],
            learns=table.learns,
            whole_gradient=table.config.dtype != "e4m3",
        )
    return tables
