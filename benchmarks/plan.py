"""What `xmcbench plan` says beside what trials take: operations, steps and memory, in the table of docs/plan.md.

    python benchmarks/plan.py --markdown docs/plan.md

Memory is that of the whole trial, answers to test queries included. Most of its peak is reached in a few steps.

    python benchmarks/plan.py --accepted evidence evidence-tibkat --data DIRECTORY --markdown docs/plan.md

compares instead the accepted trials of these suites that draw pools of labels: the steps of trainings of many epochs,
and how many labels a step had.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from report import options, put, report, run
from tabulate import tabulate

from xmcbench.data.prepared import default_cache_dir
from xmcbench.engine.planning.trials import plan_here
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.board.results import ACCEPTED

OF_ACCEPTED = "<!-- table of plan.py --accepted -->"
LABELS, STEPS = "labels, plan / measured", "steps, plan / measured"
FAR = 0.1  # from what was measured
METHODS: dict[str, dict[str, Any]] = {
    "in-batch": {"method": "dexml", "negatives": "in-batch"},
    "hard": {"method": "dexml", "negatives": "hard", "negatives_per_query": 2, "refresh_start": 1, "refresh_every": 2},
    "all": {"method": "dexml", "negatives": "all"},
    "unidec": {"method": "unidec", "refresh_start": 1, "refresh_every": 2},
    "prime": {"method": "prime", "free_vectors": 512, "cluster_start": 1, "cluster_every": 1},
    "ova": {"method": "ova"},
    "ngame": {"method": "ngame", "cluster_size": 4, "cluster_start": 1, "cluster_every": 1},
}


def compared(record: Record, encoder: str, data: Path) -> dict[str, Any]:
    """The row of a trial: measured, and planned over measured."""
    spent, planned = record.spent, plan_here(record.trial, data, default_cache_dir(), workers=1)
    assert planned is not None
    flops, peak = float(spent["flops"]), float(spent["peak_bytes"])
    evaluated = f", {record.trial.selection.queries:,} held out" if record.trial.selection else ""
    return {
        "dataset": record.trial.dataset, "encoder": encoder, "trial": record.trial.label + evaluated,
        "steps": spent["steps"],
        "s/step": spent["stage_seconds"]["train"] / spent["steps"], "pool": spent["pool_labels"] / spent["steps"],
        "memory": peak, "memory ratio": planned.memory.total / peak, "flops": flops,
        "steps ratio": planned.ledger.steps / spent["steps"], "flops ratio": planned.ledger.flops / flops,
        "pool ratio": planned.pool / (spent["pool_labels"] / spent["steps"]),
    }  # fmt: skip


def of_accepted(suites: list[str], data: Path) -> str:
    """Accepted trials of these suites that draw pools, one of each method: a table of those whose plan is far off."""
    rows = dict[tuple[int, str], dict[str, Any]]()
    for record in sorted(Store(ACCEPTED).records(), key=lambda record: record.trial.seed):
        spent, trial = record.spent, record.trial
        known = record.suite in suites and (suites.index(record.suite), trial.label)
        if not known or known in rows or "first" in trial.config or not spent.get("pool_labels"):
            continue
        row = compared(record, "", data)
        rows[known] = {
            "dataset": trial.dataset, "trial": trial.label, "epochs": f"{spent['epochs']:.1f}",
            "labels a step": f"{row['pool']:,.0f}", LABELS: row["pool ratio"],
            "steps": f"{row['steps']:,}", STEPS: row["steps ratio"],
        }  # fmt: skip
    ordered = [row for _, row in sorted(rows.items())]
    far = [row for row in ordered if max(abs(row[name] - 1) for name in (LABELS, STEPS)) > FAR]
    largest = (max(abs(row[name] - 1) for row in ordered if row not in far) for name in (LABELS, STEPS))
    others = "In {} other trials labels a step are at most {:.0%} off, and steps {:.0%}.".format(
        len(ordered) - len(far), *largest
    )
    cells = [{name: f"{own:.2f}" if isinstance(own, float) else own for name, own in row.items()} for row in far]
    return f"{tabulate(cells, headers='keys', tablefmt='pipe', disable_numparse=True)}\n\n{others}"


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row as the document shows it."""
    place = {name: row[name] for name in ("dataset", "encoder", "trial")}
    place |= {"steps": f"{row['steps']:,}", "measured GB": f"{row['memory'] / 1e9:.2f}"}
    return place | {f"{name}, plan / measured": f"{row[f'{name} ratio']:.2f}" for name in ("memory", "steps", "flops")}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dataset", default="catalog-1k")
    parser.add_argument("--encoder", default="tiny")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--held-out", type=int, default=0, help="queries that four evaluations of a trial answer")
    parser.add_argument("--tokens", type=int, default=120_000, help="of each trial: PRIME encodes all texts first")
    parser.add_argument("--accepted", nargs="+", metavar="SUITE", help="compare its accepted trials, and train nothing")
    asked = parser.parse_args()
    if asked.accepted:
        print(table := of_accepted(asked.accepted, asked.data))
        if asked.markdown:
            put(table, asked.markdown, OF_ACCEPTED)
        return
    suite = {
        "name": "plan", "datasets": [asked.dataset], "encoder": {"name": asked.encoder},
        "budget": {"encoder_tokens": asked.tokens}, "methods": {name: METHODS[name] for name in asked.methods},
        "sweep": {"batch_size": asked.batch, "precision": asked.precision},
    }  # fmt: skip
    if asked.held_out:
        suite["selection"] = {"queries": asked.held_out, "metric": "nDCG@5", "evaluations": 4}
    with tempfile.TemporaryDirectory() as folder:
        records = run(suite, Path(folder) / "plan", asked.data)
    rows = [compared(record, asked.encoder, asked.data) for record in records]
    for name, bound in (("flops ratio", 0.05), ("memory ratio", 0.15)):
        print(f"{name}: at most {max(abs(row[name] - 1) for row in rows):.1%} off (aim: {bound:.0%})")
    report("plan", rows, asked.markdown, shown, by=("dataset", "encoder", "trial"))


if __name__ == "__main__":
    main()
