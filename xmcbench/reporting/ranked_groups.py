"""Records and published rows to ranked groups: only rows of one dataset, track, protocol and budget are compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from operator import attrgetter, itemgetter
from types import MappingProxyType

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.reporting.compared_rows import Resampled, with_difference, with_uncertainty
from xmcbench.reporting.make_rows import is_unlimited, measured_rows, newest_versions
from xmcbench.reporting.notes import POPULAR, is_below_popular, notes_of
from xmcbench.reporting.paper_rows import Claim, PublishedRow
from xmcbench.reporting.printed_rows import merged_rows
from xmcbench.reporting.rows import Group, Leaderboard, Reproduced, Row, Source, View, cell, column_name, grouped
from xmcbench.reporting.text_table import folded
from xmcbench.suite.tables import COLUMNS, ranking_metric
from xmcbench.trial.alike import fused_before
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.record import Record, Status

USUAL_METRICS = {
    "supervised": ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100"),
    "zero-shot": ("P@1", "P@3", "P@5", "R@1", "R@10", "R@100"),
}
USUAL_COLUMNS = {
    "measured": (
        "teacher_tokens",
        "teacher_unparsed",
        "device_seconds",
        "query_ms",
        "peak_bytes",
        "num_parameters",
        "variants",
    ),
    "imported": (),
    "published": ("kind", "batch_size", "negatives", "encoder", "hardware", "training_hours", "paper", "variants"),
}
PAPER_METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
PAPER_COLUMNS = ("kind", "paper")
ENCODERS = dict.fromkeys(("distilbert", "distilbertbase"), "distilbert-base-uncased")  # other spellings in papers
EVEN = 1.05  # the largest number is at most so many times the smallest where rows do not differ
EVERY_BUDGET = "all"  # what a view asks for to see the table of every budget
RARE = 0.25  # usual metrics that a smaller share of published rows has are not shown by default


def leaderboard(
    records: Iterable[Record],
    published: Iterable[PublishedRow] = (),
    view: View | None = None,
    resampled: Resampled = lambda key, metrics: {},  # noqa: ARG005
    claims: Sequence[Claim] = (),
    recomputable: Callable[[Record], bool] = lambda record: True,  # noqa: ARG005
    accepted: Container[str] = (),
    reproduced: Mapping[str, Reproduced] = MappingProxyType({}),
) -> Leaderboard:
    """Rank measured and published rows separately, as `view` asks.

    `resampled` decides which rows tie; `claims` are shown at the published rows that they are about; rows are marked
    whose metrics are not `recomputable`, and those that were `reproduced` or were not. Text tables call `accepted`
    trials by their methods' names in papers. Their variants are not shown where the recommended settings are, unless
    the view asks for variants, for a method, or for a table for each value.

    Raises `UnknownNameError` for a dataset, metric, column or method that no row has.
    """
    view = view or View()
    competing = [record for record in records if not record.trial.held_out_only]
    tried = {sample["trial"] for record in competing for sample in record.chosen.get("samples", ())}
    entered = [record for record in competing if record.chosen or record.key not in tried]  # no samples of a tuning
    measured, published = _wanted(entered, list(published), view)
    by_key = {record.key: record for record in measured}

    def is_stated(key: str) -> bool:
        return bool(by_key[key].metrics) and not recomputable(by_key[key])

    measured_groups = _measured_groups(measured, published, view, is_stated, accepted, fused_before(competing))
    measured_groups = [_with_states(group, reproduced) for group in measured_groups]
    groups = [*measured_groups, *_published_groups(published, claims)]
    groups = [part for group in groups for part in _split(group, view) if view.source in ("all", group.source)]
    _check_names(groups, view)
    ranked = []
    for group in (_ranked(group, view, by_key, resampled) for group in groups):
        rows = [row for row in group.rows if view.method is None or _is_method(row, view.method)]
        shown = rows[: view.top] if view.top else rows
        ranked += [replace(group, rows=tuple(shown), left_out=len(rows) - len(shown))] if shown else []
    if not ranked:
        rows = [row for group in groups for row in group.rows]
        names = {name for row in rows for name in (row.method, row.plugin, row.named.name)} - {""}
        raise UnknownNameError("method", str(view.method), names, "in these rows")
    return Leaderboard(tuple(ranked), notes_of(ranked))


def _with_states(group: Group, reproduced: Mapping[str, Reproduced]) -> Group:
    """The group's rows with what came of training their trials again."""

    def state(row: Row) -> Row:
        folded = tuple(state(variant) for variant in row.folded if variant.keys != row.keys)
        row = replace(row, reproduced=of_all(reproduced.get(key) for key in row.keys))
        return replace(row, folded=(row, *folded)) if row.folded else row

    return replace(group, rows=tuple(map(state, group.rows))) if reproduced else group


