"""Tracks: datasets derived from another by a seeded rule (docs/datasets.md). `lf-tate-titles-16k+few-shot-4` is one.

Every draw is the same on every machine. Test queries and their true labels are those of the first dataset, but for
`completion`.

Legend: N training queries, L labels, P true pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset, Split, Texts
from xmcbench.data.draws import Draws
from xmcbench.data.pairs import binary
from xmcbench.data.source import SIZES, Source
from xmcbench.data.text_files import pairs_csr
from xmcbench.data.texts import PackedTexts, take
from xmcbench.errors import UnknownNameError, XMCBenchError

MARK = "+"  # between the name of a dataset and a track
VERSION = 1  # of the rules below: a change of one gives its datasets other content
GIVEN = "; ", " | "  # between given labels, and between them and the query's own text


Rule = Callable[[Dataset, float, Draws], Dataset]


class DerivedSource(Source):
    """The dataset that a track makes of `base`."""

    def __init__(self, base: Source, name: str, rule: Rule, value: float, seed: int) -> None:
        self.base: Source = base
        self.draft = base.draft.model_copy(update={"name": name, **dict.fromkeys(SIZES)})
        self._rule, self._value, self._seed = rule, value, seed

    def missing(self, data_dir: Path) -> str | None:
        return self.base.missing(data_dir)

    def fingerprint(self, data_dir: Path) -> str:
        return f"track {VERSION} {self.name}\n{self.base.fingerprint(data_dir)}"

    def read(self, data_dir: Path) -> Dataset:
        made = self._rule(self.base.read(data_dir), self._value, Draws(self._seed))
        if not len(made.test.texts):
            raise XMCBenchError(f"{self.name}: no test query is left: {self.base.name} has none with two labels")
        sizes = len(made.train.texts), len(made.test.texts), len(made.label_texts)
        return replace(made, card=self.draft.card(*sizes, where=self.name))


def derived_source(base: Source, track: str) -> DerivedSource:
    """The dataset that the track of this name makes of `base`. Raises XMCBenchError for an unknown one."""
    name = f"{base.name}{MARK}{track}"
    parts = re.fullmatch(r"([a-z-]+)-([0-9.]{1,9})(?:-seed-([0-9]{1,9}))?", track, flags=re.ASCII)
    shape = next((shape for shape in RULES if parts and parts[1] == shape[:-2]), None)
    if parts is None or shape is None:
        raise UnknownNameError("track", track, RULES, f"dataset {name}")
    whole = shape.endswith("N")
    if not re.fullmatch(r"[1-9][0-9]*" if whole else r"0?\.[0-9]*[1-9]", parts[2]):
        expected = "a whole number from 1 on" if whole else "a share above 0 and below 1, without a last 0"
        raise XMCBenchError(f"dataset {name}: found {parts[2]} after {parts[1]}, expected {expected}")
    return DerivedSource(base, name, RULES[shape], float(parts[2]), int(parts[3] or 0))


def _few_shot(whole: Dataset, shots: float, draws: Draws) -> Dataset:
    """Queries with all their labels that are among the first `shots`, in a drawn order, of one of these."""
    order_N = draws.permutation(len(whole.train.texts))
    queries_P, labels_P = _pairs(whole.train.targets)
    place_N = np.argsort(order_N)
    by_label = np.lexsort((place_N[queries_P], labels_P))
    counts_L = np.bincount(labels_P, minlength=len(whole.label_texts))
    within_P = np.arange(len(by_label)) - np.repeat(np.cumsum(counts_L) - counts_L, counts_L)
    return _training_rows(whole, np.unique(queries_P[by_label[within_P < shots]]))


def _new_labels(whole: Dataset, share: float, draws: Draws) -> Dataset:
    """A share of the labels loses its training pairs, and a query that loses its last label goes."""
    num_labels = len(whole.label_texts)
    new_L = np.zeros(num_labels, bool)
    new_L[draws.permutation(num_labels)[: max(1, round(share * num_labels))]] = True
    kept = _with_pairs(whole, ~new_L[_pairs(whole.train.targets)[1]])
    lost = (np.diff(kept.train.targets.indptr) == 0) & (np.diff(whole.train.targets.indptr) > 0)
    return _training_rows(kept, np.flatnonzero(~lost))


def _missing_labels(whole: Dataset, share: float, draws: Draws) -> Dataset:
    """Nested: what a larger share leaves, a smaller one leaves too."""
    return _with_pairs(whole, draws.uniform(whole.train.targets.nnz) >= share)


def _completion(whole: Dataset, share: float, draws: Draws) -> Dataset:
    """Of n labels at least one is given and one is left. A given label is ignored, as if it were filtered."""
    train, ignore_train = _give(whole.train, whole.ignore_train, whole.label_texts, share, draws)
    test, ignore_test = _give(whole.test, whole.ignore_test, whole.label_texts, share, draws)
    given = np.flatnonzero(np.diff(whole.test.targets.indptr) > 1)
    left = replace(whole, train=train, ignore_train=ignore_train, test=test, ignore_test=ignore_test)
    return left.tested_on(given)


RULES: dict[str, Rule] = {  # by the names of the tracks: N stands for a whole number, S for a share
    "few-shot-N": _few_shot,
    "new-labels-S": _new_labels,
    "completion-S": _completion,
    "missing-labels-S": _missing_labels,
}


def _give(
    split: Split, ignore: scipy.sparse.csr_array, label_texts: Texts, share: float, draws: Draws
) -> tuple[Split, scipy.sparse.csr_array]:
    """The split with labels moved from the truth into the texts, and the ignored pairs with these among them."""
    targets = binary(split.targets)
    queries_P, labels_P = _pairs(targets)
    counts_N = np.diff(targets.indptr)
    order_P = np.lexsort((draws.uniform(len(labels_P)), queries_P))  # a drawn order within each query
    within_P = np.arange(len(order_P)) - np.repeat(targets.indptr[:-1], counts_N)
    take_N = np.where(counts_N > 1, np.clip(np.floor(share * counts_N), 1, counts_N - 1), 0)
    given_P = np.zeros(len(labels_P), bool)
    given_P[order_P[within_P < take_N[queries_P]]] = True
    texts = list(split.texts)
    for query in np.flatnonzero(take_N):
        pairs = slice(targets.indptr[query], targets.indptr[query + 1])
        names = [label_texts[int(label)] for label in labels_P[pairs][given_P[pairs]]]
        texts[query] = GIVEN[0].join(names) + GIVEN[1] + texts[query]
    ignored_queries, ignored_labels = _pairs(ignore)
    ignored = pairs_csr(
        np.concatenate([queries_P[given_P], ignored_queries]),
        np.concatenate([labels_P[given_P], ignored_labels]),
        targets.shape,
    )
    left = pairs_csr(queries_P[~given_P], labels_P[~given_P], targets.shape)
    return Split(PackedTexts.of(texts), left), ignored


def _training_rows(whole: Dataset, rows: np.ndarray) -> Dataset:
    """The dataset with these training queries only."""
    train = Split(take(whole.train.texts, rows), whole.train.targets[rows])
    return replace(whole, train=train, ignore_train=whole.ignore_train[rows])


def _with_pairs(whole: Dataset, kept_P: np.ndarray) -> Dataset:
    """The dataset with these of its true training pairs only, in the order of `_pairs`."""
    queries_P, labels_P = _pairs(whole.train.targets)
    targets = pairs_csr(queries_P[kept_P], labels_P[kept_P], whole.train.targets.shape)
    return replace(whole, train=Split(whole.train.texts, targets))


def _pairs(matrix: scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Query and label of each pair, by query and then by label."""
    pairs = binary(matrix)
    return np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr)), pairs.indices.astype(np.int64)
