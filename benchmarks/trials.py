"""What `xmcbench plan` says beside what trials take: operations, steps and memory, in the table of docs/plan.md.

    python benchmarks/trials.py plan --markdown docs/plan.md

`run` is how other benchmarks run the trials of a suite.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from report import Rows, options, report

from xmcbench.data.prepared import default_cache_dir
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record

PLANNED: dict[str, dict[str, Any]] = {
    "in-batch": {"method": "dexml", "negatives": "in-batch"},
    "hard": {"method": "dexml", "negatives": "hard", "negatives_per_query": 2, "refresh_start": 1, "refresh_every": 2},
    "all": {"method": "dexml", "negatives": "all"},
    "unidec": {"method": "unidec", "refresh_start": 1, "refresh_every": 2},
    "prime": {"method": "prime", "free_vectors": 512, "cluster_start": 1, "cluster_every": 1},
    "ova": {"method": "ova"},
    "ngame": {"method": "ngame", "cluster_size": 4, "cluster_start": 1, "cluster_every": 1},
}


class Printed(Display):
    """Prints a line when a trial begins."""

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        print(f"[{number}/{total}] {planned.trial.label}", flush=True)


def run(suite: dict[str, Any], store: Path, data: Path = Path("data"), **settings: Any) -> Sequence[Record]:
    """The records of a suite. Raises SystemExit if a trial fails."""
    path = store.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    runner = Runner(Settings(path, data, store, **settings))
    records = runner.run(runner.plan(), Printed())
    if failed := [record.failure.message for record in records if record.failure]:
        raise SystemExit(failed[0])
    return records


def plan(asked: Any, root: Path) -> Rows:
    """Predicted over measured: the peak is reached in a few steps of a small budget."""
    from xmcbench.engine.planning.trials import HERE, Planner, machine_called

    suite = {
        "name": "plan", "datasets": [asked.dataset], "encoder": {"name": asked.encoder},
        "budget": {"encoder_tokens": asked.tokens}, "methods": {name: PLANNED[name] for name in asked.methods},
        "sweep": {"batch_size": asked.batch, "precision": asked.precision},
    }  # fmt: skip
    records = run(suite, root / "plan")
    planner, rows = Planner(Path("data"), default_cache_dir(), machine_called(HERE)), []
    for record in records:
        spent, planned = record.spent, planner.plan(record.trial)
        flops, peak = float(spent["flops"]), float(spent["worker_bytes"][0])
        rows.append(
            {"dataset": record.trial.dataset, "encoder": asked.encoder, "trial": record.trial.label,
             "steps": spent["steps"], "steps ratio": planned.ledger.steps / spent["steps"],
             "s/step": spent["stage_seconds"]["train"] / spent["steps"],
             "pool": spent["pool_labels"] / spent["steps"], "flops": flops, "flops ratio": planned.ledger.flops / flops,
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


def main() -> None:
    parser = options(
        __doc__, dataset="catalog-1k", encoder="tiny", batch=[64, 256], precision=["float32"], methods=PLANNED,
        tokens=(120_000, "of each trial: PRIME encodes all texts first"),
    )  # fmt: skip
    parser.add_argument("what", choices=["plan"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = plan(asked, Path(folder))
    report("trials_plan", rows, asked, shown, by=("dataset", "encoder", "trial"))


if __name__ == "__main__":
    main()