def of_all(states: Iterable[Reproduced | None]) -> Reproduced | None:
    """The state of a result of several trials: not reproduced where one is not, else the least that all have."""
    known = {*states}
    order = (Reproduced.NOT, None, Reproduced.RETRAINED, Reproduced.VERIFIED)
    return next(state for state in order if state in known)


def _wanted(
    records: list[Record], published: list[PublishedRow], view: View
) -> tuple[list[Record], list[PublishedRow]]:
    """The records and published rows of the view's dataset and track."""
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
    if not records and not published:
        where = [f"{name} {wanted}" for name, wanted in (("dataset", view.dataset), ("track", view.track)) if wanted]
        raise XMCBenchError(f"found no rows of {', '.join(where) or 'any dataset'}, expected some")
    return records, published


def _is_method(row: Row, pattern: str) -> bool:
    """Whether a name of the row, of its plugin or of a row folded into it is the pattern or matches it."""
    of_row = (name for one in (row, *row.folded) for name in (one.method, one.label, one.called))
    names, pattern = {row.plugin, row.named.name, *of_row}, pattern.casefold()
    return any(folded(pattern) == folded(name) or fnmatchcase(name.casefold(), pattern) for name in names)


def _budgets(records: Sequence[Record], wanted: str | None) -> set[Budget]:
    """The budgets that have a limit, `steps` or `steps=1000`; all where none, or `all`, is wanted."""
    budgets = {record.trial.budget for record in records}
    if wanted in (None, EVERY_BUDGET):
        return budgets
    name, _, number = wanted.partition("=")
    try:
        limit = float(number) if number else None
    except ValueError:
        raise XMCBenchError(f"--budget {wanted}: found {number!r}, expected a number as in steps=1000") from None
    limits = {budget: budget.limits() for budget in budgets}
    known = {f"{limit_name}={value:.10g}" for budget in limits.values() for limit_name, value in budget.items()}
    matches = {
        budget
        for budget, of_budget in limits.items()
        if name in of_budget and (limit is None or of_budget[name] == limit)
    }
    if not matches:
        raise UnknownNameError("budget", wanted, known, "in these records")
    return matches


