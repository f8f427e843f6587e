"""Records and published rows to ranked groups: only rows of one dataset, track, protocol and budget are compared."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.reporting.columns import cell, column_name
from xmcbench.reporting.differences import with_difference
from xmcbench.reporting.measured import measured_rows, newest_versions
from xmcbench.reporting.numbers import folded
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.results import results
from xmcbench.reporting.rows import Group, Leaderboard, Row, View
from xmcbench.reporting.ties import Resampled, with_ties
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.record import METRIC_VERSION, Record, Status

USUAL_METRICS = {
    "supervised": ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100"),
    "zero-shot": ("P@1", "P@3", "P@5", "R@1", "R@10", "R@100"),
}
USUAL_COLUMNS = {
    "measured": ("encoder_tokens", "teacher_tokens", "device_seconds", "peak_bytes", "num_parameters"),
    "imported": (),
    "published": ("kind", "batch_size", "negatives", "encoder", "hardware", "training_hours", "paper", "variants"),
}
PAPER_METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
PAPER_COLUMNS = ("kind", "paper")
RARE = 0.25  # usual metrics that a smaller share of published rows has are not shown by default


def leaderboard(
    records: Iterable[Record],
    published: Iterable[PublishedRow] = (),
    view: View | None = None,
    resampled: Resampled = lambda key, metrics: {},  # noqa: ARG005
) -> Leaderboard:
    """Rank measured and published rows separately, as `view` asks; `resampled` decides which rows tie.

    Raises `UnknownNameError` for a dataset, metric, column or method that no row has.
    """
    view = view or View()
    measured, published = _wanted(_entered(list(records)), list(published), view)
    groups = [*_measured_groups(measured, published, view), *_published_groups(published, view)]
    groups = [group for group in groups if view.source in ("all", group.source)]
    _check_names(groups, view)
    ranked = [_ranked(group, view, resampled) for group in groups]
    return Leaderboard(tuple(ranked), notes_of(ranked))


def _entered(records: list[Record]) -> list[Record]:
    """The records that compete: of the trials that tuning tried, only the chosen one."""
    tried = {sample["trial"] for record in records for sample in record.chosen.get("samples", ())}
    return [record for record in records if record.chosen or record.key not in tried]


def _wanted(
    records: list[Record], published: list[PublishedRow], view: View
) -> tuple[list[Record], list[PublishedRow]]:
    """The records and published rows of the view's dataset, track, budget and method."""
    if view.dataset is not None:
        names = {record.trial.dataset for record in records} | {row.dataset for row in published}
        dataset = {name.casefold(): name for name in names}.get(view.dataset.casefold())
        if dataset is None:
            raise UnknownNameError("dataset", view.dataset, names, "in these rows")
        records = [record for record in records if record.trial.dataset == dataset]
        published = [row for row in published if row.dataset == dataset]
    if view.track is not None:
        records = [record for record in records if record.trial.track == view.track]
        published = [row for row in published if row.track == view.track]
    if view.budget is not None:
        records = _with_budget(records, view.budget)
    if view.method is not None:
        names = {record.trial.label for record in records} | {row.method for row in published}
        records = [r for r in records if _is(view.method, r.trial.label, r.trial.method)]
        published = [row for row in published if _is(view.method, row.method, row.label)]
        if not records and not published and names:
            raise UnknownNameError("method", view.method, names, "in these rows")
    if not records and not published:
        where = [f"dataset {view.dataset}"] if view.dataset else []
        where += [f"track {view.track}"] if view.track else []
        raise XMCBenchError(f"found no rows of {', '.join(where) or 'any dataset'}, expected some")
    return records, published


def _is(pattern: str, *names: str) -> bool:
    pattern = pattern.casefold()
    names = tuple(name.casefold() for name in names)
    return any(folded(pattern) == folded(name) or fnmatchcase(name, pattern) for name in names)


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
    groups, versions = [], newest_versions(records)
    for where in sorted(comparable, key=lambda where: json.dumps([*where[:3], sorted(where[3].limits().items())])):
        trial = comparable[where][0].trial
        near = [row for row in published if row.dataset == trial.dataset]
        rows = measured_rows(comparable[where], versions)
        shown = [with_difference(row, record, near) for record, row in rows] if near else [row for _, row in rows]
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
        rows = results(comparable[dataset, track, protocol])
        groups += _split(rows, setting, view)
    return groups


