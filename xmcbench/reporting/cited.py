"""Published rows beside measured ones: never in one row, but their difference is told where the setting is the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from xmcbench.record import Record
from xmcbench.reporting.columns import COLUMNS
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Fact, Row

# A setting is the same where both say these and agree, and do not disagree in what both say of the others.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DISAGREE = ("negatives", "loss", "dimension")


def cited_row(row: PublishedRow) -> Row:
    """A published row as a row of a leaderboard."""
    facts: dict[str, Fact | None] = {name: getattr(row, name, None) for name in COLUMNS if name != "settings"}
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


def _alike(name: str, ours: Fact, theirs: Fact) -> bool:
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
