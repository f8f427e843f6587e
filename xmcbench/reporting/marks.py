"""The marks that follow a name or a value, each explained by a note below the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xmcbench.reporting.claims import Claim, State
from xmcbench.reporting.rows import Row

TIE = "≈"  # after a value: not significantly different from the best of its column
SLIP = "†"  # after a value: the paper misprints it
OLDER = "‡"  # after a name: a result of older code
BELOW_POPULAR = "↓"  # after a name: trained, yet not better than the most frequent labels
STATES: Mapping[State, str] = {"reproduced": "✓", "contradicted": "✗", "not decided": "?", "not tried": "○"}


def of_name(row: Row) -> str:
    """The marks after the row's name."""
    return OLDER * bool(row.older) + BELOW_POPULAR * row.below_popular


def of_value(row: Row, metric: str) -> str:
    """The marks after the row's value of a metric."""
    marks = SLIP * (metric in row.slips) + TIE * (metric in row.tied)
    return marks + of_claims(claim for claim in row.claims if claim.metric == metric)


def of_claims(claims: Iterable[Claim]) -> str:
    """One mark for each state that a claim has."""
    states = {claim.state for claim in claims}
    return "".join(mark for state, mark in STATES.items() if state in states)
