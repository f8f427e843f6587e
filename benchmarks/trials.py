"""What a trial costs beside its own work: many small trials in a row, and whether neighbours change any of them.

The trials of a suite are run in one go, then some of them again, each in a store and a process of its own. The overhead
of a trial is the wall clock of the run, divided by the number of trials, less what its ledger's stages took.

    python benchmarks/trials.py --trials 200
    python benchmarks/trials.py --trials 20 --methods popular dexml
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import fmean, median

import numpy as np
import psutil
import yaml
from report import options, report

from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.store import Store

SETTINGS = {
    "dexml": {"encoder": {"name": "nano"}, "batch_size": 32},
    "ova": {"encoder": {"name": "nano"}, "batch_size": 32},
}


class ServerMemory(Display):
    """Notes the resident memory of this process's children when a trial ends."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None: ...

    def wait(self, planned: PlannedTrial) -> None: ...

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None: ...

    def end(self, planned: PlannedTrial, record: Record) -> None:  # noqa: ARG002
        self.bytes.append(max(child.memory_info().rss for child in psutil.Process().children()))


def run(methods: list[str], seeds: range, root: Path, display: Display) -> tuple[list[Record], float]:
    """The records of a suite of these methods and seeds, and the wall-clock seconds of the run."""
    root.mkdir(exist_ok=True)
    suite = {"name": "small", "datasets": ["catalog-100"], "budget": {"steps": 3}, "seeds": list(seeds)}
    suite |= {"methods": {name: {"method": name, **SETTINGS.get(name, {})} for name in methods}}
    path = root / "suite.yaml"
    path.write_text(yaml.safe_dump(suite))
    runner = Runner(Settings(suite=path, data=root, store=root / "results", cache=root.parent / "cache"))
    plan = runner.plan()
    start = time.perf_counter()
    return runner.run(plan, display), time.perf_counter() - start


def differs_alone(record: Record, root: Path, display: Display) -> bool:
    """Whether the trial makes other predictions in a run of its own than among the others."""
    trial = record.trial
    (alone,), _ = run([trial.method], range(trial.seed, trial.seed + 1), root / record.key, display)
    assert alone.key == record.key
    stores = (Store(root / folder / "results") for folder in ("together", record.key))
    together, by_itself = (store.predictions(own)[0] for store, own in zip(stores, (record, alone), strict=True))
    return not all(np.array_equal(getattr(together, name), getattr(by_itself, name)) for name in ("indices", "scores"))


def main() -> None:
    asked = options(
        __doc__, trials=200, methods=["popular", "tfidf-nn", "dexml", "ova"],
        again=(4, "trials that are run again in a process of their own"),
    ).parse_args()  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root, memory = Path(folder), ServerMemory()
        seeds = -(-asked.trials // len(asked.methods))
        records, seconds = run(asked.methods, range(seeds), root / "together", memory)
        assert all(record.metrics for record in records), [record.failure for record in records if record.failure]
        own = [sum(record.spent["stage_seconds"].values()) for record in records]
        rows = [
            {"what": "trials", "value": len(records)},
            {"what": "seconds of the run", "value": seconds},
            {"what": "seconds per trial", "value": seconds / len(records)},
            {"what": "in its ledger's stages, mean", "value": fmean(own)},
            {"what": "overhead per trial", "value": seconds / len(records) - fmean(own)},
            {"what": "server process, MB, in the first 5 trials", "value": median(memory.bytes[:5]) / 1e6},
            {"what": "server process, MB, in the last 5 trials", "value": median(memory.bytes[-5:]) / 1e6},
        ]  # fmt: skip
        sample = records[:: max(1, len(records) // asked.again)][: asked.again]
        changed = sum(differs_alone(record, root, memory) for record in sample)
        rows.append({"what": f"of {len(sample)} run again alone: other predictions", "value": changed})
    report("trials", rows, asked.out)


if __name__ == "__main__":
    main()