def _split(rows: list[Row], setting: dict[str, Any], view: View) -> list[Group]:
    """One group, or one for each value of the column that the view groups by."""
    if view.group_by is None:
        return [_group(rows, setting)]
    column = column_name(view.group_by)
    if column is None:
        raise UnknownNameError("column", view.group_by, COLUMNS, "--group-by")
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[_spelling(column, cell(row, column))].append(row)
    return [_group(parts[value], {**setting, "by": {column: value}}) for value in sorted(parts)]


def _spelling(column: str, value: str) -> str:
    """One spelling of a value that papers and configurations spell differently.

    >>> _spelling("encoder", "DistilBERT"), _spelling("encoder", "distilbert-base"), _spelling("loss", "BCE")
    ('distilbert-base-uncased', 'distilbert-base-uncased', 'BCE')
    """
    known = {"distilbert": "distilbert-base-uncased", "distilbertbase": "distilbert-base-uncased"}
    return known.get(folded(value), value) if column == "encoder" else value


def _group(rows: list[Row], setting: dict[str, Any]) -> Group:
    """A group with the columns that suit it; nothing is ranked yet."""
    counts = Counter(name for row in rows for name in row.metrics)
    scored = sum(bool(row.metrics) for row in rows)
    usual = [name for name in USUAL_METRICS[setting["track"]] if name in counts]
    if setting["source"] == "published":
        usual = [name for name in usual if counts[name] >= RARE * scored] or usual
    metrics = tuple(usual or list(counts)[:6] or USUAL_METRICS[setting["track"]][:1])
    facts = {name for row in rows for name in row.facts} | ({"kind"} if any(row.kind for row in rows) else set())
    columns = tuple(name for name in USUAL_COLUMNS[setting["source"]] if name in facts)
    sort = "P@1" if "P@1" in counts else metrics[0]
    return Group(rows=tuple(rows), metrics=metrics, columns=columns, sort=sort, **setting)


def _check_names(groups: Sequence[Group], view: View) -> None:
    metrics = list(dict.fromkeys(name for group in groups for name in group.every_metric))
    for name in view.metrics:
        if name not in metrics:
            raise UnknownNameError("metric", name, metrics, "in these rows")
    for name in view.columns:
        if column_name(name) is None:
            raise UnknownNameError("column", name, COLUMNS)
    if view.sort is not None and view.sort not in metrics and column_name(view.sort) is None:
        raise UnknownNameError("metric", view.sort, [*metrics, *COLUMNS], "in these rows")
    if not groups:
        raise XMCBenchError(f"found no {view.source} rows, expected some")


def _ranked(group: Group, view: View, resampled: Resampled) -> Group:
    """The group with its rows in order and its columns as asked."""
    order = column_name(view.sort) if view.sort and view.sort not in group.every_metric else None
    metrics = tuple(dict.fromkeys(view.metrics)) or _usual_metrics(group, view)
    sort = group.sort if order or view.sort is None else view.sort
    if view.sort is None and sort not in metrics:
        sort = metrics[0]
    rows = sorted(group.rows, key=lambda row: (-row.metrics.get(sort, -1.0), row.status, row.label))
    values = sorted({row.metrics[sort] for row in rows if _competes(row, sort, group.track)}, reverse=True)
    places = {value: place for place, value in enumerate(values, start=1)}
    rows = [replace(row, rank=places[row.metrics[sort]]) if _competes(row, sort, group.track) else row for row in rows]
    rows.sort(key=lambda row: row.rank is None)
    if view.variants:
        rows = _unfolded(rows, sort)
    if order:
        rows.sort(key=lambda row: _least_first(row.facts.get(order) or cell(row, order) or None))
    shown = rows[: view.top] if view.top else rows
    if group.source != "published":
        shown = with_ties(shown, tuple(dict.fromkeys([*metrics, sort])), resampled)
    usual = PAPER_COLUMNS if view.paper else group.columns
    columns = tuple(dict.fromkeys(column_name(name) or name for name in view.columns)) or usual
    if view.variants and not view.columns and not view.paper:
        role = ("role",) if group.source == "published" else ()
        columns = tuple(name for name in (*columns, *role) if name != "variants")
    return replace(
        group, rows=tuple(shown), metrics=metrics, columns=columns, sort=sort, left_out=len(rows) - len(shown)
    )


def _usual_metrics(group: Group, view: View) -> tuple[str, ...]:
    known = tuple(name for name in PAPER_METRICS if name in group.every_metric) if view.paper else ()
    return known or group.metrics


def every_printed(group: Group) -> list[Row]:
    """Every printed row of the group on its own, best first."""
    return _unfolded(group.rows, group.sort)


