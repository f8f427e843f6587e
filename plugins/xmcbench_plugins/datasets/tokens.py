"""Tokenises a dataset before any trial, for `xmcbench datasets prepare --encoder`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from xmcbench import encoders
from xmcbench.data.dataset import Dataset
from xmcbench.data.prepared import Spread
from xmcbench.engine.encoders.build import tokenizer_of
from xmcbench.errors import XMCBenchError

Progress = Callable[[str, int, int], object]  # stage, texts in all, texts done


def prepare_tokens(dataset: Dataset, encoder: str, cache: Path, progress: Progress) -> dict[str, Spread]:
    """Tokenise the training queries and labels at the card's maximum lengths, into `cache`; a later trial finds them.

    Returns the lengths in tokens by kind of text. Raises XMCBenchError if the encoder's tokenizer is not available.
    """
    queries, labels, card = dataset.train.texts, dataset.label_texts, dataset.card
    try:
        config = encoders.EncoderConfig(name=encoder)
    except ValidationError as problem:
        raise XMCBenchError(problem.errors()[0]["msg"].removeprefix("Value error, ")) from None
    progress("tokenizer", 1, 0)
    tokenizer = tokenizer_of(config, queries, cache)
    progress("tokenizer", 1, 1)
    lengths = {}
    for kind, texts, most in (("query", queries, card.max_length), ("label", labels, card.max_label_length)):
        stage = f"tokens of {len(texts):,} {'queries' if kind == 'query' else 'labels'}"
        report = partial(progress, stage, len(texts))
        lengths[kind] = Spread.of(tokenizer.tokens(texts, most, cache, report).lengths)
        report(len(texts))
    return lengths
