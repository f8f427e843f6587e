"""Texts a second through a training step, against sentence-transformers.

Contestants: the engine (gradient cache, loss, norm of the gradient, updates) and sentence-transformers' losses with the
same optimiser; `CachedMultipleNegativesRankingLoss` has the mini-batch size and kind of attention that are best for it
here. Both get the same weights and the same batches of distinct queries and distinct labels: real titles of a dataset,
and random texts of 16 tokens. Texts are tokenised outside the timed region and padded inside it on both sides. Before
anything is timed both have to give the same loss. Figures are medians over turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from peers import Places, Result
from report import in_turns
from torch import nn

from xmcbench.data import Dataset, load
from xmcbench.data.tokens import Tokens
from xmcbench.engine.device import default_device
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.encoders.encoder import Encoder, evaluating
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder
from xmcbench.engine.encoders.transformer import TransformerEncoder, attention
from xmcbench.engine.losses import Positives, softmax
from xmcbench.engine.training.gradient_cache import GradientCache, TextRows
from xmcbench.engine.training.update import Update
from xmcbench.engine.workers import ALONE

TEMPERATURE, DECAY = 0.05, 0.01
RATES = {"tiny": 1e-5, "static": 3e-3}
FIXED = 16  # tokens
TURNS, BATCHES = 5, 3
MINI_BATCHES = (16, 32, 64, 128, 256)
Batch = tuple[np.ndarray, np.ndarray]  # rows of queries and of labels
Step = Callable[[Batch], float]  # takes a step, gives its loss
Features = Callable[[Tokens, np.ndarray], dict[str, Any]]  # what a model of sentence-transformers reads, of some rows


@dataclass(frozen=True)
class Workload:
    """Queries and labels, tokenised; query i and label i of a batch's rows are a true pair."""

    queries: Tokens
    labels: Tokens
    batches: list[Batch]


def titles(encoder: Encoder, dataset: Dataset, cache: Path, batch: int) -> Workload:
    """Training texts of at most 32 tokens and one label of each, no query and no label twice in a batch."""
    pairs, rng, batches = dataset.train.targets.tocoo(), np.random.default_rng(0), []
    for _ in range(BATCHES):
        order = rng.permutation(pairs.nnz)
        order = order[np.unique(pairs.row[order], return_index=True)[1]]
        order = rng.permutation(order[np.unique(pairs.col[order], return_index=True)[1]])[:batch]
        batches.append((pairs.row[order], pairs.col[order]))
    tokens = encoder.tokenizer.tokens
    return Workload(tokens(dataset.train.texts, 32, cache), tokens(dataset.label_texts, 32, cache), batches)


def fixed(encoder: Encoder, batch: int) -> Workload:
    """Random texts of `FIXED` tokens."""
    rows = np.arange(2 * batch * BATCHES).reshape(BATCHES, 2, batch)
    words = np.random.default_rng(0).integers(5, len(encoder.tokenizer.tokenizer), rows.size * FIXED).astype(np.int32)
    tokens = Tokens.from_offsets(words, np.arange(0, len(words) + 1, FIXED))
    return Workload(tokens, tokens, [(queries, labels) for queries, labels in rows])


def engine(encoder: Encoder, work: Workload, rate: float) -> Callable[[Batch, Positives], float]:
    """xmcbench's step."""
    device = default_device()
    limits = {"micro_batch_tokens": DualEncoder.Config().micro_batch_on(device.type), "activation_bytes": 4 * 2**30}
    cache = GradientCache(encoder.train(), device=device, autocast=nullcontext, **limits)
    groups = [{"params": list(encoder.parameters()), "lr": rate, "weight_decay": DECAY}]
    update = Update(groups, {}, ALONE, None, encoder.modules())

    def step(batch: Batch, positives: Positives) -> float:
        texts = [TextRows(work.queries, batch[0], "query"), TextRows(work.labels, batch[1], "label")]
        cached = cache.embed(texts, 0)
        queries_BD, labels_SD = torch.split(cached.embeddings, [len(rows) for rows in batch])
        loss = softmax(queries_BD, labels_SD, positives, positives.every(), temperature=TEMPERATURE)
        loss.backward()  # type: ignore[no-untyped-call]
        cached.backward()
        update.apply(1.0, float(update.gradient_norm()))
        return loss.item()

    return step


def of_pairs(encoder: Encoder, work: Workload, rate: float) -> Step:
    """xmcbench's step on batches whose true pairs are on the diagonal."""
    step, size = engine(encoder, work, rate), len(work.batches[0][0])
    diagonal = torch.arange(size, device=default_device())
    return lambda batch: step(batch, Positives(diagonal, diagonal, size, size))


