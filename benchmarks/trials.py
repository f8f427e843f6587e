"""Whole trials as `xmcbench run` has them: what they take beside their own work, what workers bring, what a plan says.

python benchmarks/trials.py overhead             # many small trials in a row; some are run again alone
python benchmarks/trials.py plan --markdown docs/plan.md    # predicted beside measured operations, steps and memory
python benchmarks/trials.py workers              # one worker against two, without and with Ray
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import psutil
import yaml
from report import Rows, options, report

from xmcbench.data.prepared import default_cache_dir
from xmcbench.runs.executor import Executor
from xmcbench.runs.local import LocalExecutor
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner, Settings
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

NANO = {"encoder": {"name": "nano"}, "batch_size": 32}
SMALL: dict[str, dict[str, Any]] = {"popular": {}, "tfidf-nn": {}, "dexml": NANO, "ova": NANO}
AGAIN = 4  # trials that are run again in a run of their own
PLANNED: dict[str, dict[str, Any]] = {
    "in-batch": {"method": "dexml", "negatives": "in-batch"},
    "hard": {"method": "dexml", "negatives": "hard", "negatives_per_query": 2, "refresh_start": 1, "refresh_every": 2},
    "all": {"method": "dexml", "negatives": "all"},
    "unidec": {"method": "unidec", "refresh_start": 1, "refresh_every": 2},
    "prime": {"method": "prime", "free_vectors": 512, "cluster_start": 1, "cluster_every": 1},
    "ova": {"method": "ova"},
    "ngame": {"method": "ngame", "cluster_size": 4, "cluster_start": 1, "cluster_every": 1},
}


class Watch(Display):
    """Notes when the first trial begins, the seconds of each, and the memory of the server that forks them."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.before: float | None = None
        self.seconds: list[float] = []
        self.server_bytes: list[int] = []

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        self.begun = time.perf_counter()
        self.before = self.before or self.begun - self.start
        print(f"[{number}/{total}] {planned.trial.label}", flush=True)

    def end(self, planned: PlannedTrial, record: Record) -> None:  # noqa: ARG002
        self.seconds.append(time.perf_counter() - self.begun)
        self.server_bytes.append(max((child.memory_info().rss for child in psutil.Process().children()), default=0))


def run(
    suite: dict[str, Any], store: Path, data: Path = Path("data"), **settings: Any
) -> tuple[Sequence[Record], Watch]:
    """The records of a suite. Raises SystemExit if a trial fails."""
    path = store.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    runner = Runner(Settings(path, data, store, **settings))
    plan, watch = runner.plan(), Watch()
    records = runner.run(plan, watch)
    if failed := [record.failure.message for record in records if record.failure]:
        raise SystemExit(failed[0])
    return records, watch


