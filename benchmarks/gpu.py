"""What one GPU does: correctness first, then training steps and search at full size, against its peak and the plan.

Every stage adds what it measured, or why it failed, to one JSON file and one table, and the next stage starts. Encoders
have the shape of DistilBERT and random weights, texts are random words, so nothing is downloaded.

    python benchmarks/gpu.py --minutes 8 --out DIR
    python benchmarks/gpu.py --quick                  # small sizes on any device: whether the script itself works

DEXML's Table 8: 131 thousand labels, batch 4,096, all labels as negatives take 6.7 s and 16 GB on each of four A100.
PRIME's Table 10: LF-AmazonTitles-1.3M takes 60 h on one A100.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from report import options, report, seconds_of, synchronise
from torch.nn.functional import dropout, normalize
from transformers import DistilBertConfig, DistilBertModel

from xmcbench.data import DatasetCard
from xmcbench.data.dataset import TrainingData
from xmcbench.data.sparse_text import no_pairs
from xmcbench.engine import losses
from xmcbench.engine.charging import Charging
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.dropout import SeededDropout, text_seeds
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.engine.losses import Positives
from xmcbench.engine.planning.accelerators import measured_peak
from xmcbench.engine.planning.dry_run import dry_run
from xmcbench.engine.planning.encoder import costs
from xmcbench.engine.planning.memory import memory
from xmcbench.engine.planning.probe import observe
from xmcbench.engine.planning.workload import Workload
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget, Ledger, peak_memory
from xmcbench.trial.run import Progress, Run

STEPS = 4  # of each trial; the first one is not timed
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the stages: those of the papers, or small ones."""

    queries: int = 200_000
    labels: int = 131_073
    many_labels: int = 1_305_265
    batch: int = 4096
    searched: int = 20_000
    layers: int = 6
    hidden: int = 768
    free_vectors: int = 65_536


QUICK = Sizes(queries=600, labels=300, many_labels=900, batch=64, searched=200, layers=2, hidden=64, free_vectors=64)


def peak(precision: str) -> float:
    """Operations per second that this device reaches in a matrix product."""
    device = default_device().type
    return measured_peak(precision, device, 4096 if device == "cuda" else 512)


def correctness(_: Sizes) -> list[Row]:
    """The largest difference between this device and the CPU, by what is computed."""
    device, generator = default_device(), torch.Generator().manual_seed(0)
    queries, labels = (normalize(torch.randn(count, 64, generator=generator), dim=1) for count in (256, 5000))
    rows = torch.arange(256)
    positives = Positives(rows, rows * 7 % 5000, 256, 5000)

    def loss(on: torch.device) -> torch.Tensor:
        q, z = queries.to(on).requires_grad_(), labels.to(on)
        truth = positives.to(on)
        value = losses.decoupled_softmax(q, z, truth, truth.every(), temperature=0.05)
        return torch.autograd.grad(value, q)[0].cpu()

    def masks(on: torch.device) -> torch.Tensor:
        with SeededDropout(text_seeds(0, "query", np.arange(256))):
            return dropout(torch.ones(256, 999, device=on), 0.3).cpu()

    def scores(on: torch.device) -> torch.Tensor:
        return torch.from_numpy(ExactIndex(labels.to(on)).top_k(queries.to(on), 50).scores)

    cpu = torch.device("cpu")
    return [
        {"what": name, "largest difference": float((compute(device) - compute(cpu)).abs().max())}
        for name, compute in (("gradient of a loss", loss), ("dropout masks", masks), ("scores of a search", scores))
    ]


def made(queries: int, labels: int) -> TrainingData:
    """Random texts of 3 to 12 words and 2 to 6 words; 5 labels per query."""
    rng = np.random.default_rng(0)
    words = np.array([f"{a}{b}" for a in "bdfgklmnprst" for b in ("an", "er", "il", "on", "us", "et", "ar", "im")])

    def texts(count: int, low: int, high: int) -> list[str]:
        drawn = words[rng.integers(len(words), size=(count, high))]
        return [" ".join(row[:length]) for row, length in zip(drawn, rng.integers(low, high + 1, count), strict=True)]

    ids = np.sort(rng.integers(0, labels, (queries, 5)), axis=1).ravel()
    targets = sp.csr_array((np.ones(len(ids), np.float32), ids, np.arange(0, len(ids) + 1, 5)), shape=(queries, labels))
    targets.sum_duplicates()
    targets.data[:] = 1
    card = DatasetCard(
        name="random", num_train=queries, num_test=1, num_labels=labels, max_length=32, max_label_length=16
    )
    return TrainingData(card, texts(queries, 3, 12), targets, texts(labels, 2, 6), no_pairs(targets.shape))


