"""Leaderboards, tables, figures and pages from records and from the results that papers print."""

from xmcbench.reporting.cells import (
    SweepCell,
    cell_table,
    cells,
    cost_table,
    rank_tables,
    smaller_budget_tables,
    time_to_quality_table,
)
from xmcbench.reporting.claims import read_claims
from xmcbench.reporting.describe import scores_table
from xmcbench.reporting.leaderboard_text import FORMATS, bibliography, bibtex_entry, render, summary
from xmcbench.reporting.published import PublishedRow, published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.results import recorded_metrics
from xmcbench.reporting.rows import Group, Leaderboard, Row, View, budget_text
from xmcbench.reporting.text_table import TABLE_FORMATS, TextTable, render_tables

__all__ = [
    "FORMATS",
    "TABLE_FORMATS",
    "Group",
    "Leaderboard",
    "PublishedRow",
    "Row",
    "SweepCell",
    "TextTable",
    "View",
    "bibliography",
    "bibtex_entry",
    "budget_text",
    "cell_table",
    "cells",
    "cost_table",
    "leaderboard",
    "published_rows",
    "rank_tables",
    "read_claims",
    "recorded_metrics",
    "render",
    "render_tables",
    "scores_table",
    "smaller_budget_tables",
    "summary",
    "time_to_quality_table",
]
