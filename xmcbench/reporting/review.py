"""The review of submissions: the state of each accepted trial, and what it gains over the others of its dataset.

A trial is `verified` if maintainers ran it again and its metrics lie within the corridor of their runs, `recomputed` if
its metrics follow from its predictions, and `imported` if another program made its predictions or they are not at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xmcbench.evaluation.comparison import compare_resampled
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import TextTable, render_tables
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

REFERENCES = 3  # trials that a submission is compared with, the best ones
State = Literal["verified", "recomputed", "imported", "rejected"]


@dataclass(frozen=True)
class Checked:
    """An accepted trial after its check."""

    record: Record
    problems: tuple[str, ...]
    recomputed: bool  # its metrics follow from its predictions
    verified: bool = False  # its metrics lie within the corridor of the runs of the maintainers

    @property
    def state(self) -> State:
        """How far others may rely on the trial."""
        if self.problems:
            return "rejected"
        if not self.recomputed or isinstance(self.record.trial.budget, UnknownBudget):
            return "imported"
        return "verified" if self.verified else "recomputed"


def comment(store: Store, checked: Sequence[Checked]) -> str:
    """The review as Markdown, for a comment on a pull request."""
    rows = tuple(
        (
            f"{one.record.trial.dataset}/{one.record.trial.label}",
            one.record.key,
            one.state,
            "; ".join(one.problems) or "none",
        )
        for one in checked
    )
    table = TextTable("Submissions", ("trial", "key", "state", "problems"), rows)
    compared = [_references(store, one.record, [o.record for o in checked]) for one in checked if not one.problems]
    return render_tables([table, *(other for other in compared if other)], "markdown") + "\n"


def _references(store: Store, record: Record, others: Sequence[Record]) -> TextTable | None:
    """The paired differences of a trial from the best others on the same data; None where there are none."""
    metric = "P@1" if "P@1" in record.metrics else next(iter(record.metrics))
    near = [o for o in others if o.key != record.key and o.truth_hash == record.truth_hash and metric in o.metrics]
    near.sort(key=lambda other: -other.metrics[metric])
    names = list(record.metrics)
    rows = []
    for other in near[:REFERENCES]:
        kept = store.resampled(record, names), store.resampled(other, names)
        for compared in compare_resampled((record.metrics, other.metrics), kept):
            low, high = compared.difference.interval
            verdict = "significant" if compared.difference.significant else "not significant"
            name = f"{other.trial.label}, {budget_text(other.trial.budget.limits())}"
            difference = f"{100 * compared.difference.value:+.2f}"
            rows.append((name, compared.name, difference, f"{100 * low:+.2f} to {100 * high:+.2f}", verdict))
    title = f"{record.trial.dataset}/{record.trial.label} minus reference trials (paired bootstrap)"
    return TextTable(title, ("reference", "metric", "difference", "95 %", ""), tuple(rows)) if rows else None