def _measured_groups(
    records: list[Record],
    published: list[PublishedRow],
    view: View,
    is_stated: Callable[[str], bool],
    accepted: Container[str],
    outdated: Mapping[str, str],
) -> list[Group]:
    """The groups of measured rows.

    `is_stated` tells by a trial's key that its metrics cannot be recomputed here. It is asked of rows with trials that
    are not accepted: the check of submissions has recomputed the others. `outdated` says by key which fusions are of
    predictions that their parts no longer have. Rows that no budget limits are in every group of
    their dataset and track. They make no group of their own, unless there is no other or the view asks for it.
    """
    groups, versions, budgets = [], newest_versions(records), _budgets(records, view.budget)
    comparable = attrgetter("trial.dataset", "trial.dataset_hash", "trial.track", "trial.budget")
    pools = grouped(records, comparable)
    for (dataset, content, track, budget), pool in pools.items():
        if budget not in budgets or (
            view.budget in (None, EVERY_BUDGET) and _is_elsewhere((dataset, content, track, budget), pools)
        ):
            continue
        comparable_records = [*pool, *_unlimited_elsewhere((dataset, content, track, budget), pools)]
        near = [row for row in published if (row.dataset, row.track) == (dataset, track)]
        near = [row for row in near if row.metrics and not row.protocol]
        rows = [
            replace(
                with_difference(row, near),
                stated=not checked and any(map(is_stated, row.keys)),
                accepted=checked,
            )
            for row in measured_rows(comparable_records, versions, outdated)
            for checked in (all(key in accepted for key in row.keys),)
        ]
        source: Source = "imported" if isinstance(budget, UnknownBudget) else "measured"
        methods, every = {row.plugin for row in rows}, view.variants or view.whole or view.method or view.group_by
        shown = tuple(rows if every else _folded(rows))
        group = Group(source, dataset, track, "", shown, dataset_hash=content, budget=budget.limits())
        order = dataset, content, track, -len(methods), json.dumps(sorted(group.budget.items()))
        groups.append((order, group))  # first the budget at which most methods are compared
    return [group for _, group in sorted(groups, key=itemgetter(0))]


Place = tuple[str, str, str, Budget]  # dataset, its content, track and budget: what comparable trials share


def _same_task(place: Place, pools: Mapping[Place, list[Record]]) -> dict[Budget, list[Record]]:
    """The trials of the place's dataset and track under other budgets, by budget."""
    if isinstance(place[3], UnknownBudget):
        return {}
    known = {
        budget: records for (*task, budget), records in pools.items() if task == [*place[:3]] and budget != place[3]
    }
    return {budget: records for budget, records in known.items() if not isinstance(budget, UnknownBudget)}


def _unlimited(records: Sequence[Record], budgets: Sequence[Budget]) -> dict[str, list[Record]]:
    """By method, label and settings: scored trials that none of the budgets limits."""
    scored = [record for record in records if record.status is Status.OK]
    by_settings = grouped(scored, lambda record: record.trial.model_dump_json(include={"label", "method", "config"}))
    return {
        name: of_settings
        for name, of_settings in by_settings.items()
        if all(is_unlimited(of_settings, budget) for budget in budgets)
    }


def _unlimited_elsewhere(place: Place, pools: Mapping[Place, list[Record]]) -> list[Record]:
    """Trials of other budgets that neither their own budget nor the place's limits, and that are not there already.

    Of one method with one configuration under several budgets: the trials of the budget with the most seeds.
    """
    there = grouped(pools[place], lambda record: record.trial.model_dump_json(include={"label", "method", "config"}))
    most_seeds: dict[str, list[Record]] = {}
    for budget, records in _same_task(place, pools).items():
        for name, seeds in _unlimited(records, (budget, place[3])).items():
            if name not in there and len(seeds) > len(most_seeds.get(name, ())):
                most_seeds[name] = seeds
    return [record for seeds in most_seeds.values() for record in seeds]


def _is_elsewhere(place: Place, pools: Mapping[Place, list[Record]]) -> bool:
    """Whether all trials of a place are unlimited, and stand in a table with limited ones of the same task."""

    def only_unlimited(records: Sequence[Record], budget: Budget) -> bool:
        return sum(map(len, _unlimited(records, (budget,)).values())) == len(records)

    return only_unlimited(pools[place], place[3]) and any(
        not only_unlimited(others, budget) and only_unlimited(pools[place], budget)
        for budget, others in _same_task(place, pools).items()
    )


