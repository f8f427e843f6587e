"""The marks that follow a name or a value, each explained by a note below the table."""

from __future__ import annotations

from collections.abc import Iterable

from xmcbench.reporting.claims import Claim
from xmcbench.reporting.rows import Row

TIE = "≈"  # after a value: not significantly different from the best of its column
ONE_SEED = "¹"  # after an interval: it is over test queries alone
SLIP = "†"  # after a value: the paper misprints it
OLDER = "‡"  # after a name: a result of older code
BELOW_POPULAR = "↓"  # after a name: trained, yet not better than the most frequent labels
UNLIMITED = "◇"  # after a name: it spends nothing that the budget limits
STATED = "□"  # after a name: its metrics cannot be recomputed here
CLAIM = "○"  # after a name: a paper's claim that this row is better than another was looked at here
EVERY = frozenset({TIE, ONE_SEED, SLIP, OLDER, BELOW_POPULAR, UNLIMITED, STATED, CLAIM})


def of_name(row: Row) -> str:
    """The marks after the row's name."""
    marks = (
        OLDER * bool(row.older) + BELOW_POPULAR * row.below_popular + UNLIMITED * row.unlimited + STATED * row.stated
    )
    return marks + of_claims(row.claims)


def of_interval(row: Row) -> str:
    """The mark after the row's intervals."""
    return ONE_SEED if len(row.keys) == 1 else ""


def of_value(row: Row, metric: str) -> str:
    """The marks after the row's value of a metric."""
    return SLIP * (metric in row.slips) + TIE * (metric in row.tied)


def of_claims(claims: Iterable[Claim]) -> str:
    """A mark that says nothing of what was found: that is no verdict on the paper's figures."""
    return CLAIM * any(True for _ in claims)
