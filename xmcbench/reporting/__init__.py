"""Views over records: which method did best, and what it spent; and the figures that papers print."""

from xmcbench.reporting.published import PublishedRow, published_rows, read_published
from xmcbench.reporting.standings import Group, Row, Table, leaderboard, recorded_metrics
from xmcbench.reporting.table import FORMATS, render

__all__ = [
    "FORMATS",
    "Group",
    "PublishedRow",
    "Row",
    "Table",
    "leaderboard",
    "published_rows",
    "read_published",
    "recorded_metrics",
    "render",
]
