"""What a training step takes on a GPU that is not there, beside what `xmcbench plan` predicts.

    python benchmarks/gpu_memory.py --markdown docs/plan.md

Each method takes a step at the size of LF-AmazonTitles-1.3M, or of the dataset that is named, with the batch of its
paper, with tensors that have shapes and no values: nothing is computed. Texts are equally long, so the first micro-
batches stand for all, and the others, which would take equal memory after them, do not pass the encoder. The bytes of
the tensors that are alive at once are counted; a GPU's allocator takes somewhat more. Products are in float32,
because autocast needs a real device. The sampler's state is left out of both sides. Encoders have the shape of
DistilBERT; nothing is downloaded.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # beside a real GPU none is pretended

import tempfile
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from report import options, report
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from xmcbench.data import DatasetCard
from xmcbench.data.tokens import Tokens, micro_batches
from xmcbench.engine.charging import Charging
from xmcbench.engine.dual_encoder import add_modules
from xmcbench.engine.embedding_method import Training
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.planning.dry_run import DryRun
from xmcbench.engine.planning.memory import Memory, costs, memory
from xmcbench.engine.planning.probe import Workload, observe
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.workers import ALONE
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.run import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from pretend_device import NAME, pretended_gpu

Settings = dict[str, Any]
ENCODER = {"name": "distilbert-base-uncased"}
RAW = {**ENCODER, "normalize": False}
RENEE = {"optimizer": "sgd", "momentum": 0.9, "dtype": "float32"}
CARD = DatasetCard(
    name="LF-AmazonTitles-1.3M", num_train=2_248_619, num_test=970_237, num_labels=1_305_265, max_length=32,
    max_label_length=32,
)  # fmt: skip
SMALLER = CARD.model_copy(
    update={"name": "LF-AmazonTitles-131K", "num_train": 294_805, "num_test": 134_835, "num_labels": 131_073}
)
TOKENS = 12  # of a query and of a label: 9 words each
PASSES = 8  # micro-batches that pass the encoder; more than keep their activations
CASES: dict[str, tuple[str, Settings, str]] = {  # method, the settings of its paper, and where they are from
    "dexml, hard": (
        "dexml", {"batch_size": 8192, "negatives_per_query": 10, "refresh_start": 0, "encoder": RAW}, "DEXML Table 7"
    ),
    "dexml, all labels": ("dexml", {"batch_size": 8192, "negatives": "all", "encoder": RAW}, "DEXML Table 7"),
    "dexml, 131k labels": ("dexml", {"batch_size": 4096, "negatives": "all", "encoder": RAW}, "DEXML Table 8"),
    "ngame": ("ngame", {"batch_size": 1600, "encoder": ENCODER}, "NGAME's public code"),
    "prime": ("prime", {"batch_size": 3200, "free_vectors": 131_072, "encoder": ENCODER}, "PRIME Table 10"),
    "unidec": ("unidec", {"batch_size": 1024, "dimension": 256, "encoder": RAW}, "UniDEC Table 2"),
    "ova, Adam": ("ova", {"batch_size": 1024, "encoder": RAW}, "the method's defaults"),
    "ova, as Renee": ("ova", {"batch_size": 1024, "encoder": RAW, "table": RENEE}, "Renee"),
}  # fmt: skip
CARDS = {"dexml, 131k labels": SMALLER}  # where it is not `CARD`


def planned(method: Any, work: Workload) -> tuple[Memory, DryRun]:
    """What `xmcbench plan` predicts for one worker, and the dry run with the largest batch."""
    settings = method.config
    encoder = costs(settings.encoder, settings.precision, int(np.median(work.query_lengths_N)))
    probe = observe(method, work, encoder.dimension)
    dry = DryRun(method, work, probe, Charging(Ledger(), encoder.flops), Budget(steps=4), seed=0).spend()
    return memory(dry, encoder, 1, "cuda", float("inf")), dry


class Shapes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Tensors have shapes and no values, except those of operations on the CPU alone, which are computed."""

    cpu_is_real = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = list(tree_iter((args, kwargs)))
        elsewhere = any(isinstance(v, FakeTensor) or (isinstance(v, torch.device) and v.type != "cpu") for v in values)
        if self.cpu_is_real and not elsewhere:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that are on the device at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
            if buffer is not None:
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
        moved(method.encoder)
        moved(method.modules)
    for part in method.modules.modules():
        if isinstance(part, LabelTable):  # which counts on the CPU, and reads what it counted
            part.updates = torch.zeros((), dtype=part.updates.dtype)


def pretended_step(method: Any, dry: DryRun, work: Workload, shapes: Shapes) -> Peak:
    """The peak of a step on the largest batch, with the moments that the steps before it have left."""
    training, found = Training(method, work.train), Peak()
    for tensor in (*method.encoder.state_dict().values(), *method.modules.state_dict().values()):
        found.add(tensor)
    shapes.cpu_is_real = True
    few = patch.object(method.encoder, "micro_batches", lambda *asked: micro_batches(*asked)[:PASSES])
    with shapes, found, few:
        for parameter in training.update.parameters:
            parameter.grad = torch.zeros_like(parameter)
        training.update.apply(1.0, norm=1.0)
        method.encoder.train()
        method.modules.train()
        embedded = training.embedder.embed(dry.largest, 0)
        method.loss(embedded.queries_BD, embedded.labels_SD, embedded.share).backward()
        for cached in embedded.cached:
            cached.backward()
        training.update.gradient_norm()
        training.update.apply(1.0, norm=1.0)
        with torch.no_grad():
            method.after_step(embedded.share, embedded.queries_BD.detach(), embedded.labels_SD.detach())
    return found


def pretend(name: str) -> Settings:
    """One row: predicted, counted, their ratio. Prints the parts of the plan."""
    work = Workload.assumed(CARDS.get(name, CARD), TOKENS, TOKENS)
    plugin, settings, source = CASES[name]
    kind = registry().method(plugin).thing
    method = kind(kind.Config.model_validate(settings))
    plan, dry = planned(kind(method.config), work)
    with tempfile.TemporaryDirectory() as root, pretended_gpu():
        shapes = Shapes(allow_non_fake_inputs=True)
        assembled(method, work, shapes, Path(root))
        counted = pretended_step(method, dry, work, shapes)
    expected = plan.weights + plan.optimizer + plan.tables + plan.step
    parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in plan.parts().items())
    print(f"{name}: {counted.largest / 1e9:.2f} GB, planned {expected / 1e9:.2f}: {parts}", flush=True)
    return {
        "step": name, "settings of": source, "queries": f"{len(dry.largest.query_ids):,}",
        "labels": f"{len(dry.largest.label_ids):,}", "counted GB": f"{counted.largest / 1e9:.1f}",
        "plan GB": f"{expected / 1e9:.1f}", "plan / counted": f"{expected / counted.largest:.2f}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    asked = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    report("gpu_memory", [pretend(name) for name in asked.only], asked.markdown, by=("step",))


if __name__ == "__main__":
    main()
