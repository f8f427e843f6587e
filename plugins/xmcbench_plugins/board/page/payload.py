"""The data of the page's tables and charts. Its texts are those of the other formats.

The overview compares the methods of a dataset under one budget with one encoder, variants folded behind each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import combinations
from math import isnan
from typing import Any

from xmcbench.evaluation.analysis import DECILES, Analysis
from xmcbench.evaluation.significance import Sample, difference, rank_intervals, samples, tied_with_best
from xmcbench.reporting.compared_rows import Resampled
from xmcbench.reporting.names import FAMILIES, NamedMethod
from xmcbench.reporting.notes import PAGE, again_mark, notes_of
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.ranked_groups import unfolded
from xmcbench.reporting.rows import (
    CHART_COSTS,
    CURVE_COSTS,
    About,
    Group,
    Leaderboard,
    Row,
    budget_text,
    cell,
    costs,
    heading,
    mean_curve,
    short_budget,
)
from xmcbench.reporting.words import again_text
from xmcbench.suite.tables import COLUMNS, ranking_metric
from xmcbench.trial.record import Record
from xmcbench_plugins.board.curated import title_of
from xmcbench_plugins.board.page.about import Origin, measured_origin, published_origin, year_of
from xmcbench_plugins.board.page.standings import standings

ON_DEMAND = ("negatives", "encoder", "hardware")  # published facts that only the list of columns shows
HIDDEN = ("trial", "paper")  # the page has links in their place
EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
DIGITS = 6  # of a fraction, for sorting and drawing: a table shows four
DATE = "date"  # the column of dates and licences
AGAINST = "against"  # the column of differences from a published row
CURVES = ("nDCG@5", "PSP@5")  # metrics of curves besides the one that ranks
LOWEST = "per cent; the lowest value is the best"
COMPARED = 3  # metrics of which differences of pairs are on the page


def payload(
    table: Leaderboard,
    records: Mapping[str, Record],
    analyses: Mapping[str, Analysis],
    resampled: Resampled = lambda key, metrics: {},  # noqa: ARG005
    published: Sequence[PublishedRow] = (),
) -> dict[str, Any]:
    """The data that the page's script reads, ready for JSON."""
    once = _Once(_in_several(table), published)
    once.origin(Origin())  # that of rows without one
    groups = [_Group(group, records, analyses, once).content(resampled) for group in table.groups]
    datasets = dict.fromkeys(group.dataset for group in table.groups)
    notes = {name: [once.text(note) for note in _notes(table, name)] for name in datasets}
    lower = {name for group in table.groups for name in group.lower_is_better}
    used = [name for name in dict.fromkeys(name for group in groups for name in group["columns"]) if name != AGAINST]
    rows = [one for group in table.groups for row in group.rows for one in (row, *row.folded)]
    return {
        "sort": ranking_metric(group.sort for group in table.groups),
        "titles": {name: title for name in datasets if (title := title_of(name))},
        "metrics": [name for name in used if name not in COLUMNS],
        "lower": sorted(lower),
        "families": FAMILIES,
        "columns": {
            "#": _column("#", "rank within the table", number=True),
            "method": _column("method", "method and variant"),
            DATE: _column(DATE, "day of the newest trial, or year of the paper; below it the licence of the code"),
            AGAINST: _column("against", "the ranking metric minus that of the published row", number=True),
            **{
                name: _column(COLUMNS[name].heading, COLUMNS[name].help, number=_is_number(name))
                if name in COLUMNS
                else _column(name, LOWEST if name in lower else "per cent", number=True, metric=True)
                for name in used
            },
        },
        "costs": CHART_COSTS,
        "spent": {**CURVE_COSTS, "fraction": "share of the budget"},
        "urls": list(once.urls),
        "texts": list(once.texts),
        "shared": list(once.rows.values()),
        "origins": list(once.origins),
        "papers": list(once.papers),
        "years": {row.papers[0]: year_of(row.citation) for row in rows if row.papers},
        "claims": {claim.id: str(claim) for row in rows for claim in row.claims},
        "groups": groups,
        "standings": standings(table, [group["settings"] for group in groups]),
        "notes": notes,
    }


def _notes(board: Leaderboard, dataset: str) -> list[str]:
    """The notes on a dataset's groups, in the words of the page; claims have a page of their own."""
    notes = notes_of([group for group in board.groups if group.dataset == dataset], PAGE)
    return [note.text for note in notes if note.about is not About.CLAIM]


