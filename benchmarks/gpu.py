"""What one GPU does: training steps and search at full size, against its peak and the plan, or on a pretended GPU.

Every stage adds what it measured, or why it failed, to one JSON file and one table, and the next stage starts. Encoders
have the shape of DistilBERT and random weights, texts are random words, so nothing is downloaded.

    python benchmarks/gpu.py --minutes 8 --out DIR
    python benchmarks/gpu.py --quick                  # small sizes on any device: whether the script itself works
    python benchmarks/gpu.py --pretend --markdown docs/plan.md    # a GPU that is not there; its table is there

DEXML's Table 8: 131 thousand labels, batch 4,096, all labels as negatives take 6.7 s and 16 GB on each of four A100.
PRIME's Table 10: LF-AmazonTitles-1.3M takes 60 h on one A100.

`--pretend` takes a step of each method at the size of LF-AmazonTitles-1.3M with the batch of its paper, with tensors
that have shapes and no values: nothing is computed. The bytes of the tensors that are alive at once are counted; a
GPU's allocator takes somewhat more. Products are in float32, because autocast needs a real device. The sampler's state
is left out of both sides.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
import torch
from report import Rows, options, report, seconds_of, synchronise
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import DistilBertConfig, DistilBertModel

from xmcbench.data import DatasetCard
from xmcbench.data.dataset import TrainingData
from xmcbench.data.sparse_text import no_pairs
from xmcbench.data.tokens import Tokens
from xmcbench.engine.assembly import add_modules
from xmcbench.engine.charging import Charging
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.planning.accelerators import measured_peak
from xmcbench.engine.planning.dry_run import DryRun, dry_run
from xmcbench.engine.planning.encoder import costs
from xmcbench.engine.planning.memory import Memory, memory
from xmcbench.engine.planning.probe import observe
from xmcbench.engine.planning.workload import Workload
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.training.steps import TrainingSteps
from xmcbench.engine.workers import ALONE
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget, Ledger, peak_memory
from xmcbench.trial.run import Progress, Run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from pretend_device import NAME, pretended_gpu

STEPS = 4  # of each trial; the first one is not timed
Settings = dict[str, Any]


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


def training(name: str, many: bool, settings: Settings, root: Path, limit: float, sizes: Sizes) -> Rows:
    """Steps of a method: seconds, memory and share of the peak, measured and as planned."""
    train = made(sizes.queries, sizes.many_labels if many else sizes.labels)
    kind = registry().method(name).thing
    config = {"encoder": {"name": encoder_folder(sizes, train, root)}, "precision": "bf16", **settings}
    method = kind(kind.Config.model_validate({"batch_size": sizes.batch, **config}))
    ends: list[float] = []

    def note(_: Progress) -> None:
        synchronise()
        ends.append(time.perf_counter())

    on_gpu = default_device().type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as checkpoint:
        budget = Budget(steps=STEPS, device_seconds=limit)
        run = Run(seed=0, budget=budget, checkpoint=Path(checkpoint), cache=root, report=note)
        method.fit(train, run)
    held = torch.cuda.max_memory_allocated() if on_gpu else peak_memory()
    step = float(np.median(np.diff(ends))) if len(ends) > 1 else float("nan")
    flops = run.ledger.flops / max(1, run.ledger.steps)
    work = Workload.of(train, method.queries, method.labels, train.card.num_test, len(train.texts))
    plan, _ = planned(kind(method.config), work, default_device().type)
    return [
        {
            "what": f"{name}, {train.num_labels:,} labels, batch {method.config.batch_size}", "s per step": step,
            "TFLOP per step": flops / 1e12, "share of peak": flops / step / peak("bf16"),
            "GB": held / 1e9, "planned GB": plan.total / 1e9, "steps": run.ledger.steps,
            "pool": run.ledger.pool_labels / max(1, run.ledger.steps),
        }
    ]  # fmt: skip


def planned(method: Any, work: Workload, device: str) -> tuple[Memory, DryRun]:
    """What `xmcbench plan` predicts for one worker, and the dry run with the largest batch."""
    settings = method.config
    encoder = costs(settings.encoder, settings.precision, int(np.median(work.query_lengths_N)))
    probe = observe(method, work, encoder.dimension)
    dry = dry_run(method, work, probe, Charging(Ledger(), encoder.flops), Budget(steps=STEPS), seed=0)
    return memory(method, work, encoder, probe, dry, 1, device, float("inf")), dry


def search(sizes: Sizes) -> Rows:
    """The 100 best of many labels for queries of the same width, in float32 and with bf16 products."""
    device, rows = default_device(), []
    queries, labels = (torch.randn(n, sizes.hidden, device=device) for n in (sizes.searched, sizes.many_labels))
    for precision in ("float32", "bf16"):
        index = ExactIndex(labels, precision)  # type: ignore[arg-type]
        index.top_k(queries[:64], 100)
        taken = seconds_of(partial(index.top_k, queries, 100))
        name = f"search, {len(queries):,} queries, {len(labels):,} labels, {precision}"
        share = 2 * queries.numel() * len(labels) / taken / peak(precision)
        rows.append({"what": name, "s": taken, "queries per s": len(queries) / taken, "share of peak": share})
    return rows


def stages(asked: Any, root: Path) -> dict[str, Callable[[], Rows]]:
    sizes = QUICK if asked.quick else Sizes()
    step = partial(training, root=root, limit=60 * asked.minutes / 4, sizes=sizes)
    return {
        "DEXML Table 8": partial(step, "dexml", False, {"negatives": "all"}),
        "PRIME, 1.3 M labels": partial(step, "prime", True, {"free_vectors": sizes.free_vectors}),
        "one-vs-all, 1.3 M labels": partial(step, "ova", True, {}),
        "search": partial(search, sizes),
    }


ENCODER = {"name": "distilbert-base-uncased"}
RAW = {**ENCODER, "normalize": False}
RENEE = {"optimizer": "sgd", "momentum": 0.9, "dtype": "float32"}
CARD = DatasetCard(
    name="LF-AmazonTitles-1.3M", num_train=2_248_619, num_test=970_237, num_labels=1_305_265, max_length=32,
    max_label_length=32,
)  # fmt: skip
TOKENS = 12  # of a query and of a label: 9 words each
CASES: dict[str, tuple[str, Settings, str]] = {  # method, the settings of its paper, and where they are from
    "dexml, hard": (
        "dexml", {"batch_size": 8192, "negatives_per_query": 10, "refresh_start": 0, "encoder": RAW}, "DEXML Table 7"
    ),
    "dexml, all labels": ("dexml", {"batch_size": 8192, "negatives": "all", "encoder": RAW}, "DEXML Table 7"),
    "ngame": ("ngame", {"batch_size": 1600, "encoder": ENCODER}, "NGAME's public code"),
    "prime": ("prime", {"batch_size": 3200, "free_vectors": 131_072, "encoder": ENCODER}, "PRIME Table 10"),
    "unidec": ("unidec", {"batch_size": 1024, "dimension": 256, "encoder": RAW}, "UniDEC Table 2"),
    "ova, Adam": ("ova", {"batch_size": 1024, "encoder": RAW}, "the method's defaults"),
    "ova, as Renee": ("ova", {"batch_size": 1024, "encoder": RAW, "table": RENEE}, "Renee"),
}  # fmt: skip


class Shapes(FakeTensorMode):
    """Tensors have shapes and no values, except those of operations on the CPU alone, which are computed."""

    cpu_is_real = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = list(tree_iter((args, kwargs)))
        elsewhere = any(isinstance(v, FakeTensor) or (isinstance(v, torch.device) and v.type != "cpu") for v in values)
        if self.cpu_is_real and not elsewhere:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Peak(TorchDispatchMode):
    """The most bytes that are on the device at once."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0
        self._seen: dict[int, object] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return made

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed, unless it is counted already or lies elsewhere."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if tensor.device.type == NAME and key not in self._seen:
            self._seen[key] = weakref.ref(storage, lambda _: self._free(key, size))
            self.total += size
            self.largest = max(self.largest, self.total)

    def _free(self, key: int, size: int) -> None:
        del self._seen[key]
        self.total -= size


