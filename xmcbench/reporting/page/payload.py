"""The data of the page's tables and charts. Its texts are those of the other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from xmcbench.evaluation.analysis import DECILES, Analysis
from xmcbench.reporting.claims import Claim
from xmcbench.reporting.costs import CHART_COSTS, CURVE_COSTS, costs, curves
from xmcbench.reporting.notes import CLAIM, notes_of
from xmcbench.reporting.ranked_groups import every_printed
from xmcbench.reporting.rows import Group, Leaderboard, Row, budget_text, cell, heading
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.record import Record

ON_DEMAND = ("negatives", "encoder", "hardware")  # published facts that only the list of columns shows
HIDDEN = ("trial", "paper")  # the page has links in their place
EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
DIGITS = 7  # of a fraction, for sorting and drawing: a table shows four
AGAINST = "against"  # the column of differences from a published row


def payload(
    table: Leaderboard, records: Mapping[str, Record], analyses: Mapping[str, Analysis], version: str = ""
) -> dict[str, Any]:
    """The data that the page's script reads, ready for JSON."""
    groups = [_group(group) for group in table.groups]
    rows = [row for group in table.groups for row in group.rows]
    metrics = list(dict.fromkeys(name for group in groups for name in group["columns"] if name not in COLUMNS))
    metrics = [name for name in metrics if name != AGAINST]
    used = dict.fromkeys(name for group in groups for name in group["columns"])
    budgets = {key: budget_text(group.budget) for group in table.groups for row in group.rows for key in row.keys}
    return {
        "version": version,
        "sort": table.groups[0].sort if table.groups else "P@1",
        "metrics": metrics,
        "columns": {
            "#": _column("#", "rank within the table", number=True),
            "method": _column("method", "method and variant"),
            AGAINST: _column("against", "the ranking metric minus that of the published row", number=True),
            **{name: _described(name, name in metrics) for name in used if name != AGAINST},
        },
        "costs": CHART_COSTS,
        "spent": {**CURVE_COSTS, "fraction": "share of the budget"},
        "groups": groups,
        "curves": [
            {"key": key, "method": name, "budget": budgets[key], "points": points}
            for key, (name, points) in curves(rows, records).items()
        ],
        "deciles": [
            {"key": key, "method": row.label, "budget": budgets[key], **_deciles(analyses[key])}
            for row in rows
            for key in row.keys[:1]
            if key in analyses
        ],
        "notes": {name: _notes(table, name) for name in dict.fromkeys(group.dataset for group in table.groups)},
    }


def _notes(board: Leaderboard, dataset: str) -> list[str]:
    """The notes on a dataset's groups, in the words of the page."""
    notes = notes_of([group for group in board.groups if group.dataset == dataset])
    return [note.replace("--all shows", "“every printed row” shows") for note in notes]


def _group(group: Group) -> dict[str, Any]:
    """A group; its cells are in the order of `columns`, of which `shown` are there at first."""
    every = [*group.rows, *(folded for row in group.rows for folded in row.folded)]
    known = dict.fromkeys(name for row in every for name in row.facts)
    facts = [name for name in (*group.columns, *known) if name in COLUMNS and name not in HIDDEN]
    metrics = dict.fromkeys(name for row in every for name in row.metrics)
    compared = [AGAINST] if any(group.sort in row.against for row in group.rows) else []
    kind = ["kind"] if "kind" in group.columns else []
    columns = list(dict.fromkeys([*kind, *group.metrics, *compared, *metrics, *facts]))
    usual = [name for name in group.columns if group.source != "published" or name not in ON_DEMAND]
    shown = [*kind, *group.metrics, *compared, *usual]
    return {
        "source": group.source,
        "dataset": group.dataset,
        "track": group.track,
        "protocol": group.protocol,
        "budget": "" if group.source == "published" else budget_text(group.budget),
        "by": ", ".join(f"{heading(name)} {value}" for name, value in group.by.items()),
        "columns": columns,
        "shown": [name for name in shown if name in columns],
        "sort": group.sort,
        "rows": [_row(row, group.sort, columns) for row in group.rows],
        "printed": [_row(one, group.sort, columns) for one in every_printed(group)]
        if len(every) > len(group.rows)
        else [],
    }


def _row(row: Row, sort: str, columns: Sequence[str]) -> dict[str, Any]:
    """A row without its empty fields, which the script adds again."""
    cells = [_cell(row, sort, name) for name in columns]
    content = {
        "method": row.method,
        "variant": row.variant,
        "kind": row.kind,
        "rank": row.rank,
        "status": str(row.status),
        "problem": row.problem,
        "texts": [text for text, _ in cells],
        "values": [value for _, value in cells],
        "intervals": {name: [f"{100 * end:.1f}" for end in ends] for name, ends in row.intervals.items()},
        "tied": sorted(row.tied),
        "slips": row.slips,
        "older": row.older,
        "below_popular": row.below_popular,
        "unlimited": row.unlimited,
        "stated": row.stated,
        "idle": list(row.idle),
        "claims": [_claim(claim) for claim in row.claims],
        "folded_claims": [_claim(claim) for claim in row.folded_claims],
        "costs": costs(row),
        "keys": list(row.keys),
        "source": str(row.facts.get("paper", "")) if row.source == "published" else "",
        "url": row.url,
        "papers": list(row.papers),
    }
    return {name: value for name, value in content.items() if value not in EMPTY}


def _claim(claim: Claim) -> dict[str, str]:
    """What the page shows of a claim beside a name; the overview shows the rest."""
    return {"id": claim.id, "text": str(claim), "mark": CLAIM}


def _cell(row: Row, sort: str, name: str) -> tuple[str | None, float | None]:
    """What a cell shows, and the number it is sorted by; a text is sorted by itself. None where the row has nothing."""
    if name == AGAINST:
        difference = row.against.get(sort)
        return (None, None) if difference is None else (f"{100 * difference:+.2f} ({row.against_source})", difference)
    if name in row.metrics:
        return cell(row, name), round(row.metrics[name], DIGITS)
    value = row.facts.get(name)
    if value is None:
        return cell(row, name) or None, None
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
