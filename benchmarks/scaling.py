"""What a training step costs as the label set, the batch and the number of workers grow.

The whole engine: sampler, encoder `tiny`, gradient cache, decoupled softmax, AdamW, on random texts of 4 to 12 tokens.
Each case runs in processes of its own, so that its peak memory is its own.

    python benchmarks/scaling.py --labels 4096 16384 --batch 256 --workers 1 2
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from report import options, report, seconds_of
from step_profile import take_step

VOCABULARY_TEXTS = ["alpha beta gamma delta", "epsilon zeta eta theta"]


@dataclass(frozen=True)
class Case:
    """A step over `labels` labels and `batch` queries on `workers` workers."""

    labels: int
    batch: int
    workers: int
    steps: int
    threads: int
    activation_gib: float
    precision: str


def train(case: Case, rank: int, meeting: str, results: Any) -> None:
    """One worker's part of a case; worker 0 reports the seconds per step and the bytes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(case.threads)
    if case.workers > 1:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=case.workers)
    with tempfile.TemporaryDirectory() as directory:
        steps = make_steps(case, Path(directory))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        take_step(steps, 0)  # the first step allocates
        seconds = [seconds_of(partial(take_step, steps, number + 1)) for number in range(case.steps)]
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results.put((float(np.median(seconds)), (peak - before) / 1024))
    if case.workers > 1:
        dist.destroy_process_group()


def make_steps(case: Case, root: Path) -> Any:
    """Training steps of DEXML with the whole label set as its pool, on random tokens."""
    import scipy.sparse as sp

    from xmcbench.data.dataset import DatasetCard, TrainingData
    from xmcbench.engine.training.steps import TrainingSteps
    from xmcbench.trial.budget import Budget
    from xmcbench.trial.run import Run
    from xmcbench_dexml import DEXML

    rng = np.random.default_rng(0)
    queries = case.batch * (case.steps + 2)
    card = DatasetCard(name="random", num_train=queries, num_test=1, num_labels=case.labels, max_length=16)
    rows, columns = np.arange(queries), rng.integers(0, case.labels, queries)
    targets = sp.csr_array((np.ones(queries, np.float32), (rows, columns)), (queries, case.labels))
    nothing = sp.csr_array((queries, case.labels), dtype=np.float32)
    settings = {
        "encoder": {"name": "tiny", "hidden_dropout": 0.0},
        "negatives": "all",
        "batch_size": case.batch,
        "precision": case.precision,
        "activation_gib": case.activation_gib,
    }
    method = DEXML(DEXML.Config.model_validate(settings))
    run = Run(seed=0, budget=Budget(steps=10**9), checkpoint=root / "checkpoint", cache=root / "cache")
    train = TrainingData(card, VOCABULARY_TEXTS, targets, ["alpha"] * case.labels, nothing)
    method.prepare(train, run)
    method.queries, method.labels = random_tokens(queries, rng), random_tokens(case.labels, rng)
    return TrainingSteps(method, train)


def random_tokens(count: int, rng: np.random.Generator) -> Any:
    from xmcbench.data.tokens import Tokens

    lengths = rng.integers(4, 13, count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return Tokens.from_offsets(rng.integers(4, 30, offsets[-1]).astype(np.int32), offsets)


def measure(case: Case) -> dict[str, Any]:
    """Run a case, and say what it took."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        meeting = f"file://{directory}/meeting"
        processes = [context.Process(target=train, args=(case, rank, meeting, results)) for rank in range(case.workers)]
        for process in processes:
            process.start()
        seconds, megabytes = results.get(timeout=3600)
        for process in processes:
            process.join()
    texts = case.labels + case.batch
    row = {name: value for name, value in asdict(case).items() if name not in ("steps", "precision")}
    return row | {"s/step": seconds, "texts/s": texts / seconds, "MiB of worker 0": megabytes}


def exponent(sizes: list[float], costs: list[float]) -> float:
    """The slope of cost against size, both logarithmic: 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    parser = options(
        __doc__, labels=[4096, 16384, 65536, 131072], batch=([256], "queries a step"), workers=[1],
        threads=(1, "of each worker"), steps=(2, "timed steps of a case"),
        activation_gib=(0.0, "activations kept; what fits is embedded once, the rest twice: a limit bends the line"),
    )  # fmt: skip
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    asked = parser.parse_args()
    rows = []
    for workers in asked.workers:
        for batch in asked.batch:
            for labels in asked.labels:
                case = Case(labels, batch, workers, asked.steps, asked.threads, asked.activation_gib, asked.precision)
                rows.append(measure(case))
                print(json.dumps(rows[-1]), flush=True)
            if len(asked.labels) > 1:
                mine = rows[-len(asked.labels) :]
                slope = exponent(asked.labels, [row["s/step"] for row in mine])
                print(f"time grows with L to the power {slope:.3f} ({workers} workers, batch {batch})")
    report("scaling", rows, asked.out)


if __name__ == "__main__":
    main()
