"""What the page draws, as plain data: the texts it shows are those of every other view of the leaderboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from xmcbench.evaluation.analysis import DECILES, Analysis
from xmcbench.reporting.columns import cell, heading
from xmcbench.reporting.costs import COSTS, SPENT, costs, curves
from xmcbench.reporting.rows import Group, Leaderboard, Row, budget_text
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.record import Record

HIDDEN = ("trial", "paper")  # the page has links in their place
DIGITS = 7  # of a fraction, for sorting and drawing: a table shows four
AGAINST = "against"  # the column of differences from a published row


def payload(table: Leaderboard, records: Mapping[str, Record], analyses: Mapping[str, Analysis]) -> dict[str, Any]:
    """Everything the page's script reads, ready for JSON."""
    groups = [_group(group) for group in table.groups]
    rows = [row for group in table.groups for row in group.rows]
    metrics = list(dict.fromkeys(name for group in table.groups for name in (*group.metrics, *group.every_metric)))
    used = dict.fromkeys(name for group in groups for name in group["columns"])
    budgets = {key: budget_text(group.budget) for group in table.groups for row in group.rows for key in row.keys}
    return {
        "dataset": _most_rows(table),
        "sort": table.groups[0].sort if table.groups else "P@1",
        "metrics": metrics,
        "columns": {
            "#": _column("#", "place in the table's own ranking", number=True),
            "method": _column("method", "and what tells it from others of that name"),
            AGAINST: _column("against", "the ranking figure, less that of the published row named", number=True),
            **{name: _described(name, name in metrics) for name in used if name != AGAINST},
        },
        "costs": COSTS,
        "spent": {**SPENT, "fraction": "share of the budget"},
        "groups": groups,
        "curves": [
            {"key": key, "method": name, "budget": budgets[key], "points": points}
            for key, (name, points) in curves(rows, records).items()
        ],
        "deciles": [
            {"key": key, "method": row.method, "budget": budgets[key], **_deciles(analyses[key])}
            for row in rows
            for key in row.keys[:1]
            if key in analyses
        ],
        "notes": list(table.notes),
    }


def _most_rows(table: Leaderboard) -> str:
    """The dataset to begin with: the one with the most measured rows, or the most rows."""
    counts: Counter[tuple[bool, str]] = Counter()
    for group in table.groups:
        counts[group.source == "measured", group.dataset] += len(group.rows)
    best = max(counts, key=lambda each: (each[0], counts[each]), default=(False, ""))
    return best[1]


def _group(group: Group) -> dict[str, Any]:
    """A group; its cells are in the order of `columns`, of which `shown` are there at first."""
    facts = [name for name in (*group.columns, *group.every_column) if name in COLUMNS and name not in HIDDEN]
    compared = [AGAINST] if any(group.sort in row.against for row in group.rows) else []
    columns = list(dict.fromkeys([*group.metrics, *compared, *group.every_metric, *facts]))
    return {
        "source": group.source,
        "dataset": group.dataset,
        "track": group.track,
        "protocol": group.protocol,
        "budget": "" if group.source == "published" else budget_text(group.budget),
        "by": ", ".join(f"{heading(name)} {value}" for name, value in group.by.items()),
        "columns": columns,
        "shown": [name for name in (*group.metrics, *compared, *group.columns) if name in columns],
        "rows": [_row(row, group.sort, columns) for row in group.rows],
    }


def _row(row: Row, sort: str, columns: Sequence[str]) -> dict[str, Any]:
    cells = [_cell(row, sort, name) for name in columns]
    return {
        "method": row.method,
        "rank": row.rank,
        "status": str(row.status),
        "problem": row.problem,
        "texts": [text for text, _ in cells],
        "values": [value for _, value in cells],
        "intervals": {name: [f"{100 * end:.1f}" for end in ends] for name, ends in row.intervals.items()},
        "tied": sorted(row.tied),
        "costs": costs(row),
        "keys": list(row.keys),
        "source": str(row.facts.get("paper", "")) if row.source == "published" else "",
        "url": row.url,
    }


def _cell(row: Row, sort: str, name: str) -> tuple[str | None, float | None]:
    """What a cell shows, and the number it is sorted by; a text is sorted by itself. None where the row has nothing."""
    if name == AGAINST:
        difference = row.against.get(sort)
        return (None, None) if difference is None else (f"{100 * difference:+.2f} ({row.against_source})", difference)
    if name in row.metrics:
        return cell(row, name), round(row.metrics[name], DIGITS)
    value = row.facts.get(name)
    if value is None:
        return None, None
    return cell(row, name), None if isinstance(value, str) or not _is_number(name) else value


def _is_number(fact: str) -> bool:
    return COLUMNS[fact].kind not in ("text", "flag")


def _column(heading: str, help: str, *, number: bool = False, metric: bool = False) -> dict[str, Any]:
    return {"heading": heading, "help": help, "number": number, "metric": metric}


def _described(name: str, metric: bool) -> dict[str, Any]:
    if metric:
        return _column(name, "per cent", number=True, metric=True)
    return _column(COLUMNS[name].heading, COLUMNS[name].help, number=_is_number(name))


def _deciles(analysis: Analysis) -> dict[str, Any]:
    deciles = analysis.breakdowns[DECILES]
    shares = {figure: [_known(share) for share in getattr(deciles, figure)] for figure in ("contribution", "recall")}
    return {"k": analysis.k, **shares}


def _known(share: float) -> float | None:
    return None if isnan(share) else float(share)
