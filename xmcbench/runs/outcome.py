"""The outcome of a run: its exit code, and messages about failed trials."""

from __future__ import annotations

from collections.abc import Sequence

from xmcbench.trial.record import Record, Status

PASSED = frozenset({Status.OK, Status.SKIPPED, Status.TOO_LARGE})


def exit_code(records: Sequence[Record]) -> int:
    """0 if every trial is ok, skipped or too large for its budget, else 1."""
    return 0 if all(record.status in PASSED for record in records) else 1


def explain(record: Record) -> str:
    """The status of a trial, and the reason if it is not ok, on one line."""
    if record.failure:
        return f"{record.status}: {record.failure.message.splitlines()[0]}"
    if record.status is not Status.OVER_BUDGET:
        return str(record.status)
    limits = record.trial.budget.limits().items()
    over = [f"{name} {record.spent[name]:g} of {limit:g}" for name, limit in limits if record.spent[name] > limit]
    return f"{record.status}: {', '.join(over)}"
