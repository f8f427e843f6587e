"""Steps of a static encoder, against sentence-transformers' `StaticEmbedding`; `step.py --static` runs this.

Contestants: the engine as trials use it (gradient cache, loss, norm of the gradient, updates of rows), and
`MultipleNegativesRankingLoss` with fused AdamW. Both get the same words and the same batches, tokenised before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from report import seconds_of

from xmcbench.data.formats import Parts
from xmcbench.data.tokens import Tokens
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder
from xmcbench.engine.losses import Positives, softmax
from xmcbench.engine.training.gradient_cache import GradientCache, TextRows
from xmcbench.engine.training.update import Update
from xmcbench.engine.workers import ALONE

TEMPERATURE = 0.05
MICRO_BATCH = 65_536  # tokens, as in trials
RATE, DECAY = 3e-3, 0.01
Rows = tuple[np.ndarray, np.ndarray]  # of queries and of labels
Step = Callable[[Rows, Positives], float]  # takes a step, gives its loss


def built(words: str, parts: Parts, asked: Any) -> StaticEncoder:
    config = EncoderConfig(name="static", words=words)
    return StaticEncoder.build(config, parts.train.texts, 0, asked.cache).to(default_device())


def engine(encoder: StaticEncoder, queries: Tokens, labels: Tokens) -> Step:
    """xmcbench's step."""
    cache = GradientCache(
        encoder.train(),
        device=default_device(),
        micro_batch_tokens=MICRO_BATCH,
        activation_bytes=4 * 2**30,
        autocast=nullcontext,
    )
    groups = [{"params": list(encoder.parameters()), "lr": RATE, "weight_decay": DECAY}]
    update = Update(groups, {}, ALONE, None, [encoder.bags.vectors])

    def step(rows: Rows, positives: Positives) -> float:
        cached = cache.embed([TextRows(queries, rows[0], "query"), TextRows(labels, rows[1], "label")], 0)
        queries_BD, labels_SD = torch.split(cached.embeddings, [len(rows[0]), len(rows[1])])
        loss = softmax(queries_BD, labels_SD, positives, positives.every(), temperature=TEMPERATURE)
        loss.backward()  # type: ignore[no-untyped-call]
        cached.backward()
        update.apply(1.0)
        return loss.item()

    return step


def sentence_transformers(encoder: StaticEncoder, queries: Tokens, labels: Tokens) -> Step:
    """Sentence-transformers' step on a copy of `encoder`; pairs are on the diagonal."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    device = default_device()
    words = StaticEmbedding(encoder.tokenizer.tokenizer, encoder.bags.vectors.weight.detach().clone())
    model = SentenceTransformer(modules=[words, Normalize()], device=str(device)).train()
    loss_of = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    def step(rows: Rows, _: Positives) -> float:
        features = []
        for tokens, some in zip((queries, labels), rows, strict=True):
            ids, starts = encoder.collate(tokens, some)
            features.append({"input_ids": torch.from_numpy(ids), "offsets": torch.from_numpy(starts)})
        loss = loss_of([{name: t.to(device) for name, t in made.items()} for made in features], None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def static_steps(words: str, parts: Parts, asked: Any, titles: Callable[..., Any]) -> list[dict[str, Any]]:
    """The rows of one table of words: short titles against the other side, and all labels as negatives."""
    encoder = built(words, parts, asked)
    workload = titles(encoder, parts, asked.batch, min(asked.turns, 3))
    ours, theirs = (
        make(built(words, parts, asked), workload.queries, workload.labels) for make in (engine, sentence_transformers)
    )
    diagonal = torch.arange(asked.batch, device=default_device())
    pairs = Positives(diagonal, diagonal, diagonal, asked.batch)
    losses = [step(workload.batches[0], pairs) for step in (ours, theirs)]
    if not np.isclose(*losses, rtol=1e-4):
        raise SystemExit(f"the contestants do not compute the same loss: {losses}")
    times = np.empty((asked.turns, 2))
    for turn in range(asked.turns):
        rows = workload.batches[turn % len(workload.batches)]
        times[turn] = [seconds_of(lambda s=step, r=rows: s(r, pairs)) for step in (ours, theirs)]
    mine, its = np.median(times, axis=0)
    texts = 2 * asked.batch
    against = {"words": words, "case": f"{asked.batch} titles in the batch", "xmcbench s/step": mine}
    against |= {"xmcbench texts/s": texts / mine, "s-t texts/s": texts / its, "xmcbench / s-t": its / mine}
    return [against, _all_labels(words, parts, asked)]


def _all_labels(words: str, parts: Parts, asked: Any) -> dict[str, Any]:
    """Steps of 512 queries with every label of the dataset as a negative."""
    encoder, targets = built(words, parts, asked), parts.train.targets.tocsr()
    queries = encoder.tokenizer.tokens(parts.train.texts, 32, asked.cache)
    labels = encoder.tokenizer.tokens(parts.label_texts, 32, asked.cache)
    step, times = engine(encoder, queries, labels), []
    labelled = np.flatnonzero(np.diff(targets.indptr))
    for turn in range(asked.turns + 1):
        some = np.random.default_rng(turn).choice(labelled, 512, replace=False)
        pairs = targets[some].tocoo()
        rows, columns = (torch.from_numpy(a.astype(np.int64)).to(default_device()) for a in (pairs.row, pairs.col))
        sampled_B = torch.searchsorted(rows, torch.arange(len(some), device=rows.device))
        positives = Positives(rows, columns, sampled_B, len(labels))
        times.append(seconds_of(lambda s=some, p=positives: step((s, np.arange(len(labels))), p)))
    median = float(np.median(times[1:]))
    name = f"512 titles, all {len(labels):,} labels"
    return {"words": words, "case": name, "xmcbench s/step": median, "xmcbench texts/s": (512 + len(labels)) / median}
