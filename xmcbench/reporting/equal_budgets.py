"""Checks that all cells of a sweep spent the same budget, to within the one step that may cross the limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xmcbench.trial.record import SCORED, Record


@dataclass(frozen=True)
class BudgetCheck:
    """The amounts that the trials of one budget spent of the limit at which all of them must stop."""

    limit: str
    allowed: float
    spent: tuple[float, ...]  # per trial that trained
    largest_step: float  # of all trials
    untrained: tuple[str, ...]  # labels of the trials that spent none of it
    ended_early: tuple[str, ...]  # labels of the trials that ended before a pass over the data that did not fit
    ended_flat: tuple[str, ...]  # labels of the trials that ended because their quality no longer rose
    violations: tuple[str, ...]  # one message per trial that spent too little or too much

    def __str__(self) -> str:
        name = self.limit.replace("_", " ")
        if self.violations:
            return f"UNEQUAL {name}: " + "; ".join(self.violations)
        if not self.spent:
            return f"equal {name}: no trial has spent any"
        text = (
            f"equal {name}: {len(self.spent)} trials with {self.allowed:,.10g} spent {min(self.spent):,.10g} to "
            f"{max(self.spent):,.10g}, none more than one step past it (the largest: {self.largest_step:,.10g})"
        )
        if self.ended_early:
            text += f"; a pass over the data no longer fitted: {', '.join(self.ended_early)}"
        if self.ended_flat:
            text += f"; ended when their curves were flat: {', '.join(self.ended_flat)}"
        return text + (f"; spent none: {', '.join(self.untrained)}" if self.untrained else "")


def check_equal_budgets(records: Sequence[Record], limit: str) -> list[BudgetCheck]:
    """One check per budget, of the records with metrics.

    A trial must have spent at least the limit, or have ended before a pass over the data that did not fit, or because
    its curve was flat, and at most one of its own steps more.
    """
    groups: dict[float, list[Record]] = {}
    for record in records:
        if record.status in SCORED:
            groups.setdefault(float(record.trial.budget.limits()[limit]), []).append(record)
    return [_check(group, limit, allowed) for allowed, group in groups.items()]


def _check(records: Sequence[Record], limit: str, allowed: float) -> BudgetCheck:
    trained = [record for record in records if record.spent[limit]]
    steps = {record.key: float(record.spent["largest_step"].get(limit, 0.0)) for record in trained}
    violations = [
        f"{record.trial.label} spent {record.spent[limit]:,.10g} of {allowed:,.10g}, its largest step "
        f"{steps[record.key]:,.10g}"
        for record in trained
        if not (allowed <= record.spent[limit] or record.spent.get("refused_pass") or record.spent.get("ended"))
        or record.spent[limit] > allowed + steps[record.key]
    ]
    early = [record for record in trained if record.spent[limit] < allowed]
    return BudgetCheck(
        limit=limit,
        allowed=allowed,
        spent=tuple(float(record.spent[limit]) for record in trained),
        largest_step=max(steps.values(), default=0.0),
        untrained=_labels(record for record in records if not record.spent[limit]),
        ended_early=_labels(record for record in early if not record.spent.get("ended")),
        ended_flat=_labels(record for record in early if record.spent.get("ended")),
        violations=tuple(violations),
    )


def _labels(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(record.trial.label for record in records))
