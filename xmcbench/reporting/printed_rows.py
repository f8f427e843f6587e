"""Published results as rows of a leaderboard.

Papers repeat one another's rows, and one result is one row. Rows of one method are the same result where most metrics
that both print agree. Of each method and kind (encoder, classifier, both) one result is shown, that of the method's own
paper where there is one; ablations, costs and further results of the kind are folded into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from xmcbench.reporting.paper_rows import COSTS, KINDS, Claim, PublishedRow
from xmcbench.reporting.rows import Row, grouped
from xmcbench.reporting.text_table import Value
from xmcbench.suite.tables import COLUMNS

ROUNDING = 1.01e-4  # two values, fractions, that may be one value rounded twice
COMPARABLE = ("", *KINDS, "encoder + auxiliary", "x3")  # variants whose values should agree


def printed_row(row: PublishedRow, claims: Iterable[Claim] = ()) -> Row:
    """A published row on its own, with those of the `claims` that say that it is better than another row."""
    facts: dict[str, Value | None] = {name: getattr(row, name, None) for name in COLUMNS if name != "settings"}
    facts["settings"] = ", ".join(f"{name} {value}" for name, value in row.settings.items())
    facts["misprints"] = "; ".join(f"{name}: {text}" for name, text in row.misprint.items())
    facts["paper"] = row.source
    return Row(
        source="published",
        method=row.method,
        variant=row.variant,
        kind=row.predictor,
        metrics=row.metrics,
        printed=row.printed | row.printed_costs,
        misprints=row.misprint,
        facts={name: fact for name, fact in facts.items() if fact not in (None, "")},
        papers=(row.paper,),
        url=row.url,
        citation=row.citation,
        claims=tuple(claim for claim in claims if claim.is_about(row)),
    )


def merged_rows(published: Iterable[PublishedRow], claims: Sequence[Claim]) -> list[Row]:
    """One row for each method and kind, with the other rows of the method folded into it. Nothing is lost."""
    by_method = grouped(published, lambda row: row.method).values()
    return [shown for rows in by_method for shown in _of_method(rows, claims)]


Result = list[PublishedRow]  # the rows that print one result


def _of_method(rows: Sequence[PublishedRow], claims: Sequence[Claim]) -> list[Row]:
    merged = _merged(rows)
    shown = grouped((result for result in merged if any(row.role == "main" for row in result)), _kind)
    folded = grouped((result for result in merged if all(row.role != "main" for row in result)), _kind)
    if not shown:  # a table that only has ablations of the method
        kind = next(iter(folded))
        shown[kind] = [folded[kind].pop(0)]
    for results in shown.values():
        results.sort(key=_preference)
    for kind, others in folded.items():
        shown[kind if kind in shown else next(iter(shown))] += others
    return [_shown(results, kind, claims) for kind, results in shown.items()]


def _merged(rows: Sequence[PublishedRow]) -> list[Result]:
    """The rows of a method by result. Rows of unknown kind come last, so that they join a result of a known kind."""
    results: list[list[int]] = []  # by the places of the rows
    for at in sorted(range(len(rows)), key=lambda at: (not rows[at].predictor, rows[at].predictor == "classifier")):
        same = (result for result in results if _same_result(rows[at], [rows[other] for other in result]))
        if (result := next(same, None)) is not None:
            result.append(at)
        else:
            results.append([at])
    return [[rows[at] for at in result] for result in sorted(map(sorted, results))]


def _same_result(row: PublishedRow, result: Result) -> bool:
    """Whether the row prints the result: kinds are compatible, and most common metrics agree, misprints left out."""
    if any((other.paper, other.table) == (row.paper, row.table) for other in result):
        return False  # what one table prints twice are two results
    known = {other.predictor for other in result} - {""}
    if known and (row.predictor not in known if row.predictor else row.classifier and known == {"encoder"}):
        return False
    common = [
        abs(row.metrics[name] - other.metrics[name])
        for other in result
        for name in row.metrics.keys() & other.metrics.keys() - row.misprint.keys() - other.misprint.keys()
    ]
    return 2 * sum(difference < ROUNDING for difference in common) > len(common)


def _kind(result: Result) -> str:
    known = next((row.predictor for row in result if row.predictor), "")
    return known or ("classifier" if any(row.classifier for row in result) else "")


def _preference(result: Result) -> tuple[bool, bool, bool, int]:
    """What is shown first: the method's own paper, without misprints, measured on the usual split, printed most often.

    Of one paper's results the first one comes first, since sorting is stable.
    """
    others = not any(row.introduced for row in result)
    misprinted, split = all(row.misprint for row in result), any(row.split for row in result)
    return others, misprinted, split, -len(result) if others else 0


def _shown(results: Sequence[Result], kind: str, claims: Sequence[Claim]) -> Row:
    """The first result as a row, the others folded into it."""
    head = sorted(results[0], key=lambda row: (not row.introduced, bool(row.misprint)))
    rows = [printed_row(row, claims) for row in head]
    others = [printed_row(row, claims) for result in results[1:] for row in result]
    facts = _joined_facts(rows, others) | {"paper": _sources(head)}
    if len(results) > 1:
        facts["variants"] = f"+{len(results) - 1}"
    return replace(
        rows[0],
        variant="" if rows[0].variant in KINDS else rows[0].variant,
        kind=kind,
        metrics={name: value for row in reversed(rows) for name, value in row.metrics.items()},
        printed={name: text for row in reversed(rows) for name, text in row.printed.items()},
        misprints=_misprints_of_all(rows),
        facts=facts,
        claims=tuple(dict.fromkeys(claim for row in rows for claim in row.claims)),
        papers=tuple(dict.fromkeys(row.papers[0] for row in rows)),
        disagreements=_disagreements(results),
        folded=(*rows, *others),
    )


def _joined_facts(rows: Sequence[Row], others: Sequence[Row]) -> dict[str, Value]:
    """What rows of one result say, the first before the others, and the costs that the paper prints elsewhere."""
    facts = {name: fact for row in reversed(rows) for name, fact in row.facts.items() if name != "role"}
    for cost in (row for row in others if row.facts["role"] == "cost" and not row.variant):
        facts = {**{name: cost.facts[name] for name in COSTS if name in cost.facts}, **facts}
    if notes := dict.fromkeys(str(row.facts["note"]) for row in rows if "note" in row.facts):
        facts["note"] = " ".join(notes)
    return facts


def _misprints_of_all(rows: Sequence[Row]) -> dict[str, str]:
    """The misprints that are in every row that prints the metric."""
    return {
        name: text
        for row in rows
        for name, text in row.misprints.items()
        if all(name in other.misprints for other in rows if name in other.metrics)
    }


def _disagreements(results: Sequence[Result]) -> dict[str, str]:
    """For each metric that is printed with several values, these values and their sources."""
    others = [row for result in results for row in result if row.role == "main" and row.variant in COMPARABLE]
    rows = {row.key: row for row in [*results[0], *(row for row in others if not row.split)]}.values()
    values: dict[str, dict[str, list[PublishedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for metric in row.metrics:
            printed = values[metric]
            if metric not in row.misprint:
                printed[row.printed[metric]].append(row)
    return {
        metric: " or ".join(f"{value} ({_sources(printing)})" for value, printing in by_value.items())
        for metric, by_value in values.items()
        if len(set(map(float, by_value))) > 1
    }


def _sources(rows: Iterable[PublishedRow]) -> str:
    """Papers and tables: ``dexml Table 1, 4; prime Table 2``."""
    sources = []
    for paper, of_paper in grouped(rows, lambda row: row.paper).items():
        first, *rest = dict.fromkeys(row.table for row in of_paper)
        sources.append(f"{paper} {', '.join([first, *(table.removeprefix('Table ') for table in rest)])}")
    return "; ".join(sources)
