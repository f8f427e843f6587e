"""Views over records: which method did best, and what it spent."""

from xmcbench.reporting.standings import Group, Row, Table, leaderboard, recorded_metrics
from xmcbench.reporting.table import FORMATS, render

__all__ = ["FORMATS", "Group", "Row", "Table", "leaderboard", "recorded_metrics", "render"]
