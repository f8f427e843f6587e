"""Published rows beside measured ones: never in one row, but their difference is told where the setting is the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from xmcbench.reporting.columns import COLUMNS
from xmcbench.reporting.numbers import Value
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.trial.record import Record

# A setting is the same where both say these and agree, and do not disagree in what both say of the others.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DISAGREE = ("negatives", "loss", "dimension")
SAID_OF_A_TABLE = {"paper", "note"}


def cited_row(row: PublishedRow) -> Row:
    """A published row as a row of a leaderboard."""
    facts: dict[str, Value | None] = {name: getattr(row, name, None) for name in COLUMNS if name != "settings"}
    facts["settings"] = ", ".join(f"{name} {value}" for name, value in row.settings.items()) or None
    facts |= {"paper": row.source, "note": row.note or None}
    return Row(
        source="published",
        method=row.label,
        metrics=row.metrics,
        printed=row.printed,
        facts={name: fact for name, fact in facts.items() if fact is not None},
        place=row.place,
        url=row.url,
        citation=row.citation,
    )


def cited_rows(published: Iterable[PublishedRow]) -> list[Row]:
    """Published rows as rows of a leaderboard. A result that a paper prints in several tables is one row, and names all
    of them: the method and variant are one, a figure is in both, and neither says what the other denies.
    """
    results: dict[tuple[str, str], list[list[Row]]] = defaultdict(list)
    for row in published:
        same_name = results[row.paper, row.label]
        found = cited_row(row)
        told = next((told for told in same_name if all(_one_result(found, other) for other in told)), None)
        if told is None:
            same_name.append([found])
        else:
            told.append(found)
    return [_joined(told) for same_name in results.values() for told in same_name]


def _one_result(row: Row, other: Row) -> bool:
    figures = row.printed.keys() & other.printed.keys()
    facts = row.facts.keys() & other.facts.keys() - SAID_OF_A_TABLE
    return (
        any("@" in name for name in figures)
        and all(row.printed[name] == other.printed[name] for name in figures)
        and all(row.facts[name] == other.facts[name] for name in facts)
    )


def _joined(told: Sequence[Row]) -> Row:
    """What the tables say together."""
    facts = {name: fact for row in told for name, fact in row.facts.items()}
    facts["paper"] = _tables([str(row.facts["paper"]) for row in told])
    if notes := dict.fromkeys(str(row.facts["note"]) for row in told if "note" in row.facts):
        facts["note"] = " ".join(notes)
    return replace(
        told[0],
        metrics={name: figure for row in told for name, figure in row.metrics.items()},
        printed={name: digits for row in told for name, digits in row.printed.items()},
        facts=facts,
        place=", ".join(row.place for row in told),
    )


def _tables(sources: Sequence[str]) -> str:
    """
    >>> _tables(["prime Table 2", "prime Table 4", "prime Section 5"])
    'prime Table 2, 4, Section 5'
    """
    paper = sources[0].partition(" ")[0]
    places = [source.removeprefix(f"{paper} ") for source in sources]
    return f"{paper} {', '.join([places[0], *(place.removeprefix('Table ') for place in places[1:])])}"


def with_difference(row: Row, record: Record, published: Iterable[PublishedRow]) -> Row:
    """The measured row, with what it is more than the published one of the same method and setting, if there is one."""
    found = _same_setting(row, record, list(published))
    if found is None:
        return row
    against = {name: row.metrics[name] - figure for name, figure in found.metrics.items() if name in row.metrics}
    return replace(row, against=against, against_source=found.source)


def _same_setting(row: Row, record: Record, published: Sequence[PublishedRow]) -> PublishedRow | None:
    """The published row that says most that is true of the measured one too; of several the one without a variant."""
    trial = record.trial
    near = [other for other in published if other.dataset == trial.dataset and other.track == trial.track]
    near = [other for other in near if not other.protocol and other.metrics]
    names = {_plain(other.method) for other in near}
    name = _plain(trial.label) if _plain(trial.label) in names else _plain(trial.method)
    agreeing = [
        (agreements, other)
        for other in near
        if _plain(other.method) == name and (agreements := _agreements(row, other))
    ]
    return min(agreeing, key=lambda pair: (-pair[0], len(pair[1].variant)))[1] if agreeing else None


def _agreements(row: Row, other: PublishedRow) -> int:
    """How many facts both state alike; 0 where the settings are not the same."""
    count = 0
    for name in (*MUST_AGREE, *MAY_NOT_DISAGREE):
        ours, theirs = row.facts.get(name), getattr(other, name)
        if ours is None or theirs is None:
            if name in MUST_AGREE:
                return 0
        elif _alike(name, ours, theirs):
            count += 1
        else:
            return 0
    return count


def _alike(name: str, ours: Value, theirs: Value) -> bool:
    first, second = _plain(str(ours)), _plain(str(theirs))
    if name == "encoder":  # distilbert-base, DistilBERT and distilbert-base-uncased
        return first.startswith(second) or second.startswith(first)
    return first.removesuffix("labels") == second.removesuffix("labels")


def _plain(text: str) -> str:
    """
    >>> _plain("PRIME-lite")
    'primelite'
    """
    return "".join(letter for letter in text.casefold() if letter.isalnum())
