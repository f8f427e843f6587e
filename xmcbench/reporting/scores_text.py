"""The scores of one set of predictions as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    from xmcbench.evaluation.scoring import Scores


def scores_table(scores: Scores) -> str:
    """A line per metric, in per cent, with its 95 % interval over test queries where it has one."""
    rows = []
    for metric, value in scores.metrics.items():
        low, high = scores.intervals.get(metric, (None, None))
        interval = "" if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f}"
        rows.append((metric, f"{100 * value:.4f}", interval))
    return tabulate(
        rows, ("metric", "value", "95 % interval"), disable_numparse=True, colalign=("left", "right", "left")
    )
