"""Doubts about predictions that came from elsewhere, as sentences."""

from __future__ import annotations

from xmcbench.evaluation.doubts import TIE_RANKS, Doubt, DoubtKind

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
