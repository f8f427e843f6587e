"""Records and published rows to ranked groups: only rows of one dataset, track, protocol and budget are compared."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.reporting.cited import cited_rows, with_difference
from xmcbench.reporting.columns import COLUMNS, cell
from xmcbench.reporting.measured import measured_rows
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Group, Leaderboard, Row, View
from xmcbench.reporting.ties import Resampled, with_ties
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.record import METRIC_VERSION, Record, Status

USUAL_METRICS = {
    "supervised": ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100"),
    "zero-shot": ("P@1", "P@3", "P@5", "R@1", "R@10", "R@100"),
}
USUAL_COLUMNS = {
    "measured": ("encoder_tokens", "teacher_tokens", "device_seconds", "peak_bytes", "num_parameters"),
    "imported": (),
    "published": ("batch_size", "negatives", "encoder", "hardware", "training_hours", "paper"),
}
RARE = 0.25  # a usual metric that a smaller share of published rows has is no column of its own accord


def leaderboard(
    records: Iterable[Record],
    published: Iterable[PublishedRow] = (),
    view: View | None = None,
    resampled: Resampled = lambda key, metrics: {},  # noqa: ARG005
) -> Leaderboard:
    """Rank what was measured and what papers print, apart, as `view` asks; `resampled` tells which rows tie.

    Raises `UnknownNameError` for a dataset, metric, column or method that nothing has.
    """
    view = view or View()
    measured, cited = _wanted(_entered(list(records)), list(published), view)
    groups = [*_measured_groups(measured, cited, view), *_published_groups(cited, view)]
    groups = [group for group in groups if view.source in ("all", group.source)]
    _check_names(groups, measured, cited, view)
    ranked = [_ranked(group, view, resampled) for group in groups]
    return Leaderboard(tuple(ranked), _notes(ranked))


def _entered(records: list[Record]) -> list[Record]:
    """The records that compete: what tuning tried is told in the record of what it chose, and is no entry."""
    tried = {sample["trial"] for record in records for sample in record.chosen.get("samples", ())}
    return [record for record in records if record.chosen or record.key not in tried]


def _wanted(
    records: list[Record], published: list[PublishedRow], view: View
) -> tuple[list[Record], list[PublishedRow]]:
    """What is left of either when the view has chosen dataset, track, budget and method."""
    if view.dataset is not None:
        names = {record.trial.dataset for record in records} | {row.dataset for row in published}
        if view.dataset not in names:
            raise UnknownNameError("dataset", view.dataset, names, "in these rows")
        records = [record for record in records if record.trial.dataset == view.dataset]
        published = [row for row in published if row.dataset == view.dataset]
    if view.track is not None:
        records = [record for record in records if record.trial.track == view.track]
        published = [row for row in published if row.track == view.track]
    if view.budget is not None:
        records = _with_budget(records, view.budget)
    if view.method is not None:
        names = {record.trial.label for record in records} | {row.method for row in published}
        records = [r for r in records if _is(view.method, r.trial.label, r.trial.method)]
        published = [row for row in published if _is(view.method, row.method, row.label)]
        if not records and not published:
            raise UnknownNameError("method", view.method, names, "in these rows")
    return records, published


def _is(pattern: str, *names: str) -> bool:
    folded = pattern.casefold()
    return any(folded == name.casefold() or fnmatchcase(name.casefold(), folded) for name in names)


def _with_budget(records: list[Record], wanted: str) -> list[Record]:
    """The records whose budget has a limit: `steps`, or `steps=1000`."""
    name, _, number = wanted.partition("=")
    try:
        limit = float(number) if number else None
    except ValueError:
        raise XMCBenchError(f"--budget {wanted}: found {number!r}, expected a number as in steps=1000") from None
    limits = [(record, record.trial.budget.limits()) for record in records]
    known = {f"{own}={value:.10g}" for _, budget in limits for own, value in budget.items()}
    found = [r for r, own in limits if name in own and (limit is None or own[name] == limit)]
    if not found:
        raise UnknownNameError("budget", wanted, known, "in these records")
    return found


def _measured_groups(records: list[Record], published: list[PublishedRow], view: View) -> list[Group]:
    comparable: dict[tuple[str, str, str, Budget], list[Record]] = defaultdict(list)
    for record in records:
        trial = record.trial
        comparable[trial.dataset, trial.dataset_hash, trial.track, trial.budget].append(record)
    groups = []
    for where in sorted(comparable, key=lambda where: json.dumps([*where[:3], sorted(where[3].limits().items())])):
        trial = comparable[where][0].trial
        cited = [row for row in published if row.dataset == trial.dataset]
        rows = measured_rows(comparable[where])
        shown = [with_difference(row, record, cited) for record, row in rows] if cited else [row for _, row in rows]
        source = "imported" if isinstance(trial.budget, UnknownBudget) else "measured"
        common: dict[str, Any] = {"source": source, "dataset": trial.dataset, "track": trial.track, "protocol": ""}
        common |= {"dataset_hash": trial.dataset_hash, "budget": trial.budget.limits()}
        groups += _split(shown, common, view)
    return groups


def _published_groups(published: list[PublishedRow], view: View) -> list[Group]:
    comparable: dict[tuple[str, str, str], list[PublishedRow]] = defaultdict(list)
    for row in published:
        comparable[row.dataset, row.track, row.protocol].append(row)
    groups = []
    for dataset, track, protocol in sorted(comparable):
        setting = {"source": "published", "dataset": dataset, "track": track, "protocol": protocol}
        groups += _split(cited_rows(comparable[dataset, track, protocol]), setting, view)
    return groups


def _split(rows: list[Row], setting: dict[str, Any], view: View) -> list[Group]:
    """One group, or one for each value of the column that the view groups by."""
    if view.group_by is None:
        return [_group(rows, setting)]
    if view.group_by not in COLUMNS:
        raise UnknownNameError("column", view.group_by, COLUMNS, "--group-by")
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[cell(row, view.group_by)].append(row)
    return [_group(parts[value], {**setting, "by": {view.group_by: value}}) for value in sorted(parts)]


def _group(rows: list[Row], setting: dict[str, Any]) -> Group:
    """A group with the columns that suit it; nothing is ranked yet."""
    counts = Counter(name for row in rows for name in row.metrics)
    scored = sum(bool(row.metrics) for row in rows)
    usual = [name for name in USUAL_METRICS[setting["track"]] if name in counts]
    if setting["source"] == "published":
        usual = [name for name in usual if counts[name] >= RARE * scored] or usual
    metrics = tuple(usual or list(counts)[:6] or USUAL_METRICS[setting["track"]][:1])
    facts = {name for row in rows for name in row.facts}
    columns = tuple(name for name in USUAL_COLUMNS[setting["source"]] if name in facts)
    sort = "P@1" if "P@1" in counts else metrics[0]
    return Group(rows=tuple(rows), metrics=metrics, columns=columns, sort=sort, **setting)


def _check_names(groups: Sequence[Group], records: list[Record], published: list[PublishedRow], view: View) -> None:
    metrics = [name for group in groups for name in group.every_metric]
    sortable = [*metrics, *COLUMNS]
    for name in view.metrics:
        if name not in metrics:
            raise UnknownNameError("metric", name, metrics, "in these rows")
    for name in view.columns:
        if name not in COLUMNS:
            raise UnknownNameError("column", name, COLUMNS)
    if view.sort is not None and view.sort not in sortable:
        raise UnknownNameError("metric", view.sort, sortable, "in these rows")
    if not groups and (records or published):
        raise XMCBenchError(f"found no {view.source} rows, expected some")


def _ranked(group: Group, view: View, resampled: Resampled) -> Group:
    """The group with its rows in order and its columns as asked."""
    sort = group.sort if view.sort is None or view.sort in COLUMNS else view.sort
    metrics = tuple(dict.fromkeys(view.metrics)) or group.metrics
    rows = sorted(group.rows, key=lambda row: (-row.metrics.get(sort, -1.0), row.status, row.method))
    better: dict[float, int] = {}
    for place, row in enumerate((row for row in rows if _competes(row, sort, group.track)), start=1):
        better.setdefault(row.metrics[sort], place)
    rows = [replace(row, rank=better[row.metrics[sort]]) if _competes(row, sort, group.track) else row for row in rows]
    rows.sort(key=lambda row: row.rank is None)
    if view.sort in COLUMNS and view.sort is not None:
        rows.sort(key=lambda row: _least_first(row.facts.get(view.sort or "")))
    shown = rows[: view.top] if view.top else rows
    if group.source != "published":
        shown = with_ties(shown, tuple(dict.fromkeys([*metrics, sort])), resampled)
    columns = tuple(dict.fromkeys(view.columns)) or group.columns
    return replace(
        group, rows=tuple(shown), metrics=metrics, columns=columns, sort=sort, left_out=len(rows) - len(shown)
    )


def _least_first(fact: Any) -> tuple[bool, bool, Any]:
    """Numbers from the least, then texts by letter, then what is not known."""
    return fact is None, isinstance(fact, str), 0 if fact is None else fact


def _competes(row: Row, sort: str, track: str) -> bool:
    if sort not in row.metrics or row.status != Status.OK:
        return False
    if track == "zero-shot" and row.facts.get("simulated_teacher"):
        return False
    return row.source == "published" or row.metric_version == METRIC_VERSION


def _notes(groups: Sequence[Group]) -> tuple[str, ...]:
    rows = [row for group in groups for row in group.rows]
    measured = [row for row in rows if row.source != "published"]
    sorts = " or ".join(dict.fromkeys(group.sort for group in groups))
    notes = [f"Figures in per cent. Ranked by {sorts} within a dataset and a setting; equal figures share a rank."]
    if any(row.source == "imported" for row in rows):
        notes.append(
            "Imported predictions were made elsewhere: what they cost is unknown, so they compete with no trial."
        )
    if len(measured) < len(rows):
        notes.append(
            "Published figures are what papers print, in their own settings; measured ones are never merged in."
        )
    if any(row.intervals for row in measured):
        notes.append(
            "95 %: half the width of the interval over test queries (bootstrap). "
            "≈: cannot be told from the best of its column (paired bootstrap, 95 %)."
        )
    if any(row.std for row in measured):
        notes.append(
            "sd: standard deviation over seeds (n - 1), times the number of seeds that the figures are means over."
        )
    if any(row.against for row in measured):
        notes.append("against: less the published figure of the same method, encoder, batch size and setting.")
    notes += _measured_notes(measured)
    if left_out := sum(group.left_out for group in groups):
        notes.append(f"{left_out} rows below these are left out (--top).")
    return tuple(dict.fromkeys(notes)) if rows else ()


def _measured_notes(rows: list[Row]) -> list[str]:
    notes = []
    splits = Counter(str(row.facts.get("selection_split")) for row in rows if row.metrics)
    if set(splits) - {"none"}:
        notes.append(f"Checkpoints chosen on: {'; '.join(f'{name} ({n} rows)' for name, n in sorted(splits.items()))}.")
    if any(row.status == Status.OVER_BUDGET for row in rows):
        notes.append("over_budget: spent more than one step past the budget; not ranked.")
    if any(row.facts.get("simulated_teacher") for row in rows):
        notes.append("A teacher that was simulated from annotations is not ranked on the zero-shot track.")
    if old := {row.metric_version for row in rows if row.metrics} - {METRIC_VERSION}:
        versions = ", ".join(map(str, sorted(old)))
        notes.append(
            f"Rows scored by other metric definitions (version {versions}, now {METRIC_VERSION}) are not ranked: "
            "`xmcbench rescore` brings them up to date."
        )
    return notes + [f"{row.method}: {row.status}: {shorten(row.problem, 160)}" for row in rows if row.problem]
