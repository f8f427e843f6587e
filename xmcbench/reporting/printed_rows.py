"""Published rows to results: papers repeat one another's rows, and one result is one row of a leaderboard.

Rows of one method are the same result where most metrics that both print agree. Of each method and kind (encoder,
classifier, both) one result is shown, that of the method's own paper where there is one; ablations, costs and further
results of the kind are folded into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from xmcbench.reporting.claims import Claim
from xmcbench.reporting.numbers import Value
from xmcbench.reporting.published import COSTS, PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.suite.tables import COLUMNS

ROUNDING = 1.01e-4  # two values, fractions, that may be one value rounded twice
KIND_ALONE = ("encoder", "classifier", "encoder + classifier")  # variants that only name the kind
COMPARABLE = ("", *KIND_ALONE, "encoder + auxiliary", "x3")  # variants whose values should agree


def printed_row(row: PublishedRow, claims: Iterable[Claim] = ()) -> Row:
    """A published row on its own, with those of the `claims` that say that it is better than another row."""
    facts: dict[str, Value | None] = {name: getattr(row, name, None) for name in COLUMNS if name != "settings"}
    facts["settings"] = ", ".join(f"{name} {value}" for name, value in row.settings.items()) or None
    facts |= {"paper": row.source, "note": row.note or None, "role": row.role, "variants": None}
    facts |= {"split": row.split or None, "quoted_from": row.quoted_from or None}
    facts["slips"] = "; ".join(f"{name}: {text}" for name, text in row.slip.items()) or None
    return Row(
        source="published",
        method=row.method,
        variant=row.variant,
        kind=row.predictor,
        metrics=row.metrics,
        printed=row.printed | row.printed_costs,
        slips=row.slip,
        facts={name: fact for name, fact in facts.items() if fact not in (None, "")},
        papers=(row.paper,),
        url=row.url,
        citation=row.citation,
        claims=tuple(claim for claim in claims if claim.paper.is_about(row)),
    )


def results(published: Iterable[PublishedRow], claims: Iterable[Claim] = ()) -> list[Row]:
    """One row for each method and kind, with the other rows of the method folded into it. Nothing is lost."""
    known = tuple(claims)
    by_method: dict[str, list[PublishedRow]] = defaultdict(list)
    for row in published:
        by_method[row.method].append(row)
    return [shown for rows in by_method.values() for shown in _of_method(rows, known)]


Result = list[PublishedRow]  # the rows that print one result


def _of_method(rows: Sequence[PublishedRow], claims: Sequence[Claim]) -> list[Row]:
    shown: dict[str, list[Result]] = defaultdict(list)
    folded: dict[str, list[Result]] = defaultdict(list)
    for result in _merged(rows):
        place = shown if any(row.role == "main" for row in result) else folded
        place[_kind(result)].append(result)
    if not shown:  # a table that only has ablations of the method
        kind = next(iter(folded))
        shown[kind].append(folded[kind].pop(0))
    heads = {kind: sorted(results, key=_preference) for kind, results in shown.items()}
    for kind, others in folded.items():
        heads[kind if kind in heads else next(iter(heads))] += others
    return [_shown(results, kind, claims) for kind, results in heads.items()]


def _merged(rows: Sequence[PublishedRow]) -> list[Result]:
    """The rows of a method by result. Rows of unknown kind come last, so that they join a result of a known kind."""
    results: list[Result] = []
    for row in sorted(rows, key=lambda row: (not row.predictor, row.predictor == "classifier")):
        same = (result for result in results if _same_result(row, result))
        if (result := next(same, None)) is not None:
            result.append(row)
        else:
            results.append([row])
    order = {id(row): place for place, row in enumerate(rows)}
    return sorted(
        ([*sorted(result, key=lambda row: order[id(row)])] for result in results), key=lambda r: order[id(r[0])]
    )


def _same_result(row: PublishedRow, result: Result) -> bool:
    """Whether the row prints the result: kinds are compatible, and most common metrics agree, misprints left out."""
    if any((other.paper, other.table) == (row.paper, row.table) for other in result):
        return False  # what one table prints twice are two results
    known = {other.predictor for other in result} - {""}
    if row.predictor and known and row.predictor not in known:
        return False
    if not row.predictor and row.classifier and known == {"encoder"}:
        return False
    common = [
        abs(row.metrics[name] - other.metrics[name])
        for other in result
        for name in row.metrics.keys() & other.metrics.keys() - row.slip.keys() - other.slip.keys()
    ]
    return 2 * sum(difference < ROUNDING for difference in common) > len(common)


def _kind(result: Result) -> str:
    known = next((row.predictor for row in result if row.predictor), "")
    return known or ("classifier" if any(row.classifier for row in result) else "")


def _preference(result: Result) -> tuple[bool, bool, bool, int]:
    """What is shown first: the method's own paper, without misprints, measured on the usual split, printed most often.

    Of one paper's results the first one comes first, since sorting is stable.
    """
    own = any(row.introduced for row in result)
    return not own, all(row.slip for row in result), any(row.split for row in result), 0 if own else -len(result)


def _shown(results: Sequence[Result], kind: str, claims: Sequence[Claim]) -> Row:
    """The first result as a row, the others folded into it."""
    head = sorted(results[0], key=lambda row: (not row.introduced, bool(row.slip)))
    rows = [printed_row(row, claims) for row in head]
    facts = {name: fact for row in reversed(rows) for name, fact in row.facts.items()}
    facts["paper"] = _sources(head)
    others = [printed_row(row, claims) for result in results[1:] for row in result]
    for cost in (row for row in others if row.facts["role"] == "cost" and not row.variant):
        facts = {**{name: cost.facts[name] for name in COSTS if name in cost.facts}, **facts}
    variants = len(results) - 1
    if variants:
        facts["variants"] = f"+{variants}"
    notes = dict.fromkeys(str(row.facts["note"]) for row in rows if "note" in row.facts)
    if notes:
        facts["note"] = " ".join(notes)
    metrics = {name: value for row in reversed(rows) for name, value in row.metrics.items()}
    return replace(
        rows[0],
        variant="" if rows[0].variant in KIND_ALONE else rows[0].variant,
        kind=kind,
        metrics=metrics,
        printed={name: text for row in reversed(rows) for name, text in row.printed.items()},
        slips={name: text for row in rows for name, text in row.slips.items() if _only_misprinted(name, rows)},
        facts={name: fact for name, fact in facts.items() if name != "role"},
        claims=tuple(dict.fromkeys(claim for row in rows for claim in row.claims)),
        papers=tuple(dict.fromkeys(row.papers[0] for row in rows)),
        disagreements=_disagreements(results),
        folded=(*rows, *others),
    )


def _only_misprinted(metric: str, rows: Sequence[Row]) -> bool:
    """Whether every row that prints the metric misprints it."""
    return all(metric in row.slips for row in rows if metric in row.metrics)


def _disagreements(results: Sequence[Result]) -> dict[str, str]:
    """For each metric that is printed with several values, these values and their sources."""
    rows = [row for result in results for row in result if row.role == "main" and row.variant in COMPARABLE]
    rows = [
        row for row in {row.key: row for row in [*results[0], *rows]}.values() if row in results[0] or not row.split
    ]
    disagreements = {}
    for metric in dict.fromkeys(name for row in rows for name in row.metrics):
        values: dict[str, list[PublishedRow]] = defaultdict(list)
        for row in rows:
            if metric in row.metrics and metric not in row.slip:
                values[row.printed[metric]].append(row)
        if len({float(value) for value in values}) > 1:
            listed = (f"{value} ({_sources(printing)})" for value, printing in values.items())
            disagreements[metric] = " or ".join(listed)
    return disagreements


def _sources(rows: Iterable[PublishedRow]) -> str:
    """Papers and tables: ``dexml Table 1, 4; prime Table 2``."""
    tables: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.table not in tables[row.paper]:
            tables[row.paper].append(row.table)
    return "; ".join(
        f"{paper} {', '.join([first, *(table.removeprefix('Table ') for table in rest)])}"
        for paper, (first, *rest) in tables.items()
    )
