"""The costs of an encoder, from its architecture; and the peak memory of a worker, a sum of parts, each from sizes.

A transformer is built with random weights, so no weights are downloaded. Operations are counted as trials count them.
Kept bytes are measured over micro-batches of different sizes, which separates the bytes per token from those per text
(of a static encoder) and those that any pass keeps (weights cast to bf16).

Legend: N training queries, L labels, B queries of a batch, S labels of its pool, P parameters, G workers.
"""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from xmcbench.data import Texts
from xmcbench.data.texts import PackedTexts
from xmcbench.data.tokens import Tokens, micro_batches
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders import build
from xmcbench.engine.encoders.encoder import Encoder, TextFlops, autocast
from xmcbench.engine.encoders.lora import add_adapters
from xmcbench.engine.encoders.network import NetworkEncoder
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig, Precision
from xmcbench.engine.encoders.static import RANDOM_VOCABULARY, StaticEncoder, vectors_shape
from xmcbench.engine.encoders.tokenizer import TINY_VOCABULARY, TextTokenizer, trained_tokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.losses.own_scores import NUMBERS
from xmcbench.engine.losses.score_sums import CHUNK_SCORES, KEPT_CHUNKS
from xmcbench.engine.planning.dry_run import DRAWN, DryRun
from xmcbench.engine.planning.probe import Table, Workload
from xmcbench.engine.sampling.clusters import clustering_bytes
from xmcbench.engine.search.exact import SIZES
from xmcbench.engine.search.index import index_bytes
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.engine.training.steps import kept_bytes
from xmcbench.engine.vector_blocks import BLOCK
from xmcbench.errors import XMCBenchError
from xmcbench.files.pretrained import HUB

# Encoders whose architecture is the default of their family in transformers: used where the hub cannot be reached.
KNOWN = {
    "distilbert-base-uncased": "distilbert",
    "sentence-transformers/msmarco-distilbert-base-v4": "distilbert",
    "bert-base-uncased": "bert",
    "roberta-base": "roberta",
}
FEW, MORE = 1, 3  # texts of the two micro-batches


@dataclass(frozen=True)
class EncoderCosts:
    """The costs of an encoder that a plan needs."""

    parameters: int  # that are trained
    dimension: int
    flops: TextFlops
    bytes_per_token: float  # kept for the backward pass, per token, with padding where there is some
    bytes_per_pass: float  # kept for the backward pass, whatever the number of tokens
    bytes_per_text: float = 0.0  # kept for the backward pass, per text
    frozen_bytes: int = 0  # of weights that are not trained
    word_parameters: int = 0  # of the parameters, those of which a step touches only some rows: they have no gradient

    def kept_bytes(self, tokens: float, texts: float) -> float:
        """Bytes kept for the backward pass over so many tokens, with padding, of so many texts."""
        return tokens * self.bytes_per_token + texts * self.bytes_per_text


def tokenizer_of(config: EncoderConfig, texts: Texts, cache: Path) -> tuple[TextTokenizer, str]:
    """The encoder's tokenizer, and a warning where that of `tiny` takes its place because a hub cannot be reached."""
    try:
        return build.tokenizer_of(config, texts, cache), ""
    except XMCBenchError:
        if config.name == STATIC:
            raise
    warning = f"the tokenizer of {config.name} cannot be loaded: token counts are those of tiny's tokenizer"
    return TextTokenizer(trained_tokenizer(texts, cache)), warning


def costs(
    config: EncoderConfig,
    precision: Precision,
    width: int,
    vocabulary: int | None = None,
    method: DualEncoder | None = None,
) -> EncoderCosts:
    """The costs of training the encoder on texts of about `width` tokens; `vocabulary` is that of a trained tokenizer.

    `method` may have a network or a pooling of its own. Raises XMCBenchError if the architecture is unknown here.
    """
    encoder = _random(config.model_copy(update={"compile": False}), vocabulary, method)
    if method is not None and (pooling := method.build_pooling(encoder.dimension)) is not None:
        encoder.pool_with(pooling)
    width = max(2, width)
    one_text, more_texts = (_kept(encoder, precision, texts, width) for texts in (FEW, MORE))
    per_text = (more_texts - one_text) / (MORE - FEW)
    # The attention of a transformer is larger than linear in the width, so all of its bytes are of tokens.
    per_token = per_text / width
    if isinstance(encoder, StaticEncoder):
        per_token = float(_kept(encoder, precision, FEW, width + 1) - one_text)
    return EncoderCosts(
        parameters=sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad),
        dimension=encoder.dimension,
        flops=encoder.flops,
        bytes_per_token=per_token,
        bytes_per_pass=one_text - FEW * per_text,
        bytes_per_text=per_text - width * per_token,
        frozen_bytes=sum(parameter.nbytes for parameter in encoder.parameters() if not parameter.requires_grad),
        word_parameters=sum(m.weight.numel() for m in encoder.modules() if isinstance(m, TouchedRows)),
    )


