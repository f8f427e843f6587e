"""What this machine's accelerator does with xmcbench, found in less than two minutes and without a network.

Every check says what it found, and in a line what to do about it. Without a GPU those that need one are skipped.

Legend: B queries, S labels, D dimensions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize

from xmcbench.engine import losses
from xmcbench.engine.device import default_device, device_peak_memory, upload
from xmcbench.engine.encoders.dropout import SeededDropout, text_seeds
from xmcbench.engine.losses.positives import Positives
from xmcbench.engine.planning.trials import MACHINES, Planner
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.plugins.registry import registry
from xmcbench.runs.gpus import DEVICE_FILES, visible_gpus
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import build_method
from xmcbench.trial.run import Run
from xmcbench.trial.trial import Trial

PACKAGES = ("torch", "transformers", "numpy", "triton", "faiss-gpu", "faiss-cpu")
CLOSE = 1e-4  # largest difference from the CPU, as a share of the largest number: float32 without TF32
SAME = 0.99  # least share of labels that a search on both devices finds
MOST, LEAST = 1.25, 0.8  # of the planned memory that a step may take
SECONDS = 75  # that the compiler has
STEPS, DATASET = 2, "catalog-5k"
NO_GPU = "torch uses no GPU here"

Status = Literal["ok", "FAILED", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The outcome of a check; `advice` is a line for the user, empty where nothing is to be done."""

    name: str
    status: Status
    found: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Make every check, one after another. What a check raises is its finding."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, *check(default_device()))
        except Exception as problem:  # one refusal must not hide the next
            text = " ".join(str(problem).split())[:200]
            yield Finding(name, "FAILED", f"{type(problem).__name__}: {text}", "please report this line")


Outcome = tuple[Status, str] | tuple[Status, str, str]


def versions(device: torch.device) -> Outcome:
    """Packages, GPU and driver; why torch uses no GPU."""
    found = [f"{name} {version(name)}" for name in PACKAGES if _installed(name)]
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found += [
            f"CUDA {torch.version.cuda}",
            f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB, sm_{gpu.major}{gpu.minor}",
        ]
        advice = "" if torch.cuda.is_bf16_supported() else "it multiplies no bf16: say precision: float32"
        return "ok", ", ".join(found), advice
    driver = next((file for file in DEVICE_FILES if Path(file).exists()), None)
    if driver is None:
        return "ok", ", ".join([*found, "no driver of a GPU"])
    advice = "install a torch build for this GPU" if torch.version.cuda is None else "nvidia-smi says what is wrong"
    return (
        "FAILED",
        ", ".join(
            [*found, f"{driver} is there, and {NO_GPU}"],
        ),
        advice,
    )


def gpus(device: torch.device) -> Outcome:
    """How many GPUs a run uses."""
    if device.type == "cpu":
        return "skipped", NO_GPU
    count = len(visible_gpus())
    return "ok", f"{count} GPUs", f"`xmcbench run` trains {count} trials at once" if count > 1 else ""


def kernels(device: torch.device) -> Outcome:
    """Operations that tables in eight bits, searches and empty batches ask for."""
    table = LabelTable(torch.arange(64), 32, TableConfig(dtype="e4m3", learning_rate=0.1), seed=0)
    table.fill(lambda block, generator: block.normal_(generator=generator))
    table = table.to(device)
    before = table.weight.float().cpu()
    table(torch.arange(0, 64, 2)).square().sum().backward()
    table.step(0.1)
    changed = (table.weight.float().cpu() != before).any(1)
    assert changed[::2].any(), "a step of an e4m3 table changed nothing"
    assert not changed[1::2].any(), "a step of an e4m3 table changed other rows"
    assert upload(np.empty(0, np.int64), device).shape == (0,), "an empty array has a shape"
    many = torch.randint(-(2**62), 2**62, (8, 4096), generator=torch.Generator().manual_seed(0)).to(device)
    assert torch.equal(many.topk(50).values, many.sort(descending=True).values[:, :50]), (
        "topk of int64 differs from sort"
    )
    return "ok", "e4m3 rows, int64 top-k, empty uploads"


def equality(device: torch.device) -> Outcome:
    """Losses, gradients, dropout, tables and searches beside those of the CPU."""
    if device.type == "cpu":
        return "skipped", NO_GPU
    worst = 0.0
    for there, here in zip(_numbers(device), _numbers(torch.device("cpu")), strict=True):
        worst = max(worst, float((there.cpu() - here).abs().max() / here.abs().max()))
    torch.manual_seed(0)
    queries_BD, labels_SD = (normalize(torch.randn(count, 48), dim=1) for count in (200, 20_000))
    wanted = ExactIndex(labels_SD).top_k(queries_BD, 50)
    found = ExactIndex(labels_SD.to(device)).top_k(queries_BD.to(device), 50)
    same = float((found.indices == wanted.indices).mean())
    text = f"numbers to {worst:.1e} (expected {CLOSE:g}), labels of a search {same:.2%} (expected {SAME:.0%})"
    if worst > CLOSE or same < SAME:
        return "FAILED", text, "is TF32 on (torch.backends.cuda.matmul.allow_tf32)? Results are not those of a CPU"
    return "ok", text


