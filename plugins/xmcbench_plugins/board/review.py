"""The review of submissions: the state of each accepted trial.

A trial is `verified` if fresh runs of the maintainers are equivalent to it, `retrained` if a training with its seed
agrees, `recomputed` if its metrics follow from its predictions, and `imported` if another program made its predictions
or they are not at hand.

Fresh runs verify a result, which is all accepted trials that differ in their seed alone: two one-sided tests at 5 %
each, over test queries and seeds, have to find every metric of the fresh runs within `MARGIN` of the accepted ones;
otherwise the verification says within which margin they are. Of a training with the trial's own seed the metrics,
steps, tokens and operations have to agree.

The verifications are in a file of the maintainers, outside the submissions: no submission can claim to be verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import difference
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.rows import Reproduced
from xmcbench.reporting.text_table import Heading, TextTable, render_tables
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store
from xmcbench_plugins.board.verified import (
    FEWEST_SEEDS,
    Retraining,
    Verification,
    read_verifications,
    record_digest,
    reproduced,
)

_COSTS = (
    "Costs: steps, tokens and operations counted again from the settings, or stated. Seconds and memory are stated."
)


@dataclass(frozen=True)
class Checked:
    """An accepted trial after its check."""

    record: Record
    problems: tuple[str, ...]
    recomputed: bool  # its metrics follow from its predictions
    verification: Verification | Retraining | None  # how close the runs of the maintainers are
    costs: str  # whether steps, tokens and operations were recounted; empty: they were not looked at

    @property
    def state(self) -> str:
        """The degree to which the trial has been verified."""
        if self.problems:
            return "rejected"
        if not self.recomputed or isinstance(self.record.trial.budget, UnknownBudget):
            return "imported"
        found = reproduced(self.verification)
        return "recomputed" if found in (None, Reproduced.NOT) else str(found)


def comment(checked: Sequence[Checked]) -> str:
    """The review as Markdown, for a comment on a pull request."""
    names = ("trial", "key", "state", "trained again", "costs", "problems")
    rows = []
    for one in checked:
        trial, again, problems = one.record.trial, str(one.verification or "-"), "; ".join(one.problems) or "none"
        rows.append((f"{trial.dataset}/{trial.label}", one.record.key, one.state, again, one.costs, problems))
    table = TextTable("Submissions", tuple(Heading(name, left=True) for name in names), tuple(rows), (_COSTS,))
    return render_tables([table], "markdown") + "\n"


HEADER = "# Written by `xmcbench submit KEY --verify` and `--retrain`, which maintainers run (docs/leaderboard.md).\n"
COSTS = ("steps", "encoder_tokens", "flops")


def write_verification(found: Verification | Retraining, path: Path) -> None:
    """Add what was found to a file, in place of what it says of the same trials."""
    content = read_verifications(path).model_dump(mode="json")
    name = "verified" if isinstance(found, Verification) else "retrained"
    others = [own for own in content[name] if not own["records"].keys() & found.records.keys()]
    content[name] = sorted([*others, found.model_dump(mode="json")], key=lambda own: min(own["records"]))
    content = {name: listed for name, listed in content.items() if listed}
    with atomic_write(path) as file:
        file.write((HEADER + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)).encode())


def verify(accepted: Store, record: Record, fresh: Store) -> Verification:
    """Compare an accepted result, of which `record` is a trial, with the runs of it in `fresh` that have other seeds.

    Raises `XMCBenchError` if there are too few runs, or if they answer to other test targets.
    """
    theirs = {own.trial.seed: own for own in accepted.records() if _same(own, record)}
    runs = {own.trial.seed: own for own in fresh.records() if _same(own, record) and own.trial.seed not in theirs}
    if len(runs) < FEWEST_SEEDS:
        raise XMCBenchError(
            f"{record.key}: found {len(runs)} runs of this trial, expected {FEWEST_SEEDS} or more, each of another "
            f"seed; `xmcbench show {record.key} --format suite` prints its suite"
        )
    if {own.truth_hash for own in runs.values()} != {record.truth_hash}:
        raise XMCBenchError(f"{record.key}: the runs answer to other test targets than the accepted trial")
    names = list(record.metrics)
    of_theirs, of_runs = (
        stored_samples(store, [own[seed] for seed in sorted(own)], names)
        for store, own in ((accepted, theirs), (fresh, runs))
    )
    if missing := [name for name in names if name not in of_theirs or name not in of_runs]:
        raise XMCBenchError(f"{record.key}: no resamples of {', '.join(missing)} are stored: rescore the runs")
    margins = {name: difference(of_theirs[name], of_runs[name]).equivalence_margin for name in names}
    return Verification(
        records={own.key: record_digest(accepted, own) for own in theirs.values()},
        commits=sorted(set(map(_commit, runs.values()))),
        seeds=sorted(runs),
        margins={name: round(100 * margin, 4) for name, margin in margins.items()},
    )


def compare_retrained(accepted: Store, record: Record, again: Record) -> Retraining:
    """Compare an accepted trial with a training of it.

    Raises `XMCBenchError` if that did not end well, or answers to other test targets.
    """
    if again.status is not Status.OK or not record.metrics.keys() <= again.metrics.keys():
        raise XMCBenchError(f"{record.key}: trained again, it ended {again.status}")
    if again.truth_hash != record.truth_hash:
        raise XMCBenchError(f"{record.key}: trained again, it answers to other test targets than the accepted trial")
    clock = record.trial.budget.device_seconds is not None  # what fits into seconds is another amount each time
    costs = {name: (record.spent.get(name, 0), again.spent.get(name, 0)) for name in COSTS if not clock}
    return Retraining(
        records={record.key: record_digest(accepted, record)},
        commits=[_commit(again)],
        points={name: round(100 * abs(value - again.metrics[name]), 4) for name, value in record.metrics.items()},
        costs={name: round((own + 1) / (other + 1), 6) for name, (own, other) in costs.items()},
    )


def _same(first: Record, second: Record) -> bool:
    """Whether both ended well and ran the same trial, seeds, labels and release aside, and have the same metrics."""
    trials = [record.trial.changed(label="").but_seed for record in (first, second)]
    ended = first.status is Status.OK
    return ended and trials[0] == trials[1] and first.metrics.keys() >= second.metrics.keys()


def _commit(run: Record) -> str:
    return str((run.provenance.get("git") or {}).get("commit"))
