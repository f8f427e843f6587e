"""The memory of a training step on a GPU that is not there, tensor by tensor, against what `xmcbench plan` predicts.

A step of each method is taken at the size of LF-AmazonTitles-1.3M with DistilBERT and the batch of its paper, on the
pretended device of the tests, with tensors that have shapes and no values: nothing is computed or downloaded. The bytes
of the tensors that are alive at once are counted; a GPU's allocator takes somewhat more. Products are in float32,
because autocast needs a real device. The sampler's state is left out of both sides.

    python benchmarks/gpu_memory.py                   # a table, and JSON in benchmarks/results
    python benchmarks/gpu_memory.py --only prime --largest 12
    python benchmarks/gpu_memory.py --write           # also the table in docs/plan.md
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from report import options, report, write_table
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pretend_device import NAME, pretended_gpu

from xmcbench.data import DatasetCard
from xmcbench.data.tokens import Tokens
from xmcbench.engine.assembly import add_modules
from xmcbench.engine.charging import Charging
from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.planning.dry_run import DryRun, dry_run
from xmcbench.engine.planning.encoder import costs
from xmcbench.engine.planning.memory import Memory, memory
from xmcbench.engine.planning.probe import observe
from xmcbench.engine.planning.workload import Lengths, Workload
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.training.steps import TrainingSteps
from xmcbench.engine.workers import ALONE
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import Run

DOCUMENT = Path(__file__).parents[1] / "docs" / "plan.md"
CODE = str(Path(__file__).parents[1])
ENCODER = {"name": "distilbert-base-uncased"}
RAW = {**ENCODER, "normalize": False}
LENGTHS = Lengths(query_tokens=12, label_tokens=12)  # LF-AmazonTitles-1.3M: 9 words and 9 words
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A method with the settings of its paper, and where they are from."""

    method: str
    settings: Row
    source: str


CASES = {
    "dexml, hard": Case(
        "dexml", {"batch_size": 8192, "negatives_per_query": 10, "refresh_start": 0, "encoder": RAW}, "DEXML Table 7"
    ),
    "dexml, all labels": Case("dexml", {"batch_size": 8192, "negatives": "all", "encoder": RAW}, "DEXML Table 7"),
    "ngame": Case("ngame", {"batch_size": 1600, "encoder": ENCODER}, "NGAME's public code"),
    "prime": Case("prime", {"batch_size": 3200, "free_vectors": 131_072, "encoder": ENCODER}, "PRIME Table 10"),
    "unidec": Case("unidec", {"batch_size": 1024, "dimension": 256, "encoder": RAW}, "UniDEC Table 2"),
    "ova, Adam": Case("ova", {"batch_size": 1024, "encoder": RAW}, "the method's defaults"),
    "ova, as Renee": Case(
        "ova",
        {"batch_size": 1024, "encoder": RAW, "table": {"optimizer": "sgd", "momentum": 0.9, "dtype": "float32"}},
        "Renee",
    ),
}


class Shapes(FakeTensorMode):
    """Tensors have shapes and no values, except those of operations on the CPU alone, which are computed."""

    cpu_is_real = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = list(tree_iter((args, kwargs)))
        elsewhere = any(isinstance(v, FakeTensor) or (isinstance(v, torch.device) and v.type != "cpu") for v in values)
        if self.cpu_is_real and not elsewhere:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@dataclass