def moved(module: nn.Module) -> None:
    """Move parameters and buffers to the device: `Module.to` does not serve for tensors without values."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.to(NAME), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None and name != "updates":  # which label tables keep on the CPU
                part._buffers[name] = buffer.to(NAME)


def assembled(method: Any, work: Workload, shapes: Shapes, root: Path) -> None:
    """Make `method` as `assemble` would, with tensors that have no values."""
    total = work.train.num_labels

    def tokens(lengths_N: np.ndarray) -> Tokens:
        return Tokens(np.ones(int(lengths_N.max()), np.int32), np.zeros(len(lengths_N), np.int64), lengths_N)

    method.run = Run(seed=0, budget=Budget(steps=1), checkpoint=root, cache=root)
    method.queries, method.labels = tokens(work.query_lengths_N), tokens(work.label_lengths_L)
    method.run.ledger.steps = 1  # what methods check in their first step reads values
    groups = getattr(method.config, "free_vectors", 0)
    tokenizer: Any = type("NoTokenizer", (), {"pad_id": 0, "after": lambda self, _: self})()
    with shapes, patch.object(LabelTable, "fill", lambda *_: None):
        from transformers import AutoConfig

        transformer = TransformerEncoder.transformer_of(AutoConfig.for_model("distilbert"))
        method.encoder = TransformerEncoder(method.config.encoder, transformer, tokenizer)
        with patch.object(nn.Module, "to", lambda module, _: module):
            add_modules(method, work.train, ALONE, np.arange(total) % groups if groups else None, seed=0)
        moved(method.encoder), moved(method.modules)


def pretended_step(method: Any, dry: DryRun, work: Workload, shapes: Shapes) -> Peak:
    """The peak of a step on the largest batch, with the moments that the steps before it have left."""
    steps, found = TrainingSteps(method, work.train), Peak()
    for tensor in (*method.encoder.state_dict().values(), *method.modules.state_dict().values()):
        found.add(tensor)
    shapes.cpu_is_real = True
    with shapes, found:
        for parameter in steps.optimizers.parameters:
            parameter.grad = torch.zeros_like(parameter)
        steps.optimizers.apply(1.0, norm=1.0)
        method.encoder.train()
        method.modules.train()
        embedded = steps.embedder.embed(dry.largest, 0)
        method.loss(embedded.queries_BD, embedded.labels_SD, embedded.share).backward()
        embedded.backward()
        steps.optimizers.gradient_norm()
        steps.optimizers.apply(1.0, norm=1.0)
        with torch.no_grad():
            method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
    return found


def pretend(name: str, work: Workload) -> Settings:
    """One row: predicted, counted, their ratio. Prints the parts of the plan."""
    plugin, settings, source = CASES[name]
    kind = registry().method(plugin).thing
    method = kind(kind.Config.model_validate(settings))
    plan, dry = planned(kind(method.config), work, "cuda")
    with tempfile.TemporaryDirectory() as root, pretended_gpu():
        shapes = Shapes(allow_non_fake_inputs=True)
        assembled(method, work, shapes, Path(root))
        counted = pretended_step(method, dry, work, shapes)
    expected = plan.weights + plan.optimizer + plan.tables + plan.embeddings + plan.activations + plan.scores
    parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in plan.parts().items())
    print(f"{name}: {counted.largest / 1e9:.2f} GB, planned {expected / 1e9:.2f}: {parts}", flush=True)
    return {
        "step": name, "settings of": source, "queries": f"{len(dry.largest.query_ids):,}",
        "labels": f"{len(dry.largest.label_ids):,}", "counted GB": f"{counted.largest / 1e9:.1f}",
        "plan GB": f"{expected / 1e9:.1f}", "plan / counted": f"{expected / counted.largest:.2f}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__, minutes=(8.0, "stages that start later are left out"))
    parser.add_argument("--only", nargs="+", metavar="WORD", help="words in the names of stages, or of pretended steps")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a trial of the script itself")
    parser.add_argument("--pretend", action="store_true", help="steps on a GPU that is not there: memory alone")
    asked = parser.parse_args()

    def chosen(name: str) -> bool:
        return not asked.only or any(word.lower() in name.lower() for word in asked.only)

    rows: Rows = []
    if asked.pretend:
        os.environ["HF_HUB_OFFLINE"] = "1"
        torch.set_num_threads(1)
        work = Workload.assumed(CARD, TOKENS, TOKENS)
        rows = [pretend(name, work) for name in CASES if chosen(name)]
        report("gpu_memory", rows, asked)
        return
    end = time.monotonic() + 60 * asked.minutes
    device = torch.cuda.get_device_name() if default_device().type == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as root:
        for name, stage in stages(asked, Path(root)).items():
            if time.monotonic() > end:
                rows.append({"what": name, "not run": f"{asked.minutes:g} minutes were over"})
            elif chosen(name):
                try:
                    rows += stage()
                except Exception as problem:  # the next stage does not depend on it
                    rows.append({"what": name, "failed": f"{type(problem).__name__}: {problem}"})
                report("gpu", [{"device": device, **row} for row in rows], asked)


if __name__ == "__main__":
    main()
