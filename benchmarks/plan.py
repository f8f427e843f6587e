"""What `xmcbench plan` predicts against what trials take: operations, steps, and the peak memory of a worker.

Each trial runs in a worker of its own, as `xmcbench run` has it, on a small budget: the peak is reached in a few steps.

    python benchmarks/plan.py                  # several methods, batches and precisions on made data
    python benchmarks/plan.py --encoder minilm --tokens 30000
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from report import options, report

from xmcbench.data.prepared import default_cache_dir
from xmcbench.engine.planning.accelerators import HERE, accelerator
from xmcbench.engine.planning.trials import Machine, Planner, TrialPlan
from xmcbench.engine.planning.workload import Lengths
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record

METHODS: dict[str, dict[str, Any]] = {
    "in-batch": {"method": "dexml", "negatives": "in-batch"},
    "hard": {"method": "dexml", "negatives": "hard", "negatives_per_query": 2, "refresh_start": 1, "refresh_every": 2},
    "all": {"method": "dexml", "negatives": "all"},
    "unidec": {"method": "unidec", "refresh_start": 1, "refresh_every": 2},
    "prime": {"method": "prime", "free_vectors": 512, "cluster_start": 1, "cluster_every": 1},
    "ova": {"method": "ova"},
    "ngame": {"method": "ngame", "cluster_size": 4, "cluster_start": 1, "cluster_every": 1},
}


class Silent(Display):
    """A display that says which trial begins."""

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        print(f"[{number}/{total}] {planned.trial.label}", flush=True)


def suite(asked: argparse.Namespace, path: Path) -> Path:
    """A suite of every method, batch and precision."""
    chosen = {name: METHODS[name] for name in asked.methods}
    content = {
        "name": "plan", "datasets": [asked.dataset], "encoder": {"name": asked.encoder},
        "budget": {"encoder_tokens": asked.tokens}, "methods": chosen,
        "sweep": {"batch_size": asked.batch, "precision": asked.precision},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def compare(plan: TrialPlan, record: Record) -> dict[str, Any]:
    """One row: predicted, measured, and the ratio of the two."""
    spent = record.spent
    flops, peak = float(spent["flops"]), float(spent["worker_bytes"][0])
    return {
        "trial": record.trial.label, "status": str(record.status),
        "steps": spent["steps"], "steps ratio": plan.steps / spent["steps"],
        "pool": spent["pool_labels"] / spent["steps"], "flops": flops, "flops ratio": plan.flops / flops,
        "memory": peak, "memory ratio": plan.memory.total / peak,
    }  # fmt: skip


def main() -> None:
    parser = options(
        __doc__, dataset="catalog-1k", encoder="tiny", batch=[64, 256], precision=["float32"],
        tokens=(120_000, "budget of each trial: PRIME encodes all texts first"), data=Path("data"),
    )  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--store", type=Path, help="keeps the trials, so that a second time runs none")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = suite(asked, Path(directory) / "suite.yaml")
        store = asked.store or Path(directory) / "results"
        runner = Runner(Settings(path, asked.data, store))
        records = runner.run(runner.plan(), Silent())
    planner = Planner(asked.data, default_cache_dir(), Lengths(), Machine(accelerator(HERE)))
    rows = []
    for record in records:
        if record.spent.get("worker_bytes"):
            rows.append(compare(planner.plan(record.trial), record))
            print(json.dumps(rows[-1]), flush=True)
        else:
            print(f"{record.trial.label}: {record.failure.message if record.failure else record.status}", flush=True)
    for name, bound in (("flops ratio", 0.05), ("memory ratio", 0.15)):
        worst = max((abs(row[name] - 1) for row in rows), default=0.0)
        print(f"{name}: at most {worst:.1%} off (aim: {bound:.0%})")
    report("plan", rows, asked.out)


if __name__ == "__main__":
    main()