class Peak(TorchDispatchMode):
    """The bytes on the device by the code that made them, now and when they were the most."""

    alive: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    total: int = 0
    largest: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._seen: dict[int, object] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, Tensor) and tensor.device.type == NAME:
                self.add(tensor, _origin())
        return made

    def add(self, tensor: Tensor, origin: str) -> None:
        """Count a tensor's storage until it is freed, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        label = f"{origin} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        self._seen[key] = weakref.ref(storage, lambda _: self._free(key, size, label))
        self.alive[label] += size
        self.total += size
        if self.total > self.largest:
            self.largest, self.most = self.total, self.alive.copy()

    def _free(self, key: int, size: int, label: str) -> None:
        del self._seen[key]
        self.total -= size
        self.alive[label] -= size
        if not self.alive[label]:
            del self.alive[label]


def _origin() -> str:
    """The innermost function of the project that is being called; autograd's own thread calls none."""
    frame = sys._getframe(2)
    while frame and (not frame.f_code.co_filename.startswith(CODE) or __file__ == frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "backward of the encoder and modules"
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"


def moved(module: nn.Module) -> nn.Module:
    """The module with parameters and buffers on the device: `Module.to` does not serve for tensors without values."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.to(NAME), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None and name != "updates":  # which label tables keep on the CPU
                part._buffers[name] = buffer.to(NAME)
    return module


def assembled(method: Any, work: Workload, shapes: Shapes, root: Path) -> None:
    """Make `method` as `assemble` would, with tensors that have no values."""
    total = work.train.num_labels

    def tokens(lengths_N: np.ndarray) -> Tokens:
        return Tokens(np.ones(int(lengths_N.max()), np.int32), np.zeros(len(lengths_N), np.int64), lengths_N)

    method.run = Run(seed=0, budget=Budget(steps=1), checkpoint=root, cache=root)
    method.queries, method.labels = tokens(work.query_lengths_N), tokens(work.label_lengths_L)
    method.run.ledger.steps = 1  # what methods check in their first step reads values
    groups = getattr(method.config, "free_vectors", 0)
    tokenizer: Any = type("NoTokenizer", (), {"pad_id": 0})
    with shapes, patch.object(LabelTable, "fill", lambda *_: None):
        from transformers import AutoConfig

        transformer = Encoder.transformer_of(AutoConfig.for_model("distilbert"))
        method.encoder = Encoder(method.config.encoder, transformer, tokenizer)
        with patch.object(nn.Module, "to", lambda module, _: module):
            add_modules(method, work.train, ALONE, np.arange(total) % groups if groups else None, seed=0)
        moved(method.encoder), moved(method.modules)


def step(method: Any, dry: DryRun, work: Workload, shapes: Shapes) -> Peak:
    """The peak of a step on the largest batch, with the moments that the steps before it have left."""
    steps, peak = TrainingSteps(method, work.train), Peak()
    for name, tensor in [*method.encoder.state_dict().items(), *method.modules.state_dict().items()]:
        if tensor.device.type == NAME:
            peak.add(tensor, f"weights.{name.rpartition('.')[2]}")
    shapes.cpu_is_real = True
    with shapes, peak:
        for parameter in steps.optimizers.parameters:
            parameter.grad = torch.zeros_like(parameter)
        steps.optimizers.apply(1.0, norm=1.0)
        method.encoder.train()
        method.modules.train()
        embedded = steps.embedder.embed(dry.largest, 0)
        steps._loss(embedded)
        embedded.backward()
        steps.optimizers.gradient_norm()
        steps.optimizers.apply(1.0, norm=1.0)
        with torch.no_grad():
            method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
    return peak


def planned(method: Any, work: Workload) -> tuple[Memory, DryRun]:
    """What `xmcbench plan` predicts for one GPU, and the dry run with the largest batch."""
    settings = method.config
    encoder = costs(settings.encoder, settings.precision, int(np.median(work.query_lengths_N)))
    probe = observe(method, work, encoder.dimension)
    dry = dry_run(method, work, probe, Charging(Ledger(), encoder.flops), Budget(steps=2), seed=0)
    return memory(method, work, encoder, probe, dry, 1, "cuda", float("inf")), dry


def compare(name: str, case: Case, work: Workload, largest: int) -> Row:
    """One row: predicted, counted, their ratio. Prints the parts of the plan and the largest tensors at the peak."""
    kind = registry().method(case.method).thing

    def made() -> Any:
        return kind(kind.Config.model_validate(case.settings))

    plan, dry = planned(made(), work)
    with tempfile.TemporaryDirectory() as root, pretended_gpu():
        method, shapes = made(), Shapes(allow_non_fake_inputs=True)
        assembled(method, work, shapes, Path(root))
        peak = step(method, dry, work, shapes)
    expected = plan.weights + plan.optimizer + plan.tables + plan.embeddings + plan.activations + plan.scores
    print(f"\n{name}: {peak.largest / 1e9:.2f} GB, planned {expected / 1e9:.2f}", end="")
    print(*("", *(f"{part} {size / 1e9:.2f}" for part, size in plan.parts().items())), sep=", ", flush=True)
    for label, size in peak.most.most_common(largest):
        print(f"  {size / 1e9:8.3f} GB  {label}")
    return {
        "step": name, "settings of": case.source, "queries": f"{len(dry.largest.query_ids):,}",
        "labels": f"{len(dry.largest.label_ids):,}", "counted GB": f"{peak.largest / 1e9:.1f}",
        "plan GB": f"{expected / 1e9:.1f}", "plan / counted": f"{expected / peak.largest:.2f}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__, largest=(8, "tensors that are printed"))
    parser.add_argument("--only", nargs="+", metavar="WORD", help="words in the names of steps")
    parser.add_argument("--write", action="store_true", help="write the table into docs/plan.md")
    asked = parser.parse_args()
    card = DatasetCard(
        name="LF-AmazonTitles-1.3M", num_train=2_248_619, num_test=970_237, num_labels=1_305_265, max_length=32,
        max_label_length=32,
    )  # fmt: skip
    work = Workload.assumed(card, LENGTHS)
    chosen = {name: case for name, case in CASES.items() if not asked.only or any(w in name for w in asked.only)}
    torch.set_num_threads(1)
    rows = [compare(name, case, work, asked.largest) for name, case in chosen.items()]
    report("gpu_memory", rows, asked.out)
    if asked.write:
        write_table("gpu_memory", rows, DOCUMENT)


if __name__ == "__main__":
    main()