def _folded(rows: list[Row]) -> list[Row]:
    """The rows without the accepted variants of methods whose recommended settings are among them."""
    shown = []
    for of_method in grouped(rows, lambda row: (row.named.name, row.facts.get("encoder"))).values():
        head, *others = sorted(of_method, key=lambda row: row.preference)
        if hidden := [row for row in others if head.recommended and row.accepted]:
            head = replace(head, folded=(head, *hidden), facts=head.facts | {"variants": f"+{len(hidden)}"})
        shown += [head, *(row for row in others if not (head.recommended and row.accepted))]
    return shown


def _published_groups(published: list[PublishedRow], claims: Sequence[Claim]) -> list[Group]:
    comparable = grouped(published, lambda row: (row.dataset, row.track, row.protocol))
    return [Group("published", *where, tuple(merged_rows(rows, claims))) for where, rows in sorted(comparable.items())]


def _split(group: Group, view: View) -> list[Group]:
    """The group, or one for each value of the column that the view groups by."""
    if view.group_by is None:
        return [group]
    column = column_name(view.group_by)
    if column is None:
        raise UnknownNameError("column", view.group_by, COLUMNS, "--group-by")
    usual = ENCODERS if column == "encoder" else {}
    parts = grouped(group.rows, lambda row: usual.get(folded(cell(row, column)), cell(row, column)))
    return [replace(group, rows=tuple(parts[value]), by={column: value}) for value in sorted(parts)]


def _usual_metrics(group: Group) -> tuple[str, ...]:
    counts = Counter(name for row in group.rows for name in row.metrics)
    scored = sum(bool(row.metrics) for row in group.rows)
    usual = [name for name in USUAL_METRICS[group.track] if name in counts]
    if group.source == "published":
        usual = [name for name in usual if counts[name] >= RARE * scored] or usual
    if len(usual) < 2:
        usual = list(dict.fromkeys([*usual, *counts]))[:6]
    return tuple(usual or USUAL_METRICS[group.track][:1])


def _columns(group: Group, view: View) -> tuple[str, ...]:
    """The columns of facts that are asked for, or that suit the group."""
    if view.columns:
        return tuple(dict.fromkeys(column_name(name) or name for name in view.columns))
    if view.paper:
        return PAPER_COLUMNS if group.source == "published" else ()
    facts = {*group.every_column, *("kind" for row in group.rows if row.kind)}
    columns = tuple(name for name in (*_spent(group), *USUAL_COLUMNS[group.source]) if name in facts)
    if not view.variants:
        return columns
    role = ("role",) if group.source == "published" else ()
    return tuple(name for name in (*columns, *role) if name != "variants")


def _spent(group: Group) -> Iterator[str]:
    """What trainings here took: what the budget limits; steps and overruns where rows differ in them by `EVEN`."""
    if group.source != "measured":
        return
    yield "flops" if "flops" in group.budget else "encoder_tokens"
    trained = [float(value) for row in group.rows if (value := row.facts.get("steps"))]
    if trained and max(trained) > EVEN * min(trained):
        yield "steps"
    if any(1 + float(row.facts.get("overrun", 0.0)) > EVEN for row in group.rows):
        yield "overrun"


def _check_names(groups: Sequence[Group], view: View) -> None:
    if not groups:
        raise XMCBenchError(f"found no {view.source} rows, expected some")
    metrics = list(dict.fromkeys(name for group in groups for name in group.every_metric))
    if unknown := [name for name in view.metrics if name not in metrics]:
        raise UnknownNameError("metric", unknown[0], metrics, "in these rows")
    if unknown := [name for name in view.columns if column_name(name) is None]:
        raise UnknownNameError("column", unknown[0], COLUMNS)
    if view.sort is not None and view.sort not in metrics and column_name(view.sort) is None:
        raise UnknownNameError("metric", view.sort, [*metrics, *COLUMNS], "in these rows")


