"""The review of submissions: the state of each accepted trial, and what it gains over the others of its dataset.

A trial is `verified` when maintainers ran it again and every metric lay within the interval of the accepted record,
`recomputed` when its metrics follow from its predictions, and `imported` when its predictions are not at hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import compare_resampled
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import TextTable, render_tables
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

VERIFIED = "verified.json"
REFERENCES = 3  # trials that a submission is compared with, the best ones
State = Literal["verified", "recomputed", "imported", "rejected"]


@dataclass(frozen=True)
class Checked:
    """An accepted trial after its check."""

    record: Record
    problems: tuple[str, ...]
    recomputed: bool  # its metrics follow from its predictions


def state(store: Store, checked: Checked) -> State:
    """How far others may rely on the trial."""
    if checked.problems:
        return "rejected"
    if (store.directory(checked.record.key) / VERIFIED).exists():
        return "verified"
    return "recomputed" if checked.recomputed else "imported"


def verify(accepted: Store, record: Record, again: Record) -> Path:
    """Note that the trial was run again: `again` is the record of the second run, in another store.

    Raises `XMCBenchError` where a metric of the second run lies outside the interval of the accepted record.
    """
    if again.key != record.key:
        raise XMCBenchError(f"{again.key} is not a second run of {record.key}")
    if not record.intervals:
        raise XMCBenchError(f"{record.key}: has no intervals to verify against; `xmcbench rescore` makes them")
    for name, (low, high) in record.intervals.items():
        value = again.metrics.get(name)
        if value is None or not low <= value <= high:
            raise XMCBenchError(f"{record.key}: {name} is {value} in the second run, expected {low:.4f} to {high:.4f}")
    git = again.provenance.get("git") or {}
    note = {"key": again.key, "commit": git.get("commit"), "ended": again.ended, "metrics": again.metrics}
    path = accepted.directory(record.key) / VERIFIED
    with atomic_write(path) as file:
        file.write(json.dumps(note, indent=1).encode() + b"\n")
    return path


def verification_problems(directory: Path, record: Record) -> list[str]:
    """What is wrong with the note on a second run, if there is one."""
    path = directory / VERIFIED
    if not path.exists():
        return []
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        metrics = {str(name): float(value) for name, value in note["metrics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{VERIFIED} is no note on a second run"]
    outside = [name for name, (low, high) in record.intervals.items() if not low <= metrics.get(name, -1.0) <= high]
    wrong = [f"{VERIFIED}: {', '.join(outside)} outside the intervals of the record"] if outside else []
    return wrong + ([f"{VERIFIED} is about {note.get('key')}"] if note.get("key") != record.key else [])


def comment(store: Store, checked: Sequence[Checked]) -> str:
    """The review as Markdown, for a comment on a pull request."""
    rows = tuple(
        (
            f"{one.record.trial.dataset}/{one.record.trial.label}",
            one.record.key,
            state(store, one),
            "; ".join(one.problems) or "none",
        )
        for one in checked
    )
    table = TextTable("Submissions", ("trial", "key", "state", "problems"), rows)
    compared = [_references(store, one.record, [o.record for o in checked]) for one in checked if not one.problems]
    return render_tables([table, *(found for found in compared if found)], "markdown") + "\n"


def _references(store: Store, record: Record, others: Sequence[Record]) -> TextTable | None:
    """The paired differences of a trial from the best others on the same data; None where there are none."""
    metric = "P@1" if "P@1" in record.metrics else next(iter(record.metrics))
    near = [o for o in others if o.key != record.key and o.truth_hash == record.truth_hash and metric in o.metrics]
    near.sort(key=lambda other: -other.metrics[metric])
    names = list(record.metrics)
    rows = []
    for other in near[:REFERENCES]:
        kept = store.resampled(record, names), store.resampled(other, names)
        for found in compare_resampled((record.metrics, other.metrics), kept):
            low, high = found.difference.interval
            verdict = "significant" if found.difference.significant else "not significant"
            name = f"{other.trial.label}, {budget_text(other.trial.budget.limits())}"
            difference = f"{100 * found.difference.value:+.2f}"
            rows.append((name, found.name, difference, f"{100 * low:+.2f} to {100 * high:+.2f}", verdict))
    title = f"{record.trial.dataset}/{record.trial.label} minus reference trials (paired bootstrap)"
    return TextTable(title, ("reference", "metric", "difference", "95 %", ""), tuple(rows)) if rows else None
