"""Accepted trials as the documents see them: the methods of a study over their seeds, and by how much they differ.

Differences are over test queries and seeds, and corrected by Holm for all methods of the study that are compared with
the same rival by the same metric (`xmcbench/evaluation/significance.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import (
    Estimate,
    Relation,
    Sample,
    difference,
    estimate,
    relation_shown,
    significant_together,
)
from xmcbench.reporting.make_rows import newest_versions
from xmcbench.reporting.names import NamedMethod, named
from xmcbench.suite.tables import RANKS
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store
from xmcbench.trial.trial import flatten
from xmcbench.trial.versions import Versions
from xmcbench_plugins.analysis import plots

METRICS = ("P@1", "P@5", "PSP@5", "macro-F1@5", "R@100")
ALONG = "nDCG@5"  # on held-out queries, along the budget
NEAR = 0.04  # of the budget: an evaluation stands at the first step after its share, a shortlist may lie between
LATE = 0.7  # of a training: what quality gains from here on
EQUAL = 0.01  # the widest margin within which two methods are called equal


@dataclass(frozen=True)
class Study:
    """A suite on a dataset, and the figures that the documents show of it."""

    name: str
    suite: str
    dataset: str
    place: str = ""  # the dataset in a sentence
    figures: tuple[str, ...] = ()
    beside: str = ""  # a study with another encoder: its rows stand beside these, in place of other tables
    also: tuple[tuple[str, str], ...] = ()  # further suites, and a label of each, with seeds of their own number
    suggested: tuple[str, ...] = ()  # labels that results on test queries suggested: no headline chooses them


_STUDIES = (
    Study(
        "titles",
        "evidence",
        "lf-tate-titles-16k",
        "titles",
        ("quality", "budget", "ranks", "tail"),
        also=(("evidence-one-vs-rest", "one-vs-rest"),),
        suggested=("rae-in-batch",),
    ),
    Study(
        "records",
        "evidence-tibkat",
        "lf-tibkat-15k",
        "the small library set",
        ("quality", "budget"),
    ),
    Study("gnd", "evidence-gnd", "lf-tibkat-gnd-38k", "the large library set", ("quality",)),
    Study("packages", "evidence-packages", "debian-packages", "packages", ("quality",)),
    Study("layers", "evidence-minilm", "lf-tate-titles-16k", "titles", beside="titles"),
    Study("layers-records", "evidence-minilm-tibkat", "lf-tibkat-15k", "the small library set", beside="records"),
)
STUDIES = {study.name: study for study in _STUDIES}
MAIN = tuple(study.name for study in _STUDIES if not study.beside)

# Groups of methods that sentences speak of: families of leaderboard/methods.yaml, or labels.
FAMILIES = {
    "encoders": ("softmax dual encoder", "triplet dual encoder"),
    "linear programs": ("linear",),
    "second stages": ("second stage",),
    "text matching": ("text match",),
}
LABELS = {"trees": ("plt", "parabel", "xr-linear"), "memories": ("rae", "rae-in-batch")}


@dataclass(frozen=True)
class Gap:
    """By how much a method is above another by a metric; as text, in points with a sign."""

    first: str
    second: str
    metric: str
    place: str
    found: Estimate
    significant: bool  # corrected

    @property
    def relation(self) -> Relation:
        return relation_shown(self.found, self.significant, EQUAL)

    @property
    def points(self) -> str:
        """Without a sign."""
        return f"{abs(100 * self.found.value):.1f}"

    @property
    def interval(self) -> str:
        low, high = self.found.interval
        return f"{100 * low:.1f} to {100 * high:.1f}"

    @property
    def margin(self) -> str:
        """The points within which two one-sided tests find the two equal, rounded up."""
        return f"{-(-10000 * self.found.equivalence_margin // 1) / 100:.2f}"

    def __str__(self) -> str:
        return f"{100 * self.found.value:+.1f}"

    @property
    def told(self) -> str:
        """For messages."""
        return f"{self.first} is {self} of {self.metric} over {self.second} on {self.place} ({self.interval})"


@dataclass(frozen=True, eq=False)
class Method:
    """The trials of a label, one for each seed, and the study that they belong to."""

    label: str
    records: Sequence[Record]
    samples: Mapping[str, Sample]
    board: Board = field(repr=False)
    older: str = ""  # why it is a result of older code; empty if it is not

    @property
    def named(self) -> NamedMethod:
        return named(self.label, self.records[0].trial.method)

    @property
    def name(self) -> str:
        """As in papers."""
        return self.named.call(self.label)

    @property
    def family(self) -> int:
        """The number of its family, which is that of its colour."""
        return self.named.colour

    @property
    def colour(self) -> str:
        return plots.COLOURS[self.family]

    def __getitem__(self, metric: str) -> str:
        """A metric in per cent."""
        return f"{100 * self.sample(metric).mean:.1f}"

    def sample(self, metric: str) -> Sample:
        if metric not in self.samples:
            raise UnknownNameError("metric", metric, self.samples, f"{self.board.study.name}/{self.label}")
        return self.samples[metric]

    def over(self, rival: Method | str, metric: str) -> Gap:
        """By how much it is above another method of the study; of another study with the same test queries too."""
        if isinstance(rival, Method) and rival.board is not self.board:
            return self._over_another(rival, metric)
        other = self.board[rival] if isinstance(rival, str) else rival
        return self.board.gaps(other.label, metric)[self.label]

    def _over_another(self, rival: Method, metric: str) -> Gap:
        """Corrected for all methods of the rival's study that it could have been compared with."""
        if rival.records[0].truth_hash != self.records[0].truth_hash:
            raise XMCBenchError(f"{self.label} and {rival.label} have different test queries")
        found = [difference(self.sample(metric), other.sample(metric)) for other in rival.board]
        at = rival.board.methods.index(rival)
        clear = significant_together(found)[at]
        return Gap(self.label, rival.label, metric, self.board.study.place, found[at], clear)

    def lead(self, metric: str, *among: str) -> Gap:
        """Over the method of a group (of all, without one) that it is least clearly above."""
        others = [own for own in self.board.group(*among) if own is not self]
        return min((self.over(own, metric) for own in others), key=lambda gap: (gap.significant, gap.found.value))

    @property
    def seeds(self) -> int:
        return len(self.records)

    @property
    def samples_of_tuning(self) -> int:
        """How many settings were tried; 0 where it was not tuned."""
        return len((self.records[0].chosen or {}).get("samples", ()))

    @property
    def trained(self) -> bool:
        """Whether it spends the budget, and was evaluated within it."""
        return any(record.curve for record in self.records)

    @property
    def evaluated_along(self) -> bool:
        """Whether it was evaluated along the budget: second stages are at their end alone."""
        return any(len(record.curve) > 1 for record in self.records)

    def at(self, share: float) -> float:
        """The best quality on held-out queries up to a share of the operations; without training, that of tuning."""
        if not self.trained:
            return float((self.records[0].chosen or {}).get("quality", 0.0))
        return self._best(
            lambda record, own: own.get("flops", inf) <= (share + NEAR) * (record.trial.budget.flops or 0)
        )

    def _best(self, counts: Callable[[Record, Mapping[str, float]], bool]) -> float:
        """The best evaluation of those that count, mean over seeds; 0 of none."""
        return fmean(
            max((own[ALONG] for own in record.counted_curve if counts(record, own)), default=0.0)
            for record in self.records
        )

    def rise(self, start: float) -> float | None:
        """What quality on held-out queries gains from a share of its own training on; None where it is not known."""
        if not self.evaluated_along:
            return None
        return self.at(1.0) - self._best(lambda _, own: own["fraction"] <= start + NEAR)

    def spent(self, name: str) -> float:
        return fmean(record.counted.get(name) or 0 for record in self.records)

    @property
    def operations(self) -> float:
        """0: not counted, or none."""
        return self.spent("flops")

    @property
    def share(self) -> float:
        """The share of the budget's operations that it spent."""
        return self.operations / (self.records[0].trial.budget.flops or self.operations)

    @property
    def steps(self) -> int:
        return round(self.spent("steps"))

    def setting(self, name: str) -> Any:
        """A setting by its dotted name, as in `encoder.layers`."""
        settings = dict(flatten(self.records[0].trial.config))
        if name not in settings:
            raise UnknownNameError("setting", name, settings, f"{self.board.study.name}/{self.label}")
        return settings[name]


