"""Texts a second through a training step, against sentence-transformers and against the machine.

Contestants: the engine (`GradientCache`, `losses.softmax`, fused AdamW) and sentence-transformers'
`CachedMultipleNegativesRankingLoss` with the same optimiser, in the mini-batch size and kind of attention that are best
for it here. Both get the same weights and the same batches of distinct queries and distinct labels: real texts of a
dataset, and random ones of 16 tokens each. Texts are tokenised outside the timed region and padded inside it on both
sides. Before anything is timed both have to give the same loss. All contestants take turns in one process; figures are
medians over the turns. The peak is that of square matrix products, measured once.

    pip install -e '.[bench,minilm]'
    python benchmarks/step.py --data DIR                 # a dataset of short texts
    python benchmarks/step.py --data DIR --quick
    python benchmarks/step.py --data DIR --profile       # where the time of a training step goes
    python benchmarks/step.py --data DIR --dropout       # what dropout costs, against torch's own and none
    python benchmarks/step.py --data DIR --static        # static encoders
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import options, report, seconds_of
from step_dropout import dropout_costs
from step_profile import profile
from step_static import static_steps
from torch import nn

from xmcbench.data.formats import Parts, read_directory
from xmcbench.data.tokens import Tokens
from xmcbench.engine.device import default_device
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.encoders.embedding import autocast, evaluating
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder, attention
from xmcbench.engine.losses import Positives, softmax
from xmcbench.engine.planning.accelerators import measured_peak
from xmcbench.engine.training.gradient_cache import GradientCache, TextRows

TEMPERATURE = 0.05
FIXED = 16  # tokens
PRECISIONS = ("float32", "bf16")
MINI_BATCHES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Workload:
    """Queries and labels, tokenised; query i and label i of a batch's rows are a true pair."""

    name: str
    queries: Tokens
    labels: Tokens
    batches: list[tuple[np.ndarray, np.ndarray]]

    def lengths(self, turn: int) -> np.ndarray:
        query_rows, label_rows = self.batches[turn % len(self.batches)]
        return np.concatenate([self.queries.lengths[query_rows], self.labels.lengths[label_rows]])


Contestant = Callable[[Workload, int], float]  # takes a step, gives its loss


def titles(encoder: TransformerEncoder, parts: Parts, batch: int, count: int) -> Workload:
    """Training texts of at most 32 tokens and one label of each, no label twice in a batch."""
    targets, rng = parts.train.targets.tocsr(), np.random.default_rng(0)
    batches = []
    for _ in range(count):
        pairs: dict[int, int] = {}
        for query in rng.permutation(targets.shape[0]):
            free = [label for label in targets.indices[slice(*targets.indptr[query : query + 2])] if label not in pairs]
            if free and len(pairs) < batch:
                pairs[int(rng.choice(free))] = int(query)
        batches.append((np.array(list(pairs.values())), np.array(list(pairs))))
    tokens = encoder.tokenizer.tokens
    return Workload("titles", tokens(parts.train.texts, 32), tokens(parts.label_texts, 32), batches)


def fixed(encoder: TransformerEncoder, batch: int, count: int) -> Workload:
    """Random texts of `FIXED` tokens."""
    rng = np.random.default_rng(0)
    words = rng.integers(5, len(encoder.tokenizer.tokenizer), 2 * batch * count * FIXED).astype(np.int32)
    tokens = Tokens.from_offsets(words, np.arange(0, len(words) + 1, FIXED))
    rows = np.arange(2 * batch * count).reshape(count, 2, batch)
    return Workload(f"{FIXED} tokens", tokens, tokens, [(queries, labels) for queries, labels in rows])