def _random(config: EncoderConfig, vocabulary: int | None, method: DualEncoder | None) -> Encoder:
    no_tokenizer: Any = SimpleNamespace(pad_id=0)  # nothing is tokenised
    no_tokenizer.after = lambda _: no_tokenizer
    if method is not None and (network := method.build_network(vocabulary or TINY_VOCABULARY)) is not None:
        return NetworkEncoder(config, no_tokenizer, network)
    if config.name == STATIC:
        vectors_VH = torch.empty(vectors_shape(config, vocabulary or RANDOM_VOCABULARY))
        return StaticEncoder(config, no_tokenizer, vectors_VH)
    named = EncoderConfig(name=config.name, hidden_dropout=config.hidden_dropout, layers=config.layers)
    transformer = _transformer(named, vocabulary or TINY_VOCABULARY)
    if config.lora is not None:
        transformer = deepcopy(transformer)  # the cached one stays without adapters
        add_adapters(transformer, config.lora.model_copy(update={"adapters": None}), config.name, seed=0)
    return TransformerEncoder(config, transformer, no_tokenizer, TransformerEncoder.own_modules(config))


@lru_cache(maxsize=1)  # pooling and normalisation differ between the methods of a suite, transformers rarely
def _transformer(config: EncoderConfig, vocabulary: int) -> torch.nn.Module:
    try:
        settings = TransformerEncoder.architecture(config, vocabulary)
    except XMCBenchError:
        known = config.name.removeprefix(HUB)
        if known not in KNOWN:
            raise
        from transformers import AutoConfig

        settings = AutoConfig.for_model(KNOWN[known])
    with torch.random.fork_rng(devices=[]):
        return TransformerEncoder.transformer_of(settings)


def _kept(encoder: Encoder, precision: Precision, texts: int, width: int) -> int:
    """Bytes that a training pass over `texts` texts leaves for its backward pass."""
    device = next(encoder.parameters()).device
    encoder.train()
    lengths = np.full(texts, width)
    lengths[0] -= not isinstance(encoder, StaticEncoder)  # most micro-batches pad some text
    tokens = Tokens.from_offsets(np.ones(lengths.sum(), np.int32), np.concatenate(([0], np.cumsum(lengths))))
    arrays = encoder.collate(tokens, np.arange(texts))
    saved = SavedBytes(encoder.parameters())
    with torch.random.fork_rng(devices=[]), autocast(device, precision)(), saved:
        output_MD = encoder(*(torch.from_numpy(array).to(device) for array in arrays))
    del output_MD
    return saved.total


FLOAT = 4  # bytes
OFFSETS = 4 * 8  # of a text: offsets of its bytes, tokens and targets, and its length in tokens
NOT_GIVEN_BACK = 2**26  # of freed memory on a CPU: the C library's largest threshold for returning it to the system
BLOCK_COPIES = 2  # of a block of label vectors, while modules compute it


@dataclass(frozen=True)
class Memory:
    """Bytes of a worker, by purpose."""

    process: float  # interpreter and libraries; 0 on a GPU
    weights: float
    optimizer: float  # gradients and moments
    tables: float  # rows of label tables with their optimiser state
    data: float  # tokens, targets, the state of samplers
    embeddings: float  # of a step while its loss is computed, and their gradients; also the gradients of tables
    activations: float  # that are kept for the backward pass
    scores: float  # and what else the loss keeps
    backward: float  # after the loss: activations of the largest micro-batch of a pass, and embeddings with gradients
    evaluation: float  # of held-out queries, beside what steps leave to the allocator
    refresh: float  # embeddings of everything that the sampler, or the method before the first step, looks at
    search: float  # of predictions, and what scoring opens, after training

    @property
    def before_training(self) -> float:
        """What is held before the first step."""
        return self.process + self.weights + self.tables + self.data

    @property
    def total(self) -> float:
        """The peak: what is always held, plus the largest of what is held for a while, and what is not given back."""
        always = self.before_training + self.optimizer
        kept = min(self.step + self.evaluation, NOT_GIVEN_BACK) if self.process else 0.0
        return always + max(self.step + self.evaluation, kept + self.refresh, kept + self.search)

    @property
    def step(self) -> float:
        """What a step takes beside what is always held."""
        loss = self.embeddings + self.scores
        # On a CPU what the loss frees is in pieces that stay with the process.
        return self.activations + (loss + self.backward if self.process else max(loss, self.backward))

    def parts(self) -> dict[str, float]:
        return asdict(self)


