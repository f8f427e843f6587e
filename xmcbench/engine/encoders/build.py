"""The encoder that the settings name, a transformer or a static one; its tokenizer alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder, words_tokenizer
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder


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
