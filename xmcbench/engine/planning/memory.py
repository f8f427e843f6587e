"""What a worker holds at its fullest: a sum of parts, each of them counted from sizes.

Legend: N training queries, L labels, B queries of a batch, S labels of its pool, P parameters, G workers.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from functools import cache

import torch

from xmcbench.data.tokens import micro_batches
from xmcbench.engine.device import default_device
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.losses.score_sums import CHUNK_SCORES, KEPT_CHUNKS
from xmcbench.engine.planning.encoder import EncoderCosts
from xmcbench.engine.planning.probe import Probe, Table
from xmcbench.engine.planning.simulate import DRAWN, Paper
from xmcbench.engine.planning.workload import Workload
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.engine.search.exact import SIZES

FLOAT = 4  # bytes
CHECKPOINT_COPIES = 2  # of all that is written: tensors, then their bytes
SERIALISED = 3 * FLOAT  # of a parameter: weight and both moments


@dataclass(frozen=True)
class Memory:
    """Bytes of a worker, by what they are for."""

    process: float  # interpreter and libraries; nothing on a GPU
    weights: float
    optimizer: float  # gradients and moments
    tables: float  # rows of label tables with their optimiser state, and gradients
    data: float  # tokens, targets, what samplers keep
    embeddings: float
    activations: float
    scores: float
    checkpoint: float  # copies of what is written, after a step
    search: float  # of predictions, after training

    @property
    def total(self) -> float:
        """The peak: what is always there, and the most of what is there for a while."""
        always = self.process + self.weights + self.optimizer + self.tables + self.data
        return always + max(self.embeddings + self.activations + self.scores, self.checkpoint, self.search)

    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def memory(
    method: EmbeddingMethod,
    work: Workload,
    encoder: EncoderCosts,
    probe: Probe,
    paper: Paper,
    sampler: Sampler,
    workers: int,
    device: str,
) -> Memory:
    """The memory of one of `workers` on a `cpu` or on `cuda`, in the largest step of a trial."""
    step, parameters = paper.largest, encoder.parameters + probe.module_parameters
    labels = step.labels / workers
    texts = step.queries / workers + (labels if method.encodes_labels else 0)
    vectors = step.queries + labels  # what the loss sees: all queries, this worker's labels
    rows = sum(_table_bytes(table, step.labels, work.train.num_labels) for table in probe.tables.values()) / workers
    state = sum(table.rows * table.row_bytes for table in probe.tables.values()) / workers
    pairs = step.queries * labels * FLOAT
    chunk = min(CHUNK_SCORES[device] * FLOAT, pairs)
    on_gpu = device == "cuda"
    return Memory(
        process=0.0 if on_gpu else process_bytes(),
        weights=parameters * FLOAT,
        optimizer=3 * parameters * FLOAT,
        tables=rows,
        data=(_kept(sampler, probe.mining_dimension, on_gpu) + (0 if on_gpu else _data(work))) / work.share,
        embeddings=(2 * texts * encoder.dimension + 4 * vectors * probe.scored_dimension) * FLOAT,
        activations=_activations(method, encoder, paper, workers),
        scores=min(pairs, KEPT_CHUNKS * chunk) + 2 * chunk,
        checkpoint=(1 if on_gpu else CHECKPOINT_COPIES) * (SERIALISED * parameters + state),
        search=_search(work, encoder, probe, device),
    )


# What a worker has loaded once it takes its first step, of a model whose own bytes are subtracted.
IDLE = """
import psutil, torch
import xmcbench.run.worker, xmcbench.engine.training.training
from xmcbench.engine.encoders.encoder import Encoder, EncoderConfig
from xmcbench.plugins.registry import registry
registry().all("method")
model = Encoder.transformer_of(Encoder.architecture(EncoderConfig(name="tiny"), 100))
model(torch.ones(2, 4, dtype=torch.int64)).last_hidden_state.sum().backward()
torch.optim.AdamW(model.parameters(), fused=True).step()
print(psutil.Process().memory_info().rss - 16 * sum(p.numel() for p in model.parameters()))
"""


@cache
def process_bytes() -> float:
    """Resident bytes of a worker that has loaded what it needs, measured in one."""
    told = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True).stdout
    return float(told.split()[-1])


def _table_bytes(table: Table, pool: int, num_labels: int) -> float:
    """A table's rows and the gradient of those that a step reads."""
    read = table.rows if pool >= num_labels else min(pool, table.rows)
    copies = 1 if pool >= num_labels else 2  # all rows are read where they lie
    return table.rows * table.row_bytes + (read * copies * table.dimension * FLOAT if table.learns else 0)


def _activations(method: EmbeddingMethod, encoder: EncoderCosts, paper: Paper, workers: int) -> float:
    """What the graphs of a step keep, at most `activation_gib` and one micro-batch more; and that one's backward."""
    lengths = paper.largest.lengths[::workers]
    micros = micro_batches(lengths, method.config.micro_batch_on(default_device().type))
    padded = [len(group) * int(lengths[group].max()) for group in micros]
    widest = max(padded) * encoder.bytes_a_token
    kept = min(sum(padded) * encoder.bytes_a_token, method.config.activation_gib * 2**30)
    return kept + encoder.bytes_a_pass + widest


def _kept(sampler: Sampler, dimension: int, on_gpu: bool) -> float:
    """What a sampler keeps between steps, of vectors as wide as the real ones."""
    total = 0.0
    for tensor in sampler.state().values():
        if tensor.is_floating_point() and tensor.ndim == 2:
            total += len(tensor) * dimension * tensor.element_size()
        elif not on_gpu:
            shortlist = 1.0 if tensor.ndim < 2 or tensor.shape[1] != DRAWN else 6.0  # drawn at random: a few of many
            total += tensor.nbytes * shortlist
    return total


def _data(work: Workload) -> float:
    """Tokens (int32) and targets (int32 columns, float32 ones), which are mapped from disk and read."""
    tokens = int(work.query_lengths_N.sum() + work.label_lengths_L.sum())
    return float(tokens * 4 + work.train.targets.nnz * 8)


def _search(work: Workload, encoder: EncoderCosts, probe: Probe, device: str) -> float:
    """The index, the test queries' embeddings, and the scores that are looked at together."""
    labels, sizes = work.train.num_labels, SIZES[device]
    vectors = 2 * labels * probe.scored_dimension + work.num_test * (encoder.dimension + probe.scored_dimension)
    scores = min(sizes.rows, work.num_test) * min(sizes.columns, labels)
    return float((vectors + 2 * scores) * FLOAT)


def here() -> str:
    """The kind of device that trials run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