def _unfolded(rows: Sequence[Row], sort: str) -> list[Row]:
    """Every printed row on its own, best first; the first that prints a ranked result has its rank."""
    unfolded: list[Row] = []
    for row in rows:
        first, *others = row.folded or (row,)
        unfolded += [replace(first, rank=row.rank), *others]
    return sorted(unfolded, key=lambda row: (-row.metrics.get(sort, -1.0), row.rank is None))


def _least_first(fact: Any) -> tuple[bool, bool, Any]:
    """Numbers from the least, then texts by letter, then what is not known."""
    return fact is None, isinstance(fact, str), 0 if fact is None else fact


def _competes(row: Row, sort: str, track: str) -> bool:
    if sort not in row.metrics or row.status != Status.OK or sort in row.slips or "split" in row.facts:
        return False
    if track == "zero-shot" and row.facts.get("simulated_teacher"):
        return False
    return row.source == "published" or row.metric_version == METRIC_VERSION


def notes_of(groups: Sequence[Group]) -> tuple[str, ...]:
    """What a reader of the groups has to know: units, ranks, signs, misprints, disagreements."""
    rows = [row for group in groups for row in group.rows]
    measured = [row for row in rows if row.source != "published"]
    published = [row for row in rows if row.source == "published"]
    sorts = " or ".join(dict.fromkeys(group.sort for group in groups))
    notes = [f"Metrics in per cent, ranked by {sorts} within each table; equal values share a rank."]
    if published:
        metrics = list(dict.fromkeys(name for group in groups for name in group.metrics))
        notes += _published_notes(published, metrics, [name for group in groups for name in group.columns])
    if any(row.source == "imported" for row in rows):
        notes.append("Imported predictions were made elsewhere, at unknown cost: they are ranked on their own.")
    if any(row.intervals for row in measured):
        notes.append(
            "95 %: half the width of the interval over test queries (bootstrap). "
            "≈: not significantly different from the best of its column (paired bootstrap, 95 %)."
        )
    if any(row.std for row in measured):
        notes.append("sd: standard deviation over seeds (n - 1) × number of seeds.")
    if any(row.against for row in measured):
        notes.append("against: minus the published value of the same method, encoder, batch size and setting.")
    notes += _measured_notes(measured)
    if left_out := sum(group.left_out for group in groups):
        notes.append(f"{left_out} further rows are not shown (--top).")
    return tuple(dict.fromkeys(notes)) if rows else ()


def _published_notes(rows: Sequence[Row], metrics: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    yield "Published values are as printed, in the settings of the papers. They are never ranked with measured ones."
    if "variants" in columns and any("variants" in row.facts for row in rows):
        yield "+N: further results of the method (ablations, costs, differing reprints); --all shows every printed row."
    for row in rows:
        for metric, text in row.slips.items():
            yield f"†: {row.label}, {metric} ({row.facts['paper']}): misprint, {text}."
    for split in dict.fromkeys(str(row.facts["split"]) for row in rows if "split" in row.facts):
        methods = ", ".join(dict.fromkeys(row.method for row in rows if row.facts.get("split") == split))
        yield f"Not ranked, on another test split ({split}): {methods}."
    for row in rows:
        if differing := [f"{name} {row.disagreements[name]}" for name in metrics if name in row.disagreements]:
            name = f"{row.label} ({row.kind})" if row.kind else row.label
            yield f"Papers disagree on {name}: {', '.join(differing)}."


def _measured_notes(rows: list[Row]) -> list[str]:
    notes = []
    splits = Counter(str(row.facts.get("selection_split")) for row in rows if row.metrics)
    if set(splits) - {"none"}:
        notes.append(f"Checkpoints chosen on: {'; '.join(f'{name} ({n} rows)' for name, n in sorted(splits.items()))}.")
    if any(row.status == Status.OVER_BUDGET for row in rows):
        notes.append("over_budget: exceeded the budget by more than one step; not ranked.")
    if any(row.facts.get("simulated_teacher") for row in rows):
        notes.append("Trials with a teacher that was simulated from annotations are not ranked on the zero-shot track.")
    if old := {row.metric_version for row in rows if row.metrics} - {METRIC_VERSION}:
        versions = ", ".join(map(str, sorted(old)))
        notes.append(
            f"Rows scored with other metric definitions (version {versions}, now {METRIC_VERSION}) are not ranked; "
            "`xmcbench rescore` updates them."
        )
    if reasons := sorted({row.older for row in rows if row.older}):
        notes.append(f"older version: a result of older code ({'; '.join(reasons)}); `xmcbench run` trains it again.")
    return notes + [f"{row.label}: {row.status}: {shorten(row.problem, 160)}" for row in rows if row.problem]
