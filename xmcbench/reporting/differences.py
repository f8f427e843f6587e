"""The difference of a measured row from the published row of the same method and setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from xmcbench.reporting.numbers import Value, folded
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.trial.record import Record

# Two settings are the same where both rows state these facts and agree, and no other stated fact differs.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DIFFER = ("negatives", "loss", "dimension")


def with_difference(row: Row, record: Record, published: Iterable[PublishedRow]) -> Row:
    """The measured row with its difference from the published row of the same method and setting, if there is one."""
    match = _same_setting(row, record, list(published))
    if match is None:
        return row
    against = {name: row.metrics[name] - value for name, value in match.metrics.items() if name in row.metrics}
    return replace(row, against=against, against_source=match.source)


def _same_setting(row: Row, record: Record, published: Sequence[PublishedRow]) -> PublishedRow | None:
    """The published row that agrees in most facts; of several the one with the shortest variant."""
    trial = record.trial
    near = [other for other in published if other.dataset == trial.dataset and other.track == trial.track]
    near = [other for other in near if not other.protocol and other.metrics]
    names = {folded(other.method) for other in near}
    name = folded(trial.label) if folded(trial.label) in names else folded(trial.method)
    agreeing = [
        (agreements, other)
        for other in near
        if folded(other.method) == name and (agreements := _agreements(row, other))
    ]
    return min(agreeing, key=lambda pair: (-pair[0], len(pair[1].variant)))[1] if agreeing else None


def _agreements(row: Row, other: PublishedRow) -> int:
    """The number of facts on which both rows agree; 0 where the settings are not the same."""
    count = 0
    for name in (*MUST_AGREE, *MAY_NOT_DIFFER):
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
    first, second = folded(str(ours)), folded(str(theirs))
    if name == "encoder":  # distilbert-base, DistilBERT and distilbert-base-uncased
        return first.startswith(second) or second.startswith(first)
    return first.removesuffix("labels") == second.removesuffix("labels")