def encoder_folder(sizes: Sizes, train: TrainingData, root: Path) -> str:
    """A DistilBERT with random weights, and a tokenizer that knows the words."""
    folder = root / f"encoder-{sizes.hidden}"
    if not folder.exists():
        tokenizer = trained_tokenizer(train.texts, root)
        config = DistilBertConfig(
            vocab_size=30_522, n_layers=sizes.layers, dim=sizes.hidden, n_heads=12 if sizes.hidden == 768 else 4,
            hidden_dim=4 * sizes.hidden,
        )  # fmt: skip
        DistilBertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def training(name: str, many: bool, settings: Row, root: Path, limit: float, sizes: Sizes) -> list[Row]:
    """Steps of a method: seconds, memory and share of the peak, measured and as planned."""
    train = made(sizes.queries, sizes.many_labels if many else sizes.labels)
    kind = registry().method(name).thing
    config = {"encoder": {"name": encoder_folder(sizes, train, root)}, "precision": "bf16", **settings}
    method = kind(kind.Config.model_validate({"batch_size": sizes.batch, **config}))
    budget = Budget(steps=STEPS, device_seconds=limit)
    ends: list[float] = []

    def note(_: Progress) -> None:
        synchronise()
        ends.append(time.perf_counter())

    if default_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as checkpoint:
        run = Run(seed=0, budget=budget, checkpoint=Path(checkpoint), cache=root, report=note)
        method.fit(train, run)
    on_gpu = default_device().type == "cuda"
    held = torch.cuda.max_memory_allocated() if on_gpu else peak_memory()
    step = float(np.median(np.diff(ends))) if len(ends) > 1 else float("nan")
    flops = run.ledger.flops / max(1, run.ledger.steps)
    planned_bytes = planned_memory(kind(method.config), train, method.queries, method.labels)
    best = peak("bf16")
    return [
        {
            "what": f"{name}, {train.num_labels:,} labels, batch {method.config.batch_size}", "s per step": step,
            "TFLOP per step": flops / 1e12, "share of peak": flops / step / best,
            "GB": held / 1e9, "planned GB": planned_bytes / 1e9, "steps": run.ledger.steps,
            "pool": run.ledger.pool_labels / max(1, run.ledger.steps),
        }
    ]  # fmt: skip


def planned_memory(method: Any, train: TrainingData, queries: Any, labels: Any) -> float:
    """What `xmcbench plan` predicts for one worker on this device."""
    work = Workload.of(train, queries, labels, train.card.num_test, len(train.texts))
    encoder = costs(method.config.encoder, method.config.precision, int(np.median(queries.lengths)))
    probe = observe(method, work, encoder.dimension)
    dry = dry_run(method, work, probe, Charging(Ledger(), encoder.flops), Budget(steps=STEPS), 0)
    return memory(method, work, encoder, probe, dry, 1, default_device().type, float("inf")).total


def search(sizes: Sizes) -> list[Row]:
    """The 100 best of many labels for queries of the same width, in float32 and with bf16 products."""
    device, rows = default_device(), []
    queries, labels = (torch.randn(n, sizes.hidden, device=device) for n in (sizes.searched, sizes.many_labels))
    for precision in ("float32", "bf16"):
        index = ExactIndex(labels, precision)  # type: ignore[arg-type]
        index.top_k(queries[:64], 100)
        taken = seconds_of(partial(index.top_k, queries, 100))
        products = 2 * queries.numel() * len(labels)
        name = f"search, {len(queries):,} queries, {len(labels):,} labels, {precision}"
        rows.append({"what": name, "s": taken, "queries per s": len(queries) / taken})
        rows[-1]["share of peak"] = products / taken / peak(precision)
    return rows


def sentence_transformers(sizes: Sizes, root: Path) -> list[Row]:
    """Texts per second of `encode`, theirs and ours, with the same weights in bf16."""
    from sentence_transformers import SentenceTransformer, models

    from xmcbench.engine.encoders.embedding import embed_all
    from xmcbench.engine.encoders.settings import EncoderConfig
    from xmcbench.engine.encoders.transformer import TransformerEncoder

    train, device = made(sizes.queries, sizes.labels), default_device()
    folder = encoder_folder(sizes, train, root)
    ours = TransformerEncoder.build(EncoderConfig(name=folder), train.texts, 0, root).to(device)
    word = models.Transformer(folder, max_seq_length=32)
    theirs = SentenceTransformer(modules=[word, models.Pooling(sizes.hidden)], device=str(device)).to(torch.bfloat16)
    tokens = ours.tokenizer.tokens(train.texts, 32)
    budget = 65_536 if device.type == "cuda" else 2048
    mine = seconds_of(lambda: embed_all(ours, tokens, precision="bf16", micro_batch_tokens=budget))
    its = seconds_of(lambda: theirs.encode(list(train.texts), batch_size=1024, show_progress_bar=False))
    count = len(train.texts)
    return [{"what": "embedding", "texts per s": count / mine, "theirs": count / its, "ratio": its / mine}]


def stages(sizes: Sizes, root: Path, limit: float) -> dict[str, Callable[[], list[Row]]]:
    step = partial(training, root=root, limit=limit, sizes=sizes)
    return {
        "correctness": partial(correctness, sizes),
        "DEXML Table 8": partial(step, "dexml", False, {"negatives": "all"}),
        "PRIME, 1.3 M labels": partial(step, "prime", True, {"free_vectors": sizes.free_vectors}),
        "one-vs-all, 1.3 M labels": partial(step, "ova", True, {}),
        "search": partial(search, sizes),
        "sentence-transformers": partial(sentence_transformers, sizes, root),
    }


def main() -> None:
    parser = options(__doc__, minutes=(8.0, "stages that start later are left out"))
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="words in the names of stages")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a trial of the script itself")
    asked = parser.parse_args()
    sizes, end = QUICK if asked.quick else Sizes(), time.monotonic() + 60 * asked.minutes
    device = torch.cuda.get_device_name() if default_device().type == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as root:
        rows: list[Row] = []
        for name, stage in stages(sizes, Path(root), 60 * asked.minutes / 6).items():
            if asked.only and not any(word.lower() in name.lower() for word in asked.only):
                continue
            if time.monotonic() > end:
                rows.append({"what": name, "not run": f"{asked.minutes:g} minutes were over"})
            else:
                try:
                    rows += stage()
                except Exception as problem:  # the next stage does not depend on it
                    rows.append({"what": name, "failed": f"{type(problem).__name__}: {problem}"})
            report("gpu", [{"device": device, **row} for row in rows], asked.out)


if __name__ == "__main__":
    main()
