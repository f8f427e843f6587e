"""Views over records: which method did best, and what it spent; and the figures that papers print."""

from xmcbench.reporting.along import along_grids
from xmcbench.reporting.cells import Cell, TableShape, cell_grid, cells, cost_grid
from xmcbench.reporting.grid import GRID_FORMATS, Grid, render_grids
from xmcbench.reporting.measured import recorded_metrics
from xmcbench.reporting.published import PublishedRow, published_rows, read_published
from xmcbench.reporting.rows import Group, Row, Table, View, budget_text
from xmcbench.reporting.standings import leaderboard
from xmcbench.reporting.table import FORMATS, render

__all__ = [
    "FORMATS",
    "GRID_FORMATS",
    "Cell",
    "Grid",
    "Group",
    "PublishedRow",
    "Row",
    "Table",
    "TableShape",
    "View",
    "along_grids",
    "budget_text",
    "cell_grid",
    "cells",
    "cost_grid",
    "leaderboard",
    "published_rows",
    "read_published",
    "recorded_metrics",
    "render",
    "render_grids",
]