class Board:
    """The finished methods of a study, best first by `RANKS`."""

    def __init__(self, study: Study, store: Store, records: Iterable[Record], newest: Mapping[str, Versions]) -> None:
        """Raises `XMCBenchError` where the study has no trials."""
        self.study = study
        found: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            suite, label = record.suite, record.trial.label
            ours = (suite == study.suite and "/" not in label) or (suite, label) in study.also  # no sample of tuning
            if ours and record.trial.dataset == study.dataset and record.status is Status.OK:
                found[label].append(record)
        if not found:
            raise XMCBenchError(f"{store.root} has no trials of the suite {study.suite!r} on {study.dataset}")
        found = defaultdict(list, {label: self._newest(own) for label, own in found.items()})
        self.methods = []
        for label, own in found.items():
            records = sorted(own, key=lambda one: one.trial.seed)
            samples = stored_samples(store, records, tuple(records[0].metrics))
            older = records[0].older_than(newest[records[0].trial.method])
            self.methods.append(Method(label, records, samples, self, older))
        self.methods.sort(key=lambda method: -method.samples[RANKS].mean)
        self._gaps: dict[tuple[str, str], dict[str, Gap]] = {}

    @staticmethod
    def _newest(records: list[Record]) -> list[Record]:
        """Those of the newest code, where a label has trials of several: no value is a mean of two codes."""
        alike: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            alike[record.but_seed].append(record)
        parts = sorted({part for record in records for part in record.trial.versions})

        def version(own: list[Record]) -> tuple[list[int], str]:
            return [own[0].trial.versions.get(part, 0) for part in parts], max(one.ended for one in own)

        return max(alike.values(), key=version)

    @cached_property
    def _by_label(self) -> dict[str, Method]:
        return {method.label: method for method in self.methods}

    def __contains__(self, label: object) -> bool:
        return any(method.label == label for method in self.methods)

    def __iter__(self) -> Iterator[Method]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __getitem__(self, label: str) -> Method:
        if label not in self._by_label:
            raise UnknownNameError("row", label, self._by_label, self.study.name)
        return self._by_label[label]

    def group(self, *names: str) -> list[Method]:
        """The methods of groups, best first; all of them without a name."""
        for name in names:
            if name not in {**FAMILIES, **LABELS}:
                raise UnknownNameError("group", name, {**FAMILIES, **LABELS}, self.study.name)
        families = {family for name in names for family in FAMILIES.get(name, ())}
        labels = {label for name in names for label in LABELS.get(name, ())}
        return [own for own in self.methods if not names or own.label in labels or own.named.family in families]

    def best(self, metric: str, *groups: str) -> Method:
        """The method of a group with the highest mean. For a rival: the best of many is a little too good."""
        return max(self.group(*groups), key=lambda own: own.sample(metric).mean)

    def chosen(self, *groups: str) -> Method:
        """The method of a group that held-out training queries choose: no test query has a part in that."""
        return max(self.group(*groups), key=lambda own: own.at(1.0))

    def leaders(self, share: float, *groups: str) -> list[Method]:
        """The trained methods of a group, best first on held-out queries with a share of the budget's operations."""
        return sorted((own for own in self.group(*groups) if own.trained), key=lambda own: -own.at(share))

    @property
    def usual_seeds(self) -> int:
        """How many seeds most methods have."""
        return Counter(own.seeds for own in self.methods).most_common(1)[0][0]

    @property
    def budget(self) -> Budget | UnknownBudget:
        """The limits that most methods have."""
        return Counter(own.records[0].trial.budget for own in self.methods).most_common(1)[0][0]

    @property
    def ended_early(self) -> list[Method]:
        """Trained methods that ended, by epochs, with less than half of the operations."""
        return [own for own in self.methods if own.trained and own.share < 0.5]

    @property
    def rising(self) -> list[Method]:
        """Methods whose quality on held-out queries gained more than `EQUAL` over the last part of their training."""
        return [own for own in self.along if (own.rise(LATE) or 0) > EQUAL]

    @property
    def along(self) -> list[Method]:
        """Methods that were evaluated along their training."""
        return [own for own in self.methods if own.evaluated_along]

    @property
    def queries(self) -> int:
        """Test queries."""
        return int(self.methods[0].records[0].spent["predicted_queries"])

    @property
    def samples_of_tuning(self) -> int:
        return max(own.samples_of_tuning for own in self.methods)

    def rank(self, label: str, metric: str) -> int:
        """1 is that of the highest mean."""
        own = self[label].sample(metric).mean
        return 1 + sum(other.sample(metric).mean > own for other in self.methods)

    def correlation(self, first: str, second: str) -> float:
        """Spearman's rank correlation of two metrics over the methods."""
        x, y = (np.array([own.sample(metric).mean for own in self.methods]) for metric in (first, second))
        return float(spearmanr(x, y).statistic)

    def gaps(self, rival: str, metric: str) -> dict[str, Gap]:
        """By label: how far every method is above the rival; corrected for their number."""
        if (rival, metric) not in self._gaps:
            second = self[rival].sample(metric)
            others = [own for own in self.methods if own.label != rival]
            found = [difference(own.sample(metric), second) for own in others]
            self._gaps[rival, metric] = {
                own.label: Gap(own.label, rival, metric, self.study.place, value, clear)
                for own, value, clear in zip(others, found, significant_together(found), strict=True)
            }
        return self._gaps[rival, metric]


