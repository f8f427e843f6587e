"""Whether the cells of a sweep spent the same: each to within the one step that may cross the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xmcbench.trial.record import SCORED, Record


@dataclass(frozen=True)
class Equality:
    """What trials of one budget spent of the limit at which all of them stop."""

    limit: str
    allowed: float
    spent: tuple[float, ...]  # by those that trained
    largest_step: float  # of any of them
    nothing: tuple[str, ...]  # labels of those that spend none of it
    unequal: tuple[str, ...]  # what is wrong, a trial each

    def __str__(self) -> str:
        name = self.limit.replace("_", " ")
        if self.unequal:
            return f"UNEQUAL {name}: " + "; ".join(self.unequal)
        if not self.spent:
            return f"equal {name}: no trial has spent any"
        text = (
            f"equal {name}: {len(self.spent)} trials with {self.allowed:,.10g} spent {min(self.spent):,.10g} to "
            f"{max(self.spent):,.10g}, each within one of its steps (the largest: {self.largest_step:,.10g})"
        )
        return text + (f"; spent none: {', '.join(self.nothing)}" if self.nothing else "")


def equalities(records: Sequence[Record], limit: str) -> list[Equality]:
    """One for each budget among the records that ended with figures. A trial is equal where it spent at least the
    limit, and no more than one of its own steps past it."""
    alike: dict[float, list[Record]] = {}
    for record in records:
        if record.status in SCORED:
            alike.setdefault(float(record.trial.budget.limits()[limit]), []).append(record)
    return [_of(found, limit, allowed) for allowed, found in alike.items()]


def _of(records: Sequence[Record], limit: str, allowed: float) -> Equality:
    trained = [record for record in records if record.spent[limit]]
    steps = {record.key: float(record.spent["largest_step"].get(limit, 0.0)) for record in trained}
    unequal = [
        f"{record.trial.label} spent {record.spent[limit]:,.10g} of {allowed:,.10g}, its largest step "
        f"{steps[record.key]:,.10g}"
        for record in trained
        if not allowed <= record.spent[limit] <= allowed + steps[record.key]
    ]
    return Equality(
        limit=limit,
        allowed=allowed,
        spent=tuple(float(record.spent[limit]) for record in trained),
        largest_step=max(steps.values(), default=0.0),
        nothing=tuple(dict.fromkeys(record.trial.label for record in records if not record.spent[limit])),
        unequal=tuple(unequal),
    )
