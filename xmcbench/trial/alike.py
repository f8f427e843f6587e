"""Which records may be averaged: seeds of one trial, trained by one code, scored by one definition on one truth.

Every mean over seeds is over a group that `by_result` makes, and `significance.samples` refuses any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from xmcbench.trial.record import SCORED, Record


def by_result(records: Iterable[Record]) -> list[list[Record]]:
    """Group the records that differ only in their seed and ended in the same way, by ascending seed."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.but_seed, record.status].append(record)
    return [sorted(group, key=lambda record: record.trial.seed) for group in groups.values()]


def newest_code(records: Iterable[Record]) -> list[Record]:
    """The records of the newest code (that of the trial that ended last), of records that differ only in seed."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.trial.seed):
        groups[record.but_seed].append(record)
    return max(groups.values(), key=_age, default=[])


def superseded(groups: Sequence[Sequence[Record]]) -> list[str]:
    """For each group of `by_result`: which other group of the same trials is newer, as text; empty for the newest.

    Groups without metrics are not compared.
    """
    newest: dict[str, Sequence[Record]] = {}
    for group in groups:
        if group[0].status in SCORED:
            known = newest.setdefault(group[0].trial.but_seed, group)
            newest[group[0].trial.but_seed] = max(known, group, key=_age)
    return [_difference(group, newest.get(group[0].trial.but_seed, group)) for group in groups]


def _difference(group: Sequence[Record], newest: Sequence[Record]) -> str:
    old, new, count = group[0], newest[0], f"{len(group)} trial{'s' * (len(group) > 1)}"
    if old.status not in SCORED or old.but_seed == new.but_seed:
        return ""
    if old.code != new.code:
        return f"{code_name(old)} of {count}, now {code_name(new)}"
    if old.pretrained != new.pretrained:
        return f"other content of the pretrained model, of {count}"
    return f"other test targets, of {count}" if old.truth_hash != new.truth_hash else ""


def several_codes(records: Iterable[Record]) -> int:
    """How many digests of an older form records of one row have; 0 where all have the same, or the form of today.

    That form told comments apart too, so that several digests need not be several codes, and nothing tells which are.
    """
    older = {record.code_digest for record in records if not record.code}
    return len(older) if len(older) > 1 else 0


def code_name(record: Record) -> str:
    """The record's code in a few letters."""
    return f"code {record.code[:8]}" if record.code else "code in an older form"


def _age(group: Sequence[Record]) -> tuple[str, str]:
    """Greater for newer code; of two that ended in one second, the same one is the newer everywhere."""
    return max((record.ended, record.code) for record in group)


def fused_before(records: Sequence[Record]) -> dict[str, str]:
    """By key of a fusion: the parts that were trained again after it was made, as text."""
    now = {record.key: record.predictions_digest for record in records}
    changed = {
        record.key: [part.name for part in record.parts if now.get(part.key) not in (None, "", part.predictions)]
        for record in records
    }
    return {
        key: f"fused before {', '.join(parts)} was trained again: fuse it anew"
        for key, parts in changed.items()
        if parts
    }


def redefined(records: Sequence[Record], installed: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """By key: the metrics that other records of the table have from other code of an evaluator.

    `installed` gives the digest of the evaluator that `xmcbench rescore` would use, empty where there is none: then the
    code is right that the newest record has.
    """
    ended: dict[str, dict[str, str]] = defaultdict(dict)  # by evaluator and digest: the end of the newest record
    for name, digest, record in _definitions(records):
        ended[name][digest] = max(record.ended, ended[name].get(digest, ""))
    several = {name: digests for name, digests in ended.items() if len(digests) > 1}
    right = {
        name: installed(name) or max(digests, key=lambda one: (digests[one], one)) for name, digests in several.items()
    }
    old: dict[str, set[str]] = defaultdict(set)
    for name, digest, record in _definitions(records):
        if digest != right.get(name, digest):
            old[record.key].add(name)
    return {
        record.key: tuple(metric for metric in record.metrics if metric.partition("@")[0] in old[record.key])
        for record in records
        if record.key in old
    }


def _definitions(records: Iterable[Record]) -> Iterator[tuple[str, str, Record]]:
    """Each evaluator of each record, with the digest of its code; empty for those of xmcbench."""
    for record in records:
        for name in dict.fromkeys(metric.partition("@")[0] for metric in record.metrics):
            yield name, record.definition(name)[1], record
