"""What the overview compares: methods of a dataset under one budget with one encoder, variants folded behind each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xmcbench.evaluation.significance import Sample, difference, tied_with_best
from xmcbench.reporting.curated import NamedMethod
from xmcbench.reporting.rows import Group

Samples = Mapping[int, Mapping[str, Sample]]  # by the number of a group's row, and by metric


@dataclass(frozen=True)
class Head:
    """A method of a setting: its row with the recommended settings, and its other rows."""

    method: NamedMethod
    row: int  # of the group
    variants: tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """Rows that differ in their methods alone: of one dataset, track, budget and encoder."""

    encoder: str  # empty where no row has one, and for papers
    heads: tuple[Head, ...]
    tied: dict[str, tuple[int, ...]]  # by metric: rows that are not significantly different from the best of the heads


def settings(group: Group, samples: Samples) -> list[Setting]:
    """The settings of a group, first the one with the most methods, then the most seeds."""
    ranked = [at for at, row in enumerate(group.rows) if row.rank is not None]
    encoders = [""]
    if group.source != "published":
        known = (group.rows[at].facts.get("encoder") for at in ranked)
        encoders = list(dict.fromkeys(str(name) for name in known if name)) or [""]
    found = [
        _setting(group, encoder, [at for at in ranked if _has(group, at, encoder)], samples) for encoder in encoders
    ]
    return sorted(found, key=lambda one: (-len(one.heads), -sum(len(group.rows[h.row].keys) for h in one.heads)))


def _has(group: Group, at: int, encoder: str) -> bool:
    """Whether a row has this encoder, or none."""
    return group.source == "published" or group.rows[at].facts.get("encoder", encoder) == encoder


def _setting(group: Group, encoder: str, ranked: Sequence[int], samples: Samples) -> Setting:
    by_method: dict[NamedMethod, list[int]] = defaultdict(list)
    for at in ranked:
        by_method[group.rows[at].named].append(at)
    heads = []
    for method, own in by_method.items():
        first, *variants = own if group.source == "published" else sorted(own, key=lambda at: group.rows[at].preference)
        heads.append(Head(method, first, tuple(variants)))
    tied = {}
    for metric in group.metrics:
        known = [head.row for head in heads if metric in samples.get(head.row, {})]
        sizes = {samples[at][metric].replicates_SB.shape[1] for at in known}
        if len(known) > 1 and len(sizes) == 1:
            marks = tied_with_best([samples[at][metric] for at in known])
            tied[metric] = tuple(at for at, same in zip(known, marks, strict=True) if same)
    return Setting(encoder, tuple(heads), tied)


def half_widths(samples: Samples, metric: str) -> list[int | None]:
    """Half the 95 % interval of the paired difference of each pair of rows, in hundredths of a point.

    The pairs are (0, 1), (0, 2), ..., (1, 2), ... of the rows in `samples`; None where a pair cannot be compared.
    """
    own = [of.get(metric) for of in samples.values()]
    pairs = [(first, second) for at, first in enumerate(own) for second in own[at + 1 :]]
    return [_half_width(*pair) for pair in pairs]


def _half_width(first: Sample | None, second: Sample | None) -> int | None:
    if first is None or second is None or first.replicates_SB.shape[1] != second.replicates_SB.shape[1]:
        return None
    low, high = difference(first, second).interval
    return round(10_000 * (high - low) / 2)