class Boards:
    """All studies of a store, each read once."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.records = list(self.store.records())
        self.newest = newest_versions(self.records)
        self._read: dict[Study, Board] = {}

    def __getitem__(self, study: str | Study) -> Board:
        own = STUDIES[study] if isinstance(study, str) else study
        if own not in self._read:
            self._read[own] = Board(own, self.store, self.records, self.newest)
        return self._read[own]

    def suite(self, name: str, dataset: str) -> Board:
        """The trials of any suite on a dataset."""
        suites = {record.suite for record in self.records}
        if name not in suites:
            raise UnknownNameError("suite", name, suites)
        base, track, rest = dataset.partition("+")
        place = next((own.place for own in STUDIES.values() if own.dataset == base), base)
        return self[Study(name, name, dataset, f"{place}{track}{rest}")]

    def of_suite(self, name: str) -> list[Board]:
        """The trials of a suite, on each of its datasets."""
        datasets = sorted({record.trial.dataset for record in self.records if record.suite == name})
        return [self.suite(name, dataset) for dataset in datasets]

    @property
    def main(self) -> list[Board]:
        """The studies of one encoder, a dataset each."""
        return [self[name] for name in MAIN]

    def has(self, suite: str) -> bool:
        """Whether there are trials of a suite."""
        return any(record.suite == suite for record in self.records)

    def older(self) -> list[str]:
        """A line for each method that was read whose trials are of older code."""
        return [
            f"{study.name}/{own.label}: older code ({own.older})"
            for study, board in self._read.items()
            for own in board
            if own.older
        ]


def half(sample: Sample) -> float:
    """Half the width of the 95 % interval."""
    low, high = estimate(sample).interval
    return (high - low) / 2