def sandbox(device: torch.device) -> Outcome:
    """Whether a restricted process computes and compiles."""
    code = SANDBOXED.format(device=device.type)
    # Landlock hides what is created later in a folder above a forbidden file: the file lies in a folder of its own.
    with tempfile.TemporaryDirectory(prefix="xmcbench-check-", dir=Path.home()) as folder:
        try:
            done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "FAILED", f"compiling took more than {SECONDS} s", "leave `compile: true` out of encoders"
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return "ok", "; ".join(lines)
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return "FAILED", "; ".join([*lines, last[0][:200]]), "leave `compile: true` out of encoders"


SANDBOXED = """
import sys, threading
from pathlib import Path
import torch
from xmcbench.files.network import forbid_network
from xmcbench.runs import file_guard, landlock
done = []
def trial():
    secret = Path(sys.argv[1]) / "folder" / "secret"
    secret.parent.mkdir()
    secret.write_text("x")
    for cache in file_guard.framework_caches():
        if cache.parent.is_dir():
            cache.mkdir(exist_ok=True)
    held = landlock.forbid_reading([secret])
    try:
        secret.read_text()
        closed = False
    except OSError:
        closed = True
    print(f"Landlock {{'closes test files' if held and closed else 'is not there: Python alone watches test files'}}")
    with forbid_network():
        x = torch.randn(64, 64, device="{device}")
        assert bool(((x @ x).sum() * 0 == 0).item())
        print("products are computed")
        if "{device}" == "cpu":
            print("without a GPU nothing is compiled")
        else:
            compiled = torch.compile(lambda x: (x.sin() * 2).sum())(x)
            torch.testing.assert_close(compiled, (x.sin() * 2).sum(), rtol=1e-4, atol=1e-3)
            print("torch.compile works")
    done.append(True)
thread = threading.Thread(target=trial)
thread.start()
thread.join()
sys.exit(not done)
"""


def memory(device: torch.device) -> Outcome:
    """The planned memory of a small training beside what the GPU held."""
    if device.type == "cpu":
        return "skipped", NO_GPU
    kind = registry().method("dexml")
    settings = {"negatives": "all", "encoder": {"name": "tiny"}, "batch_size": 512}
    config = kind.thing.Config.model_validate(settings).model_dump(mode="json")
    with tempfile.TemporaryDirectory(prefix="xmcbench-check-") as folder:
        root = Path(folder)
        trial = Trial(
            label="check", method="dexml", distribution=kind.origin.distribution, version="0", config=config,
            dataset=DATASET, dataset_hash="", seed=0, budget=Budget(steps=STEPS),
        )  # fmt: skip
        planned = Planner(root / "data", root / "cache", MACHINES["h100"]).plan(trial).memory.total
        from xmcbench.data import load

        train = load(trial.dataset, root / "data", root / "cache").training_data()
        torch.get_device_module(device).reset_peak_memory_stats()
        (root / "checkpoint").mkdir()
        build_method(trial).fit(train, Run(0, trial.budget, root / "checkpoint", root / "cache"))
    held = device_peak_memory() or 0
    text = f"{held / 1e9:.2f} GB held, {planned / 1e9:.2f} planned (expected {LEAST:g} to {MOST:g} of it)"
    if LEAST * planned <= held <= MOST * planned:
        return "ok", text
    return "FAILED", text, "leave room: plans of memory are not right on this machine"


CHECKS: dict[str, Callable[[torch.device], Outcome]] = {
    "versions": versions,
    "GPUs": gpus,
    "kernels": kernels,
    "equal to the CPU": equality,
    "sandbox and compiler": sandbox,
    "memory of a step": memory,
}


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _numbers(device: torch.device) -> Iterator[Tensor]:
    """A loss, its gradients, dropout masks and the rows of a table after a step, computed on `device`."""
    rng = torch.Generator().manual_seed(0)
    queries_BD, labels_SD = (normalize(torch.randn(count, 64, generator=rng), dim=1) for count in (64, 500))
    pairs_P = torch.arange(64)
    positives = Positives(pairs_P, pairs_P * 7, 64, 500).to(device)
    queries_BD, labels_SD = (rows.to(device).requires_grad_() for rows in (queries_BD, labels_SD))
    loss = losses.decoupled_softmax(queries_BD, labels_SD, positives, positives.every(), temperature=0.05)
    loss.backward()  # type: ignore[no-untyped-call]
    yield loss.detach()
    for rows in (queries_BD, labels_SD):
        assert rows.grad is not None, "the loss has a gradient"
        yield rows.grad
    with SeededDropout(text_seeds(3, "query", np.arange(64))):
        yield dropout(torch.ones(64, 33, device=device), 0.3)
    table = LabelTable(torch.arange(100), 16, TableConfig(learning_rate=0.05), seed=3)
    table.fill(lambda block, generator: block.normal_(generator=generator))
    table = table.to(device)
    table(torch.arange(0, 100, 3)).sin().sum().backward()
    table.step(0.05)
    yield table.weight