def _ranked(group: Group, view: View, records: Mapping[str, Record], resampled: Resampled) -> Group:
    """The group with all its rows ranked and its columns as asked."""
    metrics, sort = _shown_metrics(group, view)
    rows = _with_ranks(group, sort)
    compared = tuple(dict.fromkeys([*metrics, sort]))
    if group.source != "published":
        rows = with_uncertainty(_beside_popular(rows, sort), compared, records, resampled)
    best = {name: _two_best(rows, name, name in group.lower_is_better) for name in compared}
    if view.variants:
        rows = unfolded(rows, sort)
    if view.sort and view.sort not in group.every_metric and (order := column_name(view.sort)):
        rows = _by_column(rows, order)
    return replace(group, rows=tuple(rows), metrics=metrics, columns=_columns(group, view), sort=sort, best=best)


def _shown_metrics(group: Group, view: View) -> tuple[tuple[str, ...], str]:
    """The metrics that are shown, and the one that ranks."""
    every, usual = group.every_metric, _usual_metrics(group)
    of_papers = tuple(name for name in PAPER_METRICS if name in every) if view.paper else ()
    metrics = tuple(dict.fromkeys(view.metrics)) or of_papers or usual
    if view.sort and (view.sort in every or column_name(view.sort) is None):
        return metrics, view.sort
    sort = ranking_metric(usual)
    return metrics, metrics[0] if view.sort is None and sort not in metrics else sort


def _with_ranks(group: Group, sort: str) -> list[Row]:
    """The rows, those that compete first, with their ranks: equal values have the same."""
    rows = sorted(group.rows, key=lambda row: (-row.worth(sort), row.status, row.label))
    values = sorted({row.worth(sort) for row in rows if _competes(row, sort, group.track)}, reverse=True)
    ranks = {value: rank for rank, value in enumerate(values, start=1)}
    rows = [replace(row, rank=ranks[row.worth(sort)]) if _competes(row, sort, group.track) else row for row in rows]
    return sorted(rows, key=lambda row: row.rank is None)


def _two_best(rows: Sequence[Row], metric: str, lower_is_better: bool) -> tuple[float, ...]:
    """The two best values of a metric among the rows that have a rank."""
    values = {row.metrics[metric] for row in rows if row.rank and metric in row.metrics}
    return tuple(sorted(values, reverse=not lower_is_better)[:2])


def _by_column(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows by a column: numbers from the least, then texts by letter, then what is not known."""
    facts = ((row.facts.get(name) or cell(row, name) or None, row) for row in rows)
    return [row for _, row in sorted(facts, key=lambda fact: (fact[0] is None, isinstance(fact[0], str), fact[0] or 0))]


def _beside_popular(rows: Sequence[Row], sort: str) -> list[Row]:
    """The rows, with a mark at trained ones that could be, and are not, better than the most frequent labels."""
    from xmcbench.data.extent import DOMINATES  # imports numpy, which papers' results do not need

    ranked = [row for row in rows if row.rank]
    often = max((row.metrics.get("P@1", 0.0) for row in ranked if row.plugin == POPULAR), default=0.0)
    hint = f"; one label alone is right for {often:.0%} of the queries" if often > DOMINATES else ""
    below = {row.keys for row in ranked if is_below_popular(row, ranked, sort)}
    return [replace(row, below_popular=True, wrong=row.wrong + hint) if row.keys in below else row for row in rows]


def unfolded(rows: Sequence[Row], sort: str) -> list[Row]:
    """Every printed row on its own, best first; the first that prints a ranked result has its rank."""
    printed: list[Row] = []
    for row in rows:
        first, *others = row.folded or (row,)
        printed += [replace(first, rank=row.rank), *others]
    return sorted(printed, key=lambda row: (-row.worth(sort), row.rank is None))


def _competes(row: Row, sort: str, track: str) -> bool:
    if sort not in row.metrics or row.status != Status.OK or sort in row.misprints or "split" in row.facts:
        return False
    simulated = track == "zero-shot" and row.facts.get("simulated_teacher")
    return not simulated and (row.source == "published" or row.defined_as_now)
