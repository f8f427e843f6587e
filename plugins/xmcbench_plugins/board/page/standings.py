"""Where methods stand over the real datasets, each at its usual budget: what the page's first chart and column show.

Legend: D datasets, M methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xmcbench.evaluation.comparison import Mean, across_datasets
from xmcbench.reporting.rows import Group, Leaderboard
from xmcbench_plugins.board.curated import dataset_facts

FEWEST = 4  # methods of a dataset that counts
DIGITS = 3

Setting = Mapping[str, Any]  # rows of a group that differ in their methods alone, as in the payload
Usual = dict[str, tuple[int, Setting]]  # by dataset: the place of its group, and the setting


def standings(table: Leaderboard, settings: Sequence[Sequence[Setting]]) -> dict[str, Any] | None:
    """Mean rank and win rate of each method that every real dataset has, by metric; None for fewer than two of either.

    `settings` are those of each group. Of a dataset counts the setting with the most methods, as the overview shows it
    at first. `methods` have their rows in the order of `places`, the group and the encoder of each dataset.
    """
    usual = _usual(zip(table.groups, settings, strict=True))
    rows = [{name: row for name, row, *_ in setting["heads"]} for _, setting in usual.values()]
    names = [name for name in (rows[0] if rows else ()) if all(name in own for own in rows)]
    if len(rows) < 2 or len(names) < 2:
        return None
    groups = [table.groups[at] for at, _ in usual.values()]
    shared = [metric for metric in groups[0].metrics if all(metric in group.metrics for group in groups)]
    by_metric = {}
    for metric in shared:
        pairs = list(zip(groups, rows, strict=True))
        values_DM = [[group.rows[own[name]].metrics.get(metric, np.nan) for name in names] for group, own in pairs]
        if not np.isnan(values_DM).any():
            lower = any(metric in group.lower_is_better for group in groups)
            means = across_datasets(np.array(values_DM), lower_is_better=lower)
            by_metric[metric] = [[*_rounded(own.mean_rank), *_rounded(own.win_rate)] for own in means]
    return {
        "places": [[at, setting["encoder"]] for at, setting in usual.values()],
        "methods": [[name, *(own[name] for own in rows)] for name in names],
        "by": by_metric,
    }


def _usual(groups: Iterable[tuple[Group, Sequence[Setting]]]) -> Usual:
    """Of each real dataset of the board the setting with the most methods, then the most seeds."""
    found: dict[str, tuple[tuple[int, int], int, Setting]] = {}
    for at, (group, settings) in enumerate(groups):
        real = not dataset_facts(group.dataset).made and "+" not in group.dataset
        if group.source != "measured" or group.track != "supervised" or not real:
            continue
        for setting in settings:
            size = len(setting["heads"]), sum(len(group.rows[row].keys) for _, row, *_ in setting["heads"])
            if size[0] >= FEWEST and (group.dataset not in found or size > found[group.dataset][0]):
                found[group.dataset] = size, at, setting
    most_first = sorted(found.items(), key=lambda own: (-own[1][0][0], own[0]))
    return {dataset: (at, setting) for dataset, (_, at, setting) in most_first}


def _rounded(mean: Mean) -> list[float]:
    """A mean and the ends of its interval."""
    return [round(value, DIGITS) for value in (mean.value, *mean.interval)]