def memory(run: DryRun, encoder: EncoderCosts, workers: int, device: str, limit: float) -> Memory:
    """The memory of one of `workers` on a device of the kind `cpu` or `cuda`, which may take `limit` bytes."""
    method, work, probe = run.method, run.work, run.probe
    queries, pool = len(run.largest.query_ids), len(run.largest.label_ids)
    parameters, tables, labels = encoder.parameters + probe.module_parameters, probe.tables.values(), pool / workers
    # The loss sees all queries and the texts of this worker's labels; rows of tables have gradients of their own.
    texts, vectors = (number + (labels if method.encodes_labels else 0) for number in (queries / workers, queries))
    at_once = max(1, CHUNK_SCORES[device] // max(1, queries))  # rows whose gradients are made in chunks
    gradients = sum(_table_gradients(table, pool, work.train.num_labels, at_once) for table in tables) / workers
    if encoder.word_parameters:
        gradients += _word_gradients(method, work, run.lengths_N[::workers], device) * encoder.dimension * FLOAT
    pairs = queries * labels * FLOAT
    chunk = min(CHUNK_SCORES[device] * FLOAT, pairs)
    if method.own_score is not None:  # all scores, with their gradients, and what a chunk of them takes
        of_loss = 4 * pairs + min(3.0 * FLOAT * NUMBERS[device], probe.pair_bytes * queries * labels)
    else:
        of_loss = min(pairs, KEPT_CHUNKS * chunk) * probe.keeps_scores + 2 * chunk
    on_gpu, index = device == "cuda", FLOAT * work.train.num_labels * probe.scored_dimension
    # Where nothing lies between the embeddings and the scores, a GPU holds one further copy of a gradient, after the
    # scores are gone.
    plain = on_gpu and not probe.module_parameters and not tables and method.own_score is None
    copies, after_scores = (0, vectors * probe.scored_dimension * FLOAT) if plain else (4, 0.0)
    # A loss takes more labels in chunks, a method's modules all of them.
    of_loss += probe.loss_bytes * (queries + (labels if probe.module_parameters else min(labels, at_once)))
    # The dataset, opened again for scoring.
    opened = float((8 * work.train.targets.nnz + OFFSETS * len(work.query_lengths_N)) / work.share)
    held = Memory(
        process=0.0 if on_gpu else process_bytes(method.config.encoder.name),
        weights=parameters * FLOAT + encoder.frozen_bytes,
        optimizer=(3 * parameters - encoder.word_parameters) * FLOAT,
        tables=sum(table.rows * table.row_bytes for table in tables) / workers,
        data=_sampler_state(run, on_gpu) + (0 if on_gpu else _data(work)),
        embeddings=(2 * texts * encoder.dimension + copies * vectors * probe.scored_dimension) * FLOAT + gradients,
        activations=0.0,
        scores=max(of_loss, after_scores),
        backward=2 * texts * encoder.dimension * FLOAT + gradients if on_gpu else 0.0,
        # The index before is there until the next one is.
        evaluation=index + _search(run, work.num_held_out, encoder, device) if work.num_held_out else 0.0,
        refresh=_refresh(run, encoder, device),
        search=_search(run, work.num_test, encoder, device) + (0 if on_gpu else opened),
    )
    kept = kept_bytes(method.config.activation_gib, limit - held.before_training)
    activations, again = _activations(method, encoder, run.lengths_N[::workers], device, kept)
    return replace(held, activations=activations, backward=held.backward + again)


# Loads what a worker has loaded at its first step; the bytes of the model itself are subtracted.
IDLE = """
import psutil, torch
import xmcbench.runs.worker, xmcbench.engine.training.steps, xmcbench.engine.training.checkpoints
from xmcbench.engine.encoders import static, transformer
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.plugins.registry import registry
registry().all("method")
of = transformer.TransformerEncoder
if {static}:
    model = torch.nn.Linear(8, 8)
    model(torch.ones(2, 8)).sum().backward()
else:
    model = of.transformer_of(of.architecture(EncoderConfig(name="tiny"), 100))
    model(torch.ones(2, 4, dtype=torch.int64)).last_hidden_state.sum().backward()
torch.optim.AdamW(model.parameters(), fused=True).step()
print(psutil.Process().memory_info().rss - 16 * sum(p.numel() for p in model.parameters()))
"""


@cache
def process_bytes(encoder: str) -> float:
    """Resident bytes of a worker process without data and model, measured in a process of its own.

    A static encoder does not load the library of transformers.
    """
    code = IDLE.format(static=encoder == STATIC)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return float(printed.split()[-1])


def _table_gradients(table: Table, pool: int, num_labels: int, at_once: int) -> float:
    """The gradients of the rows that a step reads, and copies of these rows unless it reads all, where they lie."""
    read, copies = (table.rows, 1) if pool >= num_labels else (min(pool, table.rows), 2)
    if copies == 1 and not table.whole_gradient:
        read, copies = min(table.rows, at_once), 3  # the rows in float32, their gradients, and what rounding them takes
    return float(read * copies * table.dimension * FLOAT if table.learns else 0)


def _word_gradients(method: EmbeddingMethod, work: Workload, lengths_N: np.ndarray, device: str) -> float:
    """Rows of a table of words that a step's gradients have: of each micro-batch, with a copy, and of their sum."""
    at_once, tokens = method.config.micro_batch_on(device), int(lengths_N.sum())
    parts = [work.distinct(at_once)] * (tokens // at_once) + [work.distinct(tokens % at_once)]
    return parts[0] if len(parts) == 1 else 2 * sum(parts) + work.distinct(tokens)


def _activations(
    method: EmbeddingMethod, encoder: EncoderCosts, lengths_N: np.ndarray, device: str, kept: int
) -> tuple[float, float]:
    """Activations of the micro-batches that fit into `kept` bytes, and of the largest that passes the encoder again.

    Where all fit on a CPU, as much as the largest is taken by its backward pass; a GPU's memory is reused in it.
    """
    micros = micro_batches(lengths_N, method.config.micro_batch_on(device))
    each = [encoder.kept_bytes(len(group) * int(lengths_N[group].max()), len(group)) for group in micros]
    fitting = int(np.searchsorted(np.cumsum(each), kept, side="right"))  # longest texts first, as in training
    again = max(each[fitting:] or (each if device == "cpu" else [0.0]))
    return sum(each[:fitting]) + encoder.bytes_per_pass, again


def _refresh(run: DryRun, encoder: EncoderCosts, device: str) -> float:
    """Embeddings of everything, and copies of them: of the first vectors, and of those that the sampler looks at; and
    a block of scores where it searches them.

    A method that asks for the first vectors of queries sums them by label, with two copies of the targets.
    """
    work, probe, width = run.work, run.probe, FLOAT * encoder.dimension
    queries, labels = work.num_queries, work.train.num_labels
    first = {
        "queries": 2 * (width * (queries + labels) + 8 * work.train.targets.nnz / work.share),
        "labels": width * labels + clustering_bytes(labels, probe.groups, encoder.dimension),
    }
    held = [first[texts] for texts in {*run.method.first_passes, *run.method.last_passes}]
    if run.looks:
        held += [part.refresh_bytes(queries, labels, probe.mining_dimension) for part in run.sampler.parts]
    return max(held, default=0.0) + (_scores(queries, labels, device) if run.found else 0.0)


def _scores(queries: int, labels: int, device: str) -> float:
    """A block of scores of a search, and copies of it."""
    sizes = SIZES[device]
    return 2.0 * FLOAT * min(sizes.rows, queries) * min(sizes.columns_of(queries), labels)


def _sampler_state(run: DryRun, on_gpu: bool) -> float:
    """Bytes of a sampler's state; its stand-in vectors count at the dimension of the real ones."""
    work, dimension, total = run.work, run.probe.mining_dimension, 0.0
    for tensor in run.sampler.state().values():
        share = 1.0 if len(tensor) == work.train.num_labels else work.share  # rows of labels, or of sampled queries
        if tensor.is_floating_point() and tensor.ndim == 2:
            total += len(tensor) * dimension * tensor.element_size() / share
        elif not on_gpu:
            shortlist = 1.0 if tensor.ndim < 2 or tensor.shape[1] != DRAWN else 6.0  # drawn at random: a few of many
            total += tensor.nbytes * shortlist / share
    return total


def _data(work: Workload) -> float:
    """Texts, tokens (int32), targets (int32 columns, float32 values) and their offsets, memory-mapped and read."""
    train, queries, labels = work.train, len(work.query_lengths_N), work.train.num_labels
    of_queries = PackedTexts.of(train.texts).lengths.sum() + 4 * work.query_lengths_N.sum() + 8 * train.targets.nnz
    of_labels = PackedTexts.of(train.label_texts).lengths.sum() + 4 * work.label_lengths_L.sum()
    return float((of_queries + OFFSETS * queries) / work.share + of_labels + OFFSETS * labels)


def _search(run: DryRun, queries: int, encoder: EncoderCosts, device: str) -> float:
    """The index, the embeddings of so many queries, and one block of scores.

    Modules compute the index from embeddings: these and the parts of a block of it are there beside it.
    """
    labels, probe = run.work.train.num_labels, run.probe
    vectors = labels * probe.scored_dimension + queries * (encoder.dimension + probe.scored_dimension)
    if probe.module_parameters:
        vectors += labels * encoder.dimension + BLOCK_COPIES * min(labels, BLOCK) * probe.scored_dimension
    of_backend = index_bytes(run.method.config.search, labels, probe.scored_dimension, run.method.config.vectors)
    return float(vectors * FLOAT + of_backend + _scores(queries, labels, device))
