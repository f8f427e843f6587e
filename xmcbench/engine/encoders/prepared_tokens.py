"""Tokenise a dataset before any trial does: what `xmcbench datasets prepare NAME --encoder E` makes beside the copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from xmcbench.data.dataset import Dataset
from xmcbench.data.statistics import Spread
from xmcbench.engine.encoders.build import tokenizer_of
from xmcbench.engine.encoders.settings import EncoderConfig

Progress = Callable[[str, int, int], object]  # stage, texts done, texts in all


def prepare_tokens(dataset: Dataset, encoder: str, cache: Path, progress: Progress) -> dict[str, Spread]:
    """Tokenise the training queries and labels at the card's maximum lengths, into `cache`; a later trial finds them.

    Returns the lengths in tokens by kind of text. Raises XMCBenchError if the encoder's tokenizer is not available.
    """
    queries, labels, card = dataset.train.texts, dataset.label_texts, dataset.card
    progress("tokenizer", 0, 1)
    tokenizer = tokenizer_of(EncoderConfig(name=encoder), queries, cache)
    progress("tokenizer", 1, 1)
    lengths = {}
    for kind, texts, most in (("query", queries, card.max_length), ("label", labels, card.max_label_length)):
        stage = f"tokens of {len(texts):,} {'queries' if kind == 'query' else 'labels'}"
        report = _reporter(stage, len(texts), progress)
        lengths[kind] = Spread.of(tokenizer.tokens(texts, most, cache, report).lengths)
        progress(stage, len(texts), len(texts))
    return lengths


def _reporter(stage: str, total: int, progress: Progress) -> Callable[[int], object]:
    return lambda done: progress(stage, done, total)
