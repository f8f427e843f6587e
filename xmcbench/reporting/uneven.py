"""What a row of a table had that others beside it had not, or had not itself: training queries, a choice of weights,
tuning, sequences of words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xmcbench.reporting.rows import Row, Uneven


def with_uneven(rows: Sequence[Row]) -> list[Row]:
    """The measured rows of a table, each with what it had that others had not."""
    held_out, chosen = any(row.held_out for row in rows), any(_chose(row) for row in rows)
    tuned = [row for row in rows if row.tuned]
    cut = any(not row.unlimited for row in tuned)
    sequences = any(_trains(row) and not row.single_words for row in rows)

    def found(row: Row) -> Iterator[Uneven]:
        if held_out and not row.held_out:
            yield Uneven.ALL_QUERIES
        if chosen and row.held_out and row.facts.get("steps") and not _chose(row):
            yield Uneven.LAST_WEIGHTS
        if tuned and not row.tuned:
            yield Uneven.NOT_TUNED
        if row.tuned and row.unlimited and cut:
            yield Uneven.WHOLE_SAMPLES
        if sequences and row.single_words:
            yield Uneven.SINGLE_WORDS

    return [replace(row, uneven=tuple(found(row)) if _trains(row) else ()) for row in rows]


def _chose(row: Row) -> bool:
    """Whether held-out queries chose one of several checkpoints."""
    return row.held_out > 0 and row.evaluations > 1


def _trains(row: Row) -> bool:
    """Whether it takes steps, or is an outside program, whose operations nobody counts."""
    return bool(row.metrics) and bool(row.facts.get("steps") or "flops" not in row.facts or row.tuned)