def their_step(
    modules: list[nn.Module], loss: str, features: Features, work: Workload, rate: float, **given: int
) -> Step:
    """Sentence-transformers' step: one of its losses on a model of these modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    model = SentenceTransformer(modules=modules, device=str(default_device())).train()
    loss_of = getattr(losses, loss)(model, scale=1 / TEMPERATURE, **given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY, fused=True)

    def step(batch: Batch) -> float:
        made = [features(tokens, rows) for tokens, rows in zip((work.queries, work.labels), batch, strict=True)]
        tensors = [{name: torch.from_numpy(array).to(default_device()) for name, array in own.items()} for own in made]
        value = loss_of(tensors, None)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.item())

    return step


def their_transformer(encoder: Encoder, work: Workload) -> tuple[Step, nn.Module]:
    """Their cached loss on a copy of a transformer, with the mini-batch size and kind of attention quickest here."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    def features(tokens: Tokens, rows: np.ndarray) -> dict[str, Any]:
        ids, mask = tokens.padded(rows, encoder.tokenizer.pad_id)
        return {"input_ids": ids, "attention_mask": mask.astype(np.int64)}

    def made(size: int, kind: str) -> tuple[Step, nn.Module]:
        with tempfile.TemporaryDirectory() as directory:
            encoder.save(Path(directory))
            transformer = Transformer(directory, model_kwargs={"attn_implementation": kind, "add_pooling_layer": False})
        modules = [transformer, Pooling(encoder.dimension, "mean"), Normalize()]
        loss = "CachedMultipleNegativesRankingLoss"
        return their_step(modules, loss, features, work, RATES["tiny"], mini_batch_size=size), transformer

    seconds = {}
    for size, kind in product(MINI_BATCHES, {"sdpa", attention() or "sdpa"}):
        step, _ = made(size, kind)
        seconds[size, kind] = in_turns({"step": partial(step, work.batches[0])}, 2)["step"]
    return made(*min(seconds, key=seconds.__getitem__))


def their_static(encoder: StaticEncoder, work: Workload) -> tuple[Step, nn.Module]:
    """`MultipleNegativesRankingLoss` on a copy of a static encoder."""
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    def features(tokens: Tokens, rows: np.ndarray) -> dict[str, Any]:
        ids, starts = encoder.collate(tokens, rows)
        return {"input_ids": ids, "offsets": starts}

    words = StaticEmbedding(encoder.tokenizer.tokenizer, encoder.bags.vectors.weight.detach().clone())
    loss = "MultipleNegativesRankingLoss"
    return their_step([words, Normalize()], loss, features, work, RATES["static"]), words


def texts_per_second(ours: tuple[Step, nn.Module], theirs: tuple[Step, nn.Module], work: Workload) -> tuple[float, ...]:
    """Of either side. Raises RuntimeError unless both compute the same loss."""
    with evaluating(ours[1], theirs[1]):
        losses = [step(work.batches[0]) for step, _ in (ours, theirs)]
    if not np.isclose(losses[0], losses[1], rtol=1e-4):
        raise RuntimeError(f"the contestants do not compute the same loss: {losses}")
    sides = {"ours": (ours[0], cycle(work.batches)), "theirs": (theirs[0], cycle(work.batches))}
    cases = {name: lambda step=step, batches=batches: step(next(batches)) for name, (step, batches) in sides.items()}
    seconds = in_turns(cases, TURNS, of=median)
    return tuple(2 * len(work.batches[0][0]) / seconds[name] for name in cases)


def all_labels(encoder: StaticEncoder, dataset: Dataset, work: Workload) -> float:
    """Seconds of a step of a static encoder, of 512 queries with every label of the dataset as a negative."""
    targets, step = dataset.train.targets.tocsr(), engine(encoder, work, RATES["static"])
    labelled, labels = np.flatnonzero(np.diff(targets.indptr)), np.arange(targets.shape[1])
    batches = []
    for turn in range(TURNS):
        some = np.random.default_rng(turn).choice(labelled, 512, replace=False)
        pairs = targets[some].tocoo()
        rows, columns = (torch.from_numpy(a.astype(np.int64)).to(default_device()) for a in (pairs.row, pairs.col))
        batches.append(((some, labels), Positives(rows, columns, len(some), len(labels))))
    step(*batches[0])
    turns = cycle(batches)
    return in_turns({"step": lambda: step(*next(turns))}, TURNS, of=median)["step"]


def results(places: Places) -> Iterator[Result]:
    dataset, batch = load(places.data.name, places.data.parent, places.out), 64 if places.quick else 512

    def tiny() -> Encoder:
        made = TransformerEncoder.build(EncoderConfig(name="tiny"), dataset.train.texts, 0, places.out)
        return made.to(default_device())

    def static() -> StaticEncoder:
        config = EncoderConfig(name="static", words="minilm")
        return StaticEncoder.build(config, dataset.train.texts, 0, places.out).to(default_device())

    for name, work in (
        ("step on short titles, float32", titles(tiny(), dataset, places.out, batch)),
        (f"step on texts of {FIXED} tokens, float32", fixed(tiny(), batch)),
    ):
        encoder = tiny()
        ours = of_pairs(encoder, work, RATES["tiny"]), encoder
        mine, its = texts_per_second(ours, their_transformer(tiny(), work), work)
        yield Result(name, mine, "texts/s", "2.5 x", "sentence-transformers", its)
    words = static()
    work = titles(words, dataset, places.out, batch)
    ours = of_pairs(words, work, RATES["static"]), words
    mine, its = texts_per_second(ours, their_static(static(), work), work)
    yield Result(f"static encoder: step on {batch} short titles", mine, "texts/s", "3 x", "StaticEmbedding", its)
    name = "static encoder: step on 512 titles with all labels"
    yield Result(name, all_labels(static(), dataset, work), "s", "under 0.3 s")
