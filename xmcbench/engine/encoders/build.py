"""The encoder that the settings name, a transformer or a static one; its tokenizer and tokens before any trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from xmcbench.data.dataset import Dataset
from xmcbench.data.prepared import Spread
from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder, words_tokenizer
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.errors import XMCBenchError

Progress = Callable[[str, int, int], object]  # stage, texts in all, texts done


def build_encoder(config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> Encoder:
    """The encoder before training. `texts` are the training queries: some encoders train a tokenizer on them, once.

    Raises XMCBenchError if it cannot be loaded.
    """
    return _class_of(config).build(config, texts, seed, cache)


def check_encoder(config: EncoderConfig) -> None:
    """Raises UnfitModelError unless the folder of the encoder, or of its words, can be loaded whole."""
    _class_of(config).check(config)


def load_encoder(config: EncoderConfig, directory: Path) -> Encoder:
    """The encoder that its `save` wrote."""
    return _class_of(config).load(config, directory)


def tokenizer_of(config: EncoderConfig, texts: Sequence[str], cache: Path) -> TextTokenizer:
    """The encoder's tokenizer alone; `texts` are the training queries. Raises XMCBenchError if it cannot be loaded."""
    of = words_tokenizer if config.name == STATIC else TransformerEncoder.tokenizer_of
    return of(config, texts, cache)


def _class_of(config: EncoderConfig) -> type[TransformerEncoder] | type[StaticEncoder]:
    return StaticEncoder if config.name == STATIC else TransformerEncoder


def prepare_tokens(dataset: Dataset, encoder: str, cache: Path, progress: Progress) -> dict[str, Spread]:
    """Tokenise the training queries and labels at the card's maximum lengths, into `cache`; a later trial finds them.

    Returns the lengths in tokens by kind of text. Raises XMCBenchError if the encoder's tokenizer is not available.
    """
    queries, labels, card = dataset.train.texts, dataset.label_texts, dataset.card
    try:
        config = EncoderConfig(name=encoder)
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
