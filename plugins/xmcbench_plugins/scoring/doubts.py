"""Doubts about predictions that came from elsewhere, as facts: what is plausible, and may be wrong all the same.

T test queries, L labels, K ranked labels of a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary, contains
from xmcbench.evaluation.entries import Ranked
from xmcbench.trial.predictions import Predictions

DEPTH = 5  # labels per query that are looked at
TIE_RANKS = (1, 3, 5)  # metrics at these ranks change where the label there and the next are equal and swap places
COMPARED_ROWS = 10_000  # at most, drawn once, for the comparison with other orders
PERMUTATIONS = 20
VARIED = 0.1  # share of different rows below which their order cannot be told


class DoubtKind(StrEnum):
    """What a doubt is about."""

    FILTERED = "filtered"  # pairs that the dataset filters were among the predictions
    SHORT = "short"  # queries have fewer labels than are looked at
    TIED = "tied"  # equal scores at a rank that metrics cut at
    ROUNDED = "rounded"  # scores that only differ beyond float32
    RANKS = "ranks"  # ranks that contradict the scores
    ORDER = "order"  # no more hits than rows in a random order have
    MOVED = "moved"  # more hits where rows or labels are moved by one


class Move(StrEnum):
    """A mistake of numbering that gives more hits when it is undone."""

    ROWS_DOWN = "each row answers the query before it"
    ROWS_UP = "each row answers the query after it"
    ROWS_REVERSED = "the rows are in reverse order"
    LABELS_FROM_1 = "labels are numbered from 1"
    LABELS_FROM_MINUS_1 = "labels are one lower than in the dataset"


@dataclass(frozen=True)
class Doubt:
    """One doubt: `count` of `total` queries (of pairs, for filtered ones; of hits, for the order of rows)."""

    kind: DoubtKind
    count: int
    total: int = 0
    depth: int = 0  # labels per query that were looked at
    ordered: bool = False  # whether the order was given, and ties were not ranked by label
    stored_as: str = ""  # the type of the scores
    other: float = 0  # hits in another order: the most of the random ones, or those after the move
    move: Move | None = None


def find_doubts(ranked: Ranked, kept: Predictions, dataset: Dataset) -> Iterator[Doubt]:
    """Doubts about predictions: `ranked` as they were given, `kept` without the pairs that the dataset filters."""
    total = len(kept)
    if dropped := int((ranked.labels_TK >= 0).sum() - (kept.indices >= 0).sum()):
        yield Doubt(DoubtKind.FILTERED, dropped)
    depth = min(DEPTH, dataset.test.targets.shape[1])
    if short := int((kept.indices[:, :depth] < 0).any(axis=1).sum()):
        yield Doubt(DoubtKind.SHORT, short, total, depth=depth)
    for kind, count in zip((DoubtKind.TIED, DoubtKind.ROUNDED), ranked.ties(TIE_RANKS), strict=True):
        if count:
            yield Doubt(kind, count, total, ordered=ranked.ordered, stored_as=ranked.stored_as)
    if contradicted := _contradicted(ranked):
        yield Doubt(DoubtKind.RANKS, contradicted, total)
    few = max(1, min(DEPTH, dataset.test.targets.shape[1] // 2))  # of all labels, any order has the same hits
    if doubt := _order(kept.indices[:, :few], binary(dataset.test.targets)):
        yield doubt


def _contradicted(ranked: Ranked) -> int:
    """Queries whose given order is not that of their scores."""
    if not ranked.ordered:
        return 0
    rises_TK = (ranked.scores_TK[:, 1:] > ranked.scores_TK[:, :-1]) & (ranked.labels_TK[:, 1:] >= 0)
    return int(rises_TK.any(axis=1).sum())


def _order(best_TD: np.ndarray, true_TL: scipy.sparse.csr_array) -> Doubt | None:
    """Whether rows in a random order, or moved by one, have as many hits as these, or labels that are moved by one."""
    total = len(best_TD)
    if total < 2:
        return None
    generator = np.random.default_rng(0)
    hits = _hits(true_TL, best_TD)
    moves = {
        Move.ROWS_DOWN: np.roll(best_TD, -1, axis=0),
        Move.ROWS_UP: np.roll(best_TD, 1, axis=0),
        Move.ROWS_REVERSED: best_TD[::-1],
        Move.LABELS_FROM_1: np.where(best_TD > 0, best_TD - 1, -1),
        Move.LABELS_FROM_MINUS_1: np.where((best_TD >= 0) & (best_TD < true_TL.shape[1] - 1), best_TD + 1, -1),
    }
    drawn = np.arange(total)
    if total > COMPARED_ROWS:
        drawn = np.sort(generator.choice(total, COMPARED_ROWS, replace=False))
    if len(np.unique(best_TD[drawn], axis=0)) < max(2, VARIED * len(drawn)):  # the same answer to nearly every query
        return None
    sample_ND, true_NL = best_TD[drawn], true_TL[drawn]
    given = _hits(true_NL, sample_ND)
    random = [_hits(true_NL, sample_ND[generator.permutation(len(drawn))]) for _ in range(PERMUTATIONS)]
    after = {move: _hits(true_TL, moved_TD) for move, moved_TD in moves.items()}
    likely = max(after, key=after.__getitem__)
    spread = max(random) * total / len(drawn)
    if after[likely] > 2 * max(hits, spread):
        return Doubt(DoubtKind.MOVED, hits, total, depth=best_TD.shape[1], other=after[likely], move=likely)
    if given <= max(random):
        return Doubt(DoubtKind.ORDER, given, len(drawn), depth=best_TD.shape[1], other=float(np.mean(random)))
    return None


def _hits(true_NL: scipy.sparse.csr_array, labels_ND: np.ndarray) -> int:
    return int(contains(true_NL, np.ascontiguousarray(labels_ND)).sum())


_TYPES = {"float16": "half precision holds three digits: store float32", "bfloat16": "bfloat16 holds two digits"}


def doubt_text(doubt: Doubt) -> str:
    """A doubt about predictions that came from elsewhere, as a sentence."""
    share = f"{doubt.count:,} of {doubt.total:,} queries"
    ranks = f"at ranks {' or '.join(f'{rank} and {rank + 1}' for rank in TIE_RANKS)}"
    match doubt.kind:
        case DoubtKind.FILTERED:
            return (
                f"{doubt.count:,} predicted pairs are filtered by the dataset (reciprocal pairs); they were dropped. A "
                "program that scores with them reports lower metrics"
            )
        case DoubtKind.SHORT:
            return f"{share} have fewer than {doubt.depth} labels; a missing label counts as a wrong one"
        case DoubtKind.TIED:
            order = "in the given order" if doubt.ordered else "by ascending label"
            reason = f"; {_TYPES[doubt.stored_as]}" if doubt.stored_as in _TYPES else ""
            return (
                f"{share} have equal scores {ranks}{reason}; ties rank {order} here, other programs may order them "
                "otherwise"
            )
        case DoubtKind.ROUNDED:
            order = "order that was given" if doubt.ordered else "exact scores"
            return (
                f"{share} have scores {ranks} that differ, but not in float32: they rank by the {order}; programs that "
                "store float32 make ties of them"
            )
        case DoubtKind.RANKS:
            return f"{share} have ranks that contradict the scores; labels rank by rank, and trec_eval ranks by score"
        case DoubtKind.MOVED:
            return (
                f"the first {doubt.depth} labels have {doubt.count:,} hits, and {doubt.other:,.0f} if {doubt.move}: "
                "expected row i for test query i, and labels numbered as in the dataset, from 0"
            )
        case DoubtKind.ORDER:
            return (
                f"the first {doubt.depth} labels of {doubt.total:,} queries have {doubt.count:,} hits, in random order "
                f"{doubt.other:,.0f}: the rows may not be in the order of the dataset's test queries, or labels are "
                "numbered otherwise"
            )