Same = tuple[str, ...]  # what rows of two tables have in common that are one row: name, trials, names of intervals


def _same(row: Row) -> Same:
    return (row.label, *row.keys, *sorted(row.intervals))


def _in_several(table: Leaderboard) -> frozenset[Same]:
    """The rows that stand in more than one table."""
    tables = Counter(_same(row) for group in table.groups for row in group.rows if row.keys)
    return frozenset(same for same, number in tables.items() if number > 1)


@dataclass(frozen=True)
class _Once:
    """What the page holds once, and its tables refer to by a place: texts, origins, papers, rows of several tables."""

    several: frozenset[Same]
    published: Sequence[PublishedRow] = ()  # of the papers that measured rows link to
    origins: dict[tuple[int, ...], int] = field(default_factory=dict)
    papers: dict[tuple[str, ...], int] = field(default_factory=lambda: {(): 0})
    urls: dict[str, int] = field(default_factory=lambda: {"": 0})
    texts: dict[str, int] = field(default_factory=lambda: {"": 0})
    rows: dict[Same, dict[str, Any]] = field(default_factory=lambda: {(): {}})

    def text(self, text: str) -> int:
        """The place of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def origin(self, origin: Origin) -> int:
        """The place of an origin, which holds the places of its texts."""
        return self.origins.setdefault(tuple(map(self.text, astuple(origin))), len(self.origins))


@dataclass(frozen=True)
class _Group:
    """A group; the cells of its rows are in the order of `columns`, of which those at `shown` are there at first."""

    group: Group
    records: Mapping[str, Record]
    analyses: Mapping[str, Analysis]
    once: _Once

    def content(self, resampled: Resampled) -> dict[str, Any]:
        """The group as JSON."""
        group, samples = self.group, _samples(self.group, self.records, resampled)
        every = [*group.rows, *(folded for row in group.rows for folded in row.folded)]
        first = [
            *(["kind"] if "kind" in group.columns else []),
            *group.metrics,
            *([AGAINST] if any(group.sort in row.against for row in group.rows) else []),
        ]
        facts = [*group.columns, *(name for row in every for name in row.facts)]
        known = [name for name in facts if name in COLUMNS and name not in HIDDEN]
        columns = list(dict.fromkeys([*first, *(name for row in every for name in row.metrics), *known]))
        usual = [name for name in group.columns if group.source != "published" or name not in ON_DEMAND]
        metrics = list(dict.fromkeys([group.sort, *group.metrics]))[:COMPARED]
        several = len(every) > len(group.rows)
        return {
            "source": group.source,
            "dataset": group.dataset,
            "track": group.track,
            "protocol": group.protocol,
            "budget": "" if group.source == "published" else budget_text(group.budget),
            "limited": list(group.budget),
            "limits": "" if group.source == "published" else short_budget(group.budget),
            "by": ", ".join(f"{heading(name)} {value}" for name, value in group.by.items()),
            "columns": columns,
            "shown": [columns.index(name) for name in (*first, *usual) if name in columns],
            "sort": group.sort,
            "settings": settings(group, samples) if not group.protocol else [],
            "compared": list(samples),
            "halves": {name: half_widths(samples, name) for name in metrics} if samples else {},
            "ranks": _ranks(samples, group),
            "rows": [self._row(row, columns) for row in group.rows],
            "printed": [self._row(one, columns) for one in unfolded(group.rows, group.sort)] if several else [],
        }

    def _row(self, row: Row, columns: Sequence[str]) -> dict[str, Any]:
        """A row without its empty fields and last empty cells, which the script adds again.

        Of a row of several tables this is what holds in this one, and its place among the shared rows.
        """
        here = {
            "rank": row.rank,
            "tied": sorted(row.tied),
            "below_popular": row.below_popular,
            "curve": self._curve(row),
        }
        if (same := _same(row)) in self.once.several:
            if same not in self.once.rows:
                against = [AGAINST] if row.against else []
                own = [*row.metrics, *against, *(name for name in row.facts if name in COLUMNS and name not in HIDDEN)]
                self.once.rows[same] = {"columns": own} | self._content(row, own)
            content = {"shared": [*self.once.rows].index(same)} | here
        else:
            content = self._content(row, columns) | here
        return {name: value for name, value in content.items() if value not in EMPTY}

    def _content(self, row: Row, columns: Sequence[str]) -> dict[str, Any]:
        """What is the same in every table that the row is in, without empty fields."""
        cells = _without_end([_cell(row, self.group.sort, name) for name in columns])
        for at, name in enumerate(columns[: len(cells)]):
            if name in COLUMNS and not _is_number(name):  # many rows have the same text
                cells[at] = self.once.text(str(cells[at]))
        records = [self.records[key] for key in row.keys if key in self.records]
        origin = measured_origin(records[0], self.once.published) if records else published_origin(row.named)
        newest = max((record.ended for record in records), default="")[:10]
        content = {
            "method": row.method,
            "variant": row.variant,
            "called": row.called if row.called != row.label else "",
            "family": row.family,
            "kind": row.kind if "kind" not in columns else "",
            "status": "" if row.status == "ok" else str(row.status),
            "problem": row.problem,
            "cells": cells,
            "intervals": _without_end([[round(1000 * end) for end in row.intervals.get(name, ())] for name in columns]),
            "misprints": row.misprints,
            "older": row.older,
            "codes": row.codes,
            "unbounded": row.unbounded,
            "stated": row.stated,
            "reproduced": row.reproduced and [again_mark(row), again_text(row.reproduced)],
            "idle": list(row.idle),
            "claims": [claim.id for claim in row.claims],
            "folded_claims": [claim.id for claim in row.folded_claims],
            "costs": {name: float(f"{cost:.4g}") for name, cost in costs(row).items() if name not in columns},
            "keys": list(row.keys),
            "source": self.once.text(str(row.facts.get("paper", ""))) if row.source == "published" else 0,
            "url": self.once.urls.setdefault(row.url, len(self.once.urls)),
            "papers": self.once.papers.setdefault(row.papers, len(self.once.papers)),
            "origin": self.once.origin(origin),
            "date": self.once.text(newest),
            "deciles": _deciles(self.analyses[row.keys[0]]) if row.keys and row.keys[0] in self.analyses else None,
        }
        return {name: value for name, value in content.items() if value not in EMPTY}

    def _curve(self, row: Row) -> dict[str, list[float]]:
        """Its mean curve, by what the budget limits and by seconds, rounded to what a chart shows."""
        found = mean_curve([self.records[key] for key in row.keys if key in self.records])
        spent = [name for name in (*self.group.budget, "device_seconds") if name in found] or ["fraction"]
        metrics = [name for name in dict.fromkeys([self.group.sort, *CURVES]) if name in found]
        halves = {name: [round(half, 1) for half in found[name]] for one in metrics if (name := f"{one} ±") in found}
        places = {name: [float(f"{cost:.3g}") for cost in found[name]] for name in spent if name in found}
        return places | {name: found[name] for name in metrics} | halves


def _samples(group: Group, records: Mapping[str, Record], resampled: Resampled) -> Samples:
    """Of each ranked row of trials that have their metrics on resamples: these."""
    found = {}
    for at, row in enumerate(group.rows):
        if row.rank is None or group.source == "published" or not all(key in records for key in row.keys):
            continue
        metrics = list(dict.fromkeys([*group.metrics, group.sort]))
        own = samples([records[key] for key in row.keys], [resampled(key, metrics) for key in row.keys])
        if own:
            found[at] = own
    return found


def _without_end(cells: list[Any]) -> list[Any]:
    """The cells without the empty ones at their end."""
    while cells and cells[-1] in ("", []):
        cells.pop()
    return cells


def _cell(row: Row, sort: str, name: str) -> str | float | list[Any]:
    """What a cell shows, with the number that it is sorted by unless the text says it; empty if the row has nothing."""
    if name == AGAINST:
        difference = row.against.get(sort)
        if difference is None:
            return ""
        return [f"{100 * difference:+.2f} ({row.against_source})", round(difference, DIGITS)]
    text = cell(row, name)
    if name in row.metrics:
        metric = round(row.metrics[name], DIGITS)
        rounded = f"{100 * metric:.2f}" == text and 10_000 * metric % 1 != 0.5  # the script rounds a tie up
        shown = _with_value(text, metric, scale=100)
        return metric if rounded and shown != text else shown  # of a value alone the script makes the text
    value = row.facts.get(name)
    if value is None or isinstance(value, str) or not _is_number(name):
        return text
    value = float(f"{value:.6g}")
    return _with_value(text, int(value) if value.is_integer() else value)


def _with_value(text: str, value: float, scale: int = 1) -> str | list[Any]:
    """The text alone where its number, by `scale`, is the value."""
    number = text.replace(",", "")
    same = number.replace(".", "", 1).isdigit() and abs(float(number) / scale - value) < 10**-DIGITS
    return text if same else [text, value]


def _is_number(fact: str) -> bool:
    return COLUMNS[fact].kind not in ("text", "flag")


def _column(heading: str, help: str, *, number: bool = False, metric: bool = False) -> dict[str, Any]:
    return {"heading": heading, "help": help, "number": number, "metric": metric}


def _deciles(analysis: Analysis) -> dict[str, Any]:
    shares = {name: getattr(analysis.breakdowns[DECILES], name) for name in ("contribution", "recall")}
    known = {name: [None if isnan(own) else round(float(own), 4) for own in shares[name]] for name in shares}
    return {"k": analysis.k, **known}


Samples = Mapping[int, Mapping[str, Sample]]  # by the number of a group's row, and by metric


def settings(group: Group, samples: Samples) -> list[dict[str, Any]]:
    """Rows of a group that differ in their methods alone, first those with the most methods, then the most seeds.

    Each has its encoder, empty where no row has one and for papers; the heads: of each method its name, the number of
    the row with its recommended settings, and those of its other rows; and by metric the numbers of the heads that are
    not significantly different from the best one.
    """
    ranked = [at for at, row in enumerate(group.rows) if row.rank is not None]
    measured = group.source != "published"
    known = (group.rows[at].facts.get("encoder") for at in ranked if measured)
    encoders = list(dict.fromkeys(str(name) for name in known if name)) or [""]
    found = []
    for encoder in encoders:  # rows without an encoder are in every setting
        by_method: dict[NamedMethod, list[int]] = defaultdict(list)
        for at in ranked:
            if encoders == [""] or group.rows[at].facts.get("encoder", encoder) == encoder:
                by_method[group.rows[at].named].append(at)
        for own in by_method.values() if measured else ():
            own.sort(key=lambda at: group.rows[at].preference)
        heads: list[tuple[Any, ...]] = [(method.name, *own) for method, own in by_method.items()]
        tied = _tied([own[0] for own in by_method.values()], group, samples)
        found.append({"encoder": encoder, "heads": heads, "tied": tied})

    def size(setting: dict[str, Any]) -> tuple[int, int]:
        return len(setting["heads"]), sum(len(group.rows[own[1]].keys) for own in setting["heads"])

    return sorted(found, key=size, reverse=True)


def _tied(heads: Sequence[int], group: Group, samples: Samples) -> dict[str, list[int]]:
    tied = {}
    for metric in group.metrics:
        known = [at for at in heads if metric in samples.get(at, {})]
        if len(known) > 1 and len({samples[at][metric].replicates_SB.shape[1] for at in known}) == 1:
            lower = metric in group.lower_is_better
            marks = tied_with_best([samples[at][metric] for at in known], lower_is_better=lower)
            tied[metric] = [at for at, same in zip(known, marks, strict=True) if same]
    return tied


def _ranks(samples: Samples, group: Group) -> dict[int, tuple[int, int]]:
    """The interval of the rank of each row that can be compared, by the metric that ranks, all rows taken together."""
    metric = group.sort
    most = max((own[metric].replicates_SB.shape[1] for own in samples.values() if metric in own), default=0)
    known = [at for at, own in samples.items() if metric in own and own[metric].replicates_SB.shape[1] == most]
    lower = metric in group.lower_is_better
    intervals = rank_intervals([samples[at][metric] for at in known], lower_is_better=lower)
    return dict(zip(known, intervals, strict=True))


def half_widths(samples: Samples, metric: str) -> list[int | None]:
    """Half the 95 % interval of the paired difference of each pair of rows, in hundredths of a point.

    The pairs are (0, 1), (0, 2), ..., (1, 2), ... of the rows in `samples`; None where a pair cannot be compared.
    """

    def half(first: Sample | None, second: Sample | None) -> int | None:
        if first is None or second is None or first.replicates_SB.shape[1] != second.replicates_SB.shape[1]:
            return None
        low, high = difference(first, second).interval
        return round(10_000 * (high - low) / 2)

    return [half(*pair) for pair in combinations((own.get(metric) for own in samples.values()), 2)]
