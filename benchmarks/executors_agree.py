"""Whether every method of a suite ends the same with one local worker and with several in Ray: figures, keys, ledger.

Each trial is run twice, for a few steps, in stores of its own.

    python benchmarks/executors_agree.py suites/methods.yaml --steps 16 --workers 2
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from report import options, report

from xmcbench.runs.executor import Executor
from xmcbench.runs.local import LocalExecutor
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.ray import RayExecutor
from xmcbench.runs.runner import Runner, Settings
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record

COUNTED = ("steps", "queries", "encoder_tokens")


class Told(Display):
    """A display of a line a trial."""

    def end(self, planned: PlannedTrial, record: Record) -> None:
        print(f"{planned.trial.label}: {record.status}, workers: {record.workers}", flush=True)


def run(asked: argparse.Namespace, root: Path, executor: Executor, workers: int) -> dict[str, Record]:
    """The records of the suite by label, with so many workers."""
    settings = Settings(
        asked.suite,
        Path("data"),
        root,
        sets=[f"budget={json.dumps({'steps': asked.steps})}", *asked.set],
        datasets=[asked.dataset],
        only=asked.only,
        executor=executor,
        share=Share(workers=workers),
    )
    runner = Runner(settings)
    return {record.trial.label: record for record in runner.run(runner.plan(), Told())}


def compare(label: str, alone: Record, together: Record) -> dict[str, Any]:
    """One row: how far two records of a trial are apart."""
    apart = max((abs(together.metrics[name] - value) for name, value in alone.metrics.items()), default=float("nan"))
    return {
        "trial": label,
        "status": str(together.status),
        "workers": together.workers,
        "same key": alone.key == together.key,
        "same ledger": all(alone.spent[name] == together.spent[name] for name in COUNTED),
        "P@1": together.metrics.get("P@1", float("nan")),
        "largest difference": apart,
    }


def main() -> None:
    parser = options(__doc__, steps=16, workers=2, dataset="catalog-300", only="*")
    parser.add_argument("suite", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        alone = run(asked, Path(directory) / "local", LocalExecutor(), 1)
        together = run(asked, Path(directory) / "ray", RayExecutor(), asked.workers)
    report("executors_agree", [compare(label, record, together[label]) for label, record in alone.items()], asked.out)


if __name__ == "__main__":
    main()
