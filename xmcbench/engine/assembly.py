"""Assembling a model for training: encoder, tokenised texts, the labels of this worker, the method's modules."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.data.texts import TextSubset
from xmcbench.engine import checkpoint
from xmcbench.engine.contract import VectorMethod
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.build import build_encoder
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import Workers, current_workers
from xmcbench.files.atomic import atomic_write
from xmcbench.files.manifest import DamagedFolder, add_to_manifest, check_manifest
from xmcbench.trial.run import Progress, Run, derive_seed

_log = logging.getLogger(__name__)
GROUPS = "label_groups.npy"  # beside the checkpoints


def assemble(method: VectorMethod, train: TrainingData, run: Run) -> None:
    """Build the encoder and the modules of `method`, tokenise the texts of `train`; all become attributes of it."""
    workers, seed = current_workers(), derive_seed(run.seed, "weights")
    method.run, method.report = run, run.report
    method.encoder = build_encoder(method.config.encoder, train.texts, seed, run.cache).to(default_device())
    method.charging = method.charging_to(run.ledger, run.budget)
    method.query_length = method.config.max_query_length or train.card.max_length
    method.label_length = method.config.max_label_length or train.card.max_label_length
    method.encoder.check_length(max(method.query_length, method.label_length))
    queries, labels, cache = method.encoder.tokenizer, method.encoder.label_tokenizer, run.cache
    of_queries, of_labels = _tokenised(run, "queries", train.texts), _tokenised(run, "labels", train.label_texts)
    method.queries = queries.tokens(train.texts, method.query_length, cache, of_queries)
    method.labels = labels.tokens(train.label_texts, method.label_length, cache, of_labels)
    run.log.cut_queries = float(np.mean(method.queries.lengths >= method.query_length))
    # Label groups may depend on embeddings, which all workers compute together: so a plain sharding comes first.
    method.modules, method.shard = nn.Module(), Shard(train.num_labels, workers)
    torch.manual_seed(seed)
    add_modules(method, train, workers, _label_groups(method, train, plain_embeddings(method)), seed)


def add_modules(
    method: VectorMethod, train: TrainingData, workers: Workers, groups_L: np.ndarray | None, seed: int
) -> None:
    """Shard the labels over `workers` by their groups, and build the method's modules for this worker's labels."""
    method.shard = Shard(train.num_labels, workers, groups_L)
    torch.manual_seed(seed)
    method.modules = method.build_modules(train).to(default_device())
    own_values = sum(table.weight.numel() for table in method.tables().values() if table.learns)
    (method.table_values,) = workers.totals(own_values)


def plain_embeddings(method: VectorMethod) -> Embeddings:
    """The encoder's own embeddings of training queries and labels, charged when asked for.

    Labels are embedded also for a method that does not encode them in training.
    """
    queries, labels = method.queries, method.labels
    return Embeddings(
        method.charging.on_demand(lambda: method.embed_queries(queries, lambda rows_ND: rows_ND), queries.lengths),
        method.charging.on_demand(
            lambda: method.embed_labels(labels, lambda rows_SD, _: rows_SD, encode=True), labels.lengths
        ),
        workers=method.shard.workers,
        stage=method.charging.ledger.stage,
        require=method.charging.requirement(queries.lengths, labels.lengths),
    )


def _tokenised(run: Run, kind: str, texts: Texts) -> Callable[[int], object]:
    """A callback that reports how many of `texts`, which are `kind`, are tokenised: of a subset all texts are."""
    total = len(texts.whole) if isinstance(texts, TextSubset) else len(texts)
    return lambda done: run.report(Progress(f"tokenise {kind}", done / total))


def _label_groups(method: VectorMethod, train: TrainingData, embeddings: Embeddings) -> np.ndarray | None:
    """The groups that `label_groups` returns; in a resumed run, on any number of workers, those of its first start.

    Embeddings depend on the number of workers by rounding, and so may the groups; the table rows of a checkpoint are
    sharded by the first groups. Where workers disagree, worker 0's groups count.
    """
    path = method.run.checkpoint / GROUPS
    if checkpoint.newest(method.run.checkpoint) and path.exists():
        try:
            check_manifest(path.parent, [GROUPS])
            stored_L: np.ndarray = np.load(path, allow_pickle=False)
        except DamagedFolder as damage:
            _log.warning("warning: %s; the groups are computed again", damage)
        else:
            return stored_L
    with counting() as scored:
        groups_L = method.label_groups(train, embeddings)
    if groups_L is None:
        return None
    method.charging.scoring(scored.flops)  # every worker repeats the same work
    workers = method.shard.workers
    own_L = torch.from_numpy(groups_L.astype(np.int64)).to(default_device())
    agreed_L: np.ndarray = workers.max(own_L if workers.rank == 0 else torch.zeros_like(own_L)).cpu().numpy()
    if workers.rank == 0:
        with atomic_write(path) as file:
            np.save(file, agreed_L, allow_pickle=False)
        add_to_manifest(path.parent, GROUPS)
    return agreed_L