def small_suite(methods: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    chosen = {name: {"method": name, **SMALL[name]} for name in methods}
    return {"name": "small", "datasets": ["catalog-100"], "budget": {"steps": 3}, "seeds": seeds, "methods": chosen}


def differs_alone(record: Record, root: Path) -> bool:
    """Whether the trial makes other predictions in a run of its own than among the others."""
    trial = record.trial
    (own,), _ = run(small_suite([trial.method], [trial.seed]), root / record.key)
    pair = [Store(root / store).predictions(found)[0] for store, found in (("all", record), (record.key, own))]
    return not all(np.array_equal(*(getattr(found, name) for found in pair)) for name in ("indices", "scores"))


def overhead(trials: int = 200) -> Rows:
    """The wall clock of a trial, less what its ledger's stages took, and whether neighbours change any of them."""
    with tempfile.TemporaryDirectory() as folder:
        root, start = Path(folder), time.perf_counter()
        records, watch = run(small_suite([*SMALL], list(range(-(-trials // len(SMALL))))), root / "all")
        seconds = (time.perf_counter() - start) / len(records)
        own = fmean(sum(record.spent["stage_seconds"].values()) for record in records)
        sample = records[:: max(1, len(records) // AGAIN)][:AGAIN]
        changed = sum(differs_alone(record, root) for record in sample)
    return [
        {"what": "trials", "value": len(records)},
        {"what": "seconds per trial", "value": seconds},
        {"what": "in its ledger's stages, mean", "value": own},
        {"what": "overhead per trial", "value": seconds - own},
        {"what": "server process, MB, in the first 5 trials", "value": median(watch.server_bytes[:5]) / 1e6},
        {"what": "server process, MB, in the last 5 trials", "value": median(watch.server_bytes[-5:]) / 1e6},
        {"what": f"of {len(sample)} run again alone: other predictions", "value": changed},
    ]  # fmt: skip


def plan(asked: Any, root: Path) -> Rows:
    """Predicted over measured: the peak is reached in a few steps of a small budget."""
    from xmcbench.engine.planning.trials import HERE, Planner, machine_called

    suite = {
        "name": "plan", "datasets": [asked.dataset or "catalog-1k"], "encoder": {"name": asked.encoder},
        "budget": {"encoder_tokens": asked.tokens}, "methods": {name: PLANNED[name] for name in asked.methods},
        "sweep": {"batch_size": asked.batch, "precision": asked.precision},
    }  # fmt: skip
    records, _ = run(suite, root / "plan")
    planner, rows = Planner(Path("data"), default_cache_dir(), machine_called(HERE)), []
    for record in records:
        spent, planned = record.spent, planner.plan(record.trial)
        flops, peak = float(spent["flops"]), float(spent["worker_bytes"][0])
        rows.append(
            {"dataset": record.trial.dataset, "encoder": asked.encoder, "trial": record.trial.label,
             "steps": spent["steps"], "steps ratio": planned.steps / spent["steps"],
             "s/step": spent["stage_seconds"]["train"] / spent["steps"],
             "pool": spent["pool_labels"] / spent["steps"], "flops": flops, "flops ratio": planned.flops / flops,
             "memory": peak, "memory ratio": planned.memory.total / peak}
        )  # fmt: skip
    for name, bound in (("flops ratio", 0.05), ("memory ratio", 0.15)):
        print(f"{name}: at most {max(abs(row[name] - 1) for row in rows):.1%} off (aim: {bound:.0%})")
    return rows


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row of `plan` as the document shows it."""
    place = {name: row[name] for name in ("dataset", "encoder", "trial")}
    place |= {"steps": f"{row['steps']:,}", "measured GB": f"{row['memory'] / 1e9:.2f}"}
    return place | {f"{name}, plan / measured": f"{row[f'{name} ratio']:.2f}" for name in ("memory", "steps", "flops")}


DOCUMENTED = shown, ("dataset", "encoder", "trial")


def workers(asked: Any, root: Path) -> Rows:
    """Tokens a second of one worker and of two; seconds of idle trials, with and without Ray."""
    from xmcbench.runs.ray import RayExecutor

    os.environ["OMP_NUM_THREADS"] = "1"  # of each worker
    suite = {
        "name": "throughput", "datasets": [asked.dataset or "catalog-4k"], "budget": {"steps": asked.steps},
        "methods": {"all": {"method": "dexml", "negatives": "all", "batch_size": 512}},
        "settings": {"encoder": {"name": "tiny", "hidden_dropout": 0.0}},
    }  # fmt: skip
    idle = {
        "name": "overhead", "datasets": ["catalog-300"], "seeds": [0, 1, 2], "budget": {"steps": 1},
        "methods": {"untrained": {"method": "untrained", "encoder": "tiny"}},
    }  # fmt: skip
    rows: Rows = []
    for count in (1, 2):
        (record,), _ = run(suite, root / f"throughput-{count}", share=Share(workers=count))
        tokens = record.spent["encoder_tokens"] / record.spent["stage_seconds"]["train"]
        rows.append({"what": "throughput", "workers": count, "tokens/s": tokens})
        rows[-1]["speed-up"] = tokens / rows[0]["tokens/s"]
    for count in (1, 2):
        share = Share(workers=count, cpus=float(os.cpu_count() or 1) / count)  # one trial at a time
        executors: dict[str, Executor] = {"local": LocalExecutor(), "ray": RayExecutor()}
        for name, executor in executors.items():
            _, watch = run(idle, root / f"{name}-{count}", executor=executor, share=share)
            seconds = {"s before the first": watch.before, "s/trial": median(watch.seconds)}
            rows.append({"what": f"idle, {name}", "workers": count, **seconds})
    return rows


def main() -> None:
    parser = options(
        __doc__, trials=(200, "of overhead"), steps=(12, "of workers"), encoder=("tiny", "of plan"),
        batch=([64, 256], "of plan"), tokens=(120_000, "of each trial of plan: PRIME encodes all texts first"),
        precision=(["float32"], "of plan"),
    )  # fmt: skip
    parser.add_argument("what", choices=["overhead", "plan", "workers"])
    parser.add_argument("--dataset", help="in place of each benchmark's own")
    parser.add_argument("--methods", nargs="+", choices=PLANNED, default=list(PLANNED), help="of plan")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure = {"plan": plan, "workers": workers}.get(asked.what)
        rows = measure(asked, Path(folder)) if measure else overhead(asked.trials)
    report(f"trials_{asked.what}", rows, asked, *(DOCUMENTED if asked.what == "plan" else ()))


if __name__ == "__main__":
    main()
