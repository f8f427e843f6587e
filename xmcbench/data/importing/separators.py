"""Whether labels of a table were split by the right separator: a wrong one makes `red|blue` one label, silently."""

from __future__ import annotations

from collections.abc import Sequence

from xmcbench.data.importing.rows import Row
from xmcbench.errors import XMCBenchError

SEPARATOR = ";"  # where none is given
CANDIDATES = "|,;\t"
NEARLY_ALL = 0.9  # of the rows with labels have one label
SOME = 0.01  # of them have a label with another separator in it


def suspicion(rows: Sequence[Row]) -> tuple[str, str] | None:
    """The separator that labels seem to have, and why; None if nothing is suspicious."""
    labels = [row.labels for row in rows if row.labels]
    single = sum(len(set(row)) == 1 for row in labels)
    if not labels or single < NEARLY_ALL * len(labels):
        return None
    counts = {sign: sum(any(sign in label for label in row) for row in labels) for sign in CANDIDATES}
    sign = max(counts, key=counts.__getitem__)
    if counts[sign] <= SOME * len(labels):
        return None
    example = next(label for row in labels for label in row if sign in label)[:60]
    shares = f"{single / len(labels):.0%} of the rows have one label, and {counts[sign] / len(labels):.0%} have a label"
    return sign, f"{shares} with {sign!r} in it, such as {example!r}"


def check_separator(rows: Sequence[Row], source: str) -> None:
    """Raise XMCBenchError where rows that were split at the default separator seem to have another."""
    if found := suspicion(rows):
        sign, why = found
        raise XMCBenchError(
            f"{source}: {why}: expected --separator {sign!r}, or --separator {SEPARATOR!r} if that is one label"
        )