def engine(encoder: TransformerEncoder, precision: Any) -> tuple[Contestant, nn.Module]:
    """xmcbench's step."""
    device = default_device()
    cache = GradientCache(
        encoder.train(),
        device=device,
        micro_batch_tokens=DualEncoder.Config(precision=precision).micro_batch_on(device.type),
        activation_bytes=4 * 2**30,
        autocast=autocast(device, precision),
    )
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-5, fused=True)

    def step(workload: Workload, turn: int) -> float:
        queries, labels = workload.batches[turn % len(workload.batches)]
        diagonal = torch.arange(len(queries), device=device)
        positives = Positives(diagonal, diagonal, len(queries), len(labels))
        cached = cache.embed(
            [TextRows(workload.queries, queries, "query"), TextRows(workload.labels, labels, "label")], turn
        )
        queries_BD, labels_SD = cached.embeddings[: len(queries)], cached.embeddings[len(queries) :]
        loss = softmax(queries_BD, labels_SD, positives, positives.every(), temperature=TEMPERATURE)
        loss.backward()  # type: ignore[no-untyped-call]
        cached.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, encoder


def sentence_transformers(
    encoder: TransformerEncoder, precision: Any, mini_batch: int, attention_kind: str
) -> tuple[Contestant, nn.Module]:
    """Sentence-transformers' step on a copy of `encoder`."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    with tempfile.TemporaryDirectory() as directory:
        encoder.save(Path(directory))
        settings = {"attn_implementation": attention_kind, "add_pooling_layer": False}
        transformer = Transformer(directory, model_kwargs=settings)
    device = default_device()
    modules = [transformer, Pooling(encoder.dimension, "mean"), Normalize()]
    model = SentenceTransformer(modules=modules, device=str(device)).train()
    # Both forward passes run under autocast, the loss does not: as accelerate does it for its trainer.
    model.forward = within(autocast(device, precision), model.forward)
    loss_of = CachedMultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE, mini_batch_size=mini_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(workload: Workload, turn: int) -> float:
        features = []
        batch = workload.batches[turn % len(workload.batches)]
        for tokens, rows in zip((workload.queries, workload.labels), batch, strict=True):
            ids, mask = tokens.padded(rows, encoder.tokenizer.pad_id)
            features.append({"input_ids": ids, "attention_mask": mask.astype(np.int64)})
        on_device = [{name: torch.from_numpy(a).to(device) for name, a in made.items()} for made in features]
        loss = loss_of(on_device, None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step, model


def within(context: Callable[[], AbstractContextManager[object]], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run in a fresh `context` at each call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return run


def best_opponent(encoder: TransformerEncoder, precision: str, workload: Workload, sizes: list[int]) -> tuple[int, str]:
    """The mini-batch size and kind of attention with which sentence-transformers is quickest here."""
    kinds = sorted({"sdpa", attention() or "sdpa"})
    timed = {}
    for kind in kinds:
        for size in sizes:
            step, _ = sentence_transformers(encoder, precision, size, kind)
            timed[size, kind] = min(seconds_of(lambda s=step, t=turn: s(workload, t)) for turn in range(2))
    return min(timed, key=timed.__getitem__)


def compare(
    name: str, make: Callable[[TransformerEncoder, int, int], Workload], parts: Parts, asked: Any
) -> list[dict[str, Any]]:
    """The rows of one encoder and workload, a precision each."""
    build = partial(TransformerEncoder.build, EncoderConfig(name=name), parts.train.texts, 0, asked.cache)
    workload = make(build(), asked.batch, min(asked.turns, 3))
    trial = make(build(), max(64, asked.batch // 8), 2)
    steps: dict[tuple[str, str], Contestant] = {}
    chosen = {}
    for precision in asked.precision:
        size, kind = chosen[precision] = best_opponent(build(), precision, trial, asked.mini_batch)
        encoder = build().to(default_device())
        steps["xmcbench", precision], ours = engine(encoder, precision)
        steps["theirs", precision], theirs = sentence_transformers(encoder, precision, size, kind)
        with evaluating(ours, theirs):
            losses = [steps[who, precision](trial, 0) for who in ("xmcbench", "theirs")]
        if not np.isclose(*losses, rtol=1e-4 if precision == "float32" else 1e-2):
            raise SystemExit(f"the contestants do not compute the same loss: {losses}")
    times: dict[tuple[str, str], list[float]] = {who: [] for who in steps}
    for turn in range(asked.turns):
        for who, step in steps.items():
            times[who].append(seconds_of(lambda s=step, t=turn: s(workload, t)))
    median = {who: float(np.median(found)) for who, found in times.items()}
    flops = np.median([3 * encoder.flops(workload.lengths(turn)) for turn in range(asked.turns)])
    texts, rows = 2 * asked.batch, []
    for precision in asked.precision:
        mine, its = median["xmcbench", precision], median["theirs", precision]
        rows.append(
            {"encoder": name, "texts": workload.name, "precision": precision, "xmcbench texts/s": texts / mine,
             "s-t texts/s": texts / its, "xmcbench / s-t": its / mine, "s-t mini-batch": chosen[precision][0],
             "s-t attention": chosen[precision][1], "of GEMM peak": flops / mine / asked.peak[precision]}
        )  # fmt: skip
        if "float32" in asked.precision:
            rows[-1]["against float32"] = median["xmcbench", "float32"] / mine
    return rows


def of_dropout(name: str, parts: Parts, asked: Any) -> list[dict[str, Any]]:
    """What dropout costs in steps of one encoder, by workload and precision."""
    rows = []
    for make in (lambda encoder, *sizes: titles(encoder, parts, *sizes), fixed):
        for precision in asked.precision:
            encoder = TransformerEncoder.build(EncoderConfig(name=name), parts.train.texts, 0, asked.cache).to(
                default_device()
            )
            workload = make(encoder, asked.batch, 3)
            step, _ = engine(encoder, precision)
            costs = dropout_costs(partial(step, workload), asked.turns)
            rows.append({"encoder": name, "texts": workload.name, "precision": precision, **costs})
    return rows


def main() -> None:
    parser = options(
        __doc__, encoder=["tiny", "minilm"], batch=(1024, "queries a step, and as many labels"),
        turns=(5, "timed steps of each contestant"), cache=Path(tempfile.gettempdir()) / "xmcbench-bench-cache",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, help="a dataset of short texts, in any layout that is read")
    parser.add_argument("--mini-batch", type=int, nargs="+", default=MINI_BATCHES, help="tried for the other side")
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS,
        help="bf16 takes minutes a step on a processor without bf16 products",
    )  # fmt: skip
    parser.add_argument("--dropout", action="store_true", help="only what dropout costs")
    parser.add_argument("--static", nargs="*", metavar="WORDS", help="only static encoders: minilm, if not given")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="tiny, 128 queries, 3 turns, two mini-batch sizes")
    parser.add_argument("--profile", action="store_true", help="only where the time of a training step goes")
    asked = parser.parse_args()
    if asked.quick:
        asked.encoder, asked.batch, asked.turns, asked.mini_batch = ["tiny"], 128, 3, [32, 64]
    torch.set_num_threads(asked.threads)
    if asked.profile:
        rows = [row for name in asked.encoder for p in asked.precision for row in profile(asked.data, name, p, asked)]
        report("step_profile", rows, asked.out)
        return
    parts = read_directory(asked.data)
    if asked.dropout:
        report("step_dropout", [row for name in asked.encoder for row in of_dropout(name, parts, asked)], asked.out)
        return
    if asked.static is not None:
        words = asked.static or ["minilm"]
        rows = [row for name in words for row in static_steps(name, parts, asked, titles)]
        report("step_static", rows, asked.out)
        return
    asked.peak = {precision: measured_peak(precision, default_device().type, 2048) for precision in asked.precision}
    rows: list[dict[str, Any]] = []
    for name in asked.encoder:
        for make in (lambda encoder, *sizes: titles(encoder, parts, *sizes), fixed):
            rows += compare(name, make, parts, asked)
    print({precision: f"{peak / 1e9:.0f} GFLOP/s" for precision, peak in asked.peak.items()})
    report("step", rows, asked.out)


if __name__ == "__main__":
    main()
