"""The review of submissions: the state of each accepted trial, and what it gains over the others of its dataset.

A trial is `verified` if fresh runs of the maintainers are equivalent to it, `retrained` if one with its seed agrees
(`verification.py`), `recomputed` if its metrics follow from its predictions, and `imported` if another program made its
predictions or they are not at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xmcbench.evaluation.comparison import compare_stored
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import Cell, Heading, TextTable, render_tables
from xmcbench.reporting.verification import Retraining, Verification
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

REFERENCES = 3  # trials that a submission is compared with, the best ones
_COSTS = (
    "Costs: steps, tokens and operations counted again from the settings, or stated. Seconds and memory are stated."
)
State = Literal["verified", "retrained", "recomputed", "imported", "rejected"]


@dataclass(frozen=True)
class Checked:
    """An accepted trial after its check."""

    record: Record
    problems: tuple[str, ...]
    recomputed: bool  # its metrics follow from its predictions
    verification: Verification | Retraining | None = None  # how close the runs of the maintainers are
    costs: str = ""  # whether steps, tokens and operations were recounted; empty: they were not looked at

    @property
    def state(self) -> State:
        """The degree to which the trial has been verified."""
        if self.problems:
            return "rejected"
        if not self.recomputed or isinstance(self.record.trial.budget, UnknownBudget):
            return "imported"
        if isinstance(self.verification, Retraining):
            return "retrained" if self.verification.agrees else "recomputed"
        return "verified" if self.verification and self.verification.verified else "recomputed"


def comment(store: Store, checked: Sequence[Checked], base: Store | None = None) -> str:
    """The review as Markdown, for a comment on a pull request.

    Trials without problems are compared with reference trials; with `base`, only those that are new since then.
    """
    rows = tuple(
        (
            f"{one.record.trial.dataset}/{one.record.trial.label}",
            one.record.key,
            one.state,
            str(one.verification or "-"),
            one.costs,
            "; ".join(one.problems) or "none",
        )
        for one in checked
    )
    headings = [Heading(name, left=True) for name in ("trial", "key", "state", "trained again", "costs", "problems")]
    records = [one.record for one in checked]
    new = [one.record for one in checked if not one.problems and not _is_in(base, one.record)]
    compared = [_references(store, record, records) for record in new]
    tables = [TextTable("Submissions", tuple(headings), rows, (_COSTS,)), *(table for table in compared if table)]
    return render_tables(tables, "markdown") + "\n"


def _is_in(base: Store | None, record: Record) -> bool:
    return base is not None and base.record(record.key) == record


def _references(store: Store, record: Record, others: Sequence[Record]) -> TextTable | None:
    """The paired differences of a trial from the best others on the same data; None if there are none."""
    metric = "P@1" if "P@1" in record.metrics else next(iter(record.metrics))
    near = [o for o in others if o.key != record.key and o.truth_hash == record.truth_hash and metric in o.metrics]
    near = sorted(near, key=lambda other: -other.metrics[metric])[:REFERENCES]
    if not near:
        return None
    names = list(record.metrics)
    columns = [_differences(store, record, other, names) for other in near]
    rows = tuple((name, *(column.get(name, "-") for column in columns)) for name in names)
    titles = [f"{other.trial.label}, {budget_text(other.trial.budget.limits())}" for other in near]
    return TextTable(
        f"{record.trial.dataset}/{record.trial.label} minus reference trials",
        ("metric", *titles),
        rows,
        ("Per cent, with 95 % intervals over test queries, paired; one seed. Bold: the interval excludes 0.",),
    )


def _differences(store: Store, record: Record, other: Record, metrics: Sequence[str]) -> dict[str, Cell]:
    """The differences of two trials as cells, by metric."""
    cells = {}
    for compared in compare_stored(store, [record], [other], metrics):
        low, high = compared.difference.interval
        text = f"{100 * compared.difference.value:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
        cells[compared.name] = Cell(text, "best" if compared.difference.significant else "")
    return cells
