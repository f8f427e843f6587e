"""The costs of an encoder, from its architecture: parameters, operations, and bytes kept for the backward pass.

A transformer is built with random weights, so no weights are downloaded. Operations are counted as trials count them.
Kept bytes are measured over micro-batches of different sizes, which separates the bytes per token from those per text
(of a static encoder) and those that any pass keeps (weights cast to bf16).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xmcbench.data import Texts
from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders import build
from xmcbench.engine.encoders.encoder import Encoder, TextFlops, autocast
from xmcbench.engine.encoders.lora import add_adapters
from xmcbench.engine.encoders.settings import STATIC, EncoderConfig, Precision
from xmcbench.engine.encoders.static import StaticEncoder
from xmcbench.engine.encoders.tokenizer import TINY_VOCABULARY, TextTokenizer, trained_tokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.encoders.words import RANDOM_VOCABULARY, vectors_shape
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.errors import XMCBenchError

# Encoders whose architecture is the default of their family in transformers: used where the hub cannot be reached.
KNOWN = {
    "distilbert-base-uncased": "distilbert",
    "sentence-transformers/msmarco-distilbert-base-v4": "distilbert",
    "bert-base-uncased": "bert",
    "roberta-base": "roberta",
}
FEW, MORE = 1, 3  # texts of the two micro-batches


@dataclass(frozen=True)
class EncoderCosts:
    """The costs of an encoder that a plan needs."""

    parameters: int  # that are trained
    dimension: int
    flops: TextFlops
    bytes_per_token: float  # kept for the backward pass, per token, with padding where there is some
    bytes_per_pass: float  # kept for the backward pass, whatever the number of tokens
    bytes_per_text: float = 0.0  # kept for the backward pass, per text
    frozen_bytes: int = 0  # of weights that are not trained
    word_parameters: int = 0  # of the parameters, those of which a step touches only some rows: they have no gradient

    def kept_bytes(self, tokens: float, texts: float) -> float:
        """Bytes kept for the backward pass over so many tokens, with padding, of so many texts."""
        return tokens * self.bytes_per_token + texts * self.bytes_per_text


def tokenizer_of(config: EncoderConfig, texts: Texts, cache: Path) -> tuple[TextTokenizer, str]:
    """The encoder's tokenizer, and a warning where that of `tiny` takes its place because a hub cannot be reached."""
    try:
        return build.tokenizer_of(config, texts, cache), ""
    except XMCBenchError:
        if config.name == STATIC:
            raise
    warning = f"the tokenizer of {config.name} cannot be loaded: token counts are those of tiny's tokenizer"
    return TextTokenizer(trained_tokenizer(texts, cache)), warning


def costs(config: EncoderConfig, precision: Precision, width: int, vocabulary: int | None = None) -> EncoderCosts:
    """The costs of training the encoder on texts of about `width` tokens; `vocabulary` is that of a trained tokenizer.

    Raises XMCBenchError if its architecture is unknown here.
    """
    encoder = _random(config.model_copy(update={"compile": False}), vocabulary)
    width = max(2, width)
    one_text, more_texts = (_kept(encoder, precision, texts, width) for texts in (FEW, MORE))
    per_text = (more_texts - one_text) / (MORE - FEW)
    # The attention of a transformer is larger than linear in the width, so all of its bytes are of tokens.
    per_token = per_text / width
    if config.name == STATIC:
        per_token = float(_kept(encoder, precision, FEW, width + 1) - one_text)
    return EncoderCosts(
        parameters=sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad),
        dimension=encoder.dimension,
        flops=encoder.flops_of_a_text,
        bytes_per_token=per_token,
        bytes_per_pass=one_text - FEW * per_text,
        bytes_per_text=per_text - width * per_token,
        frozen_bytes=sum(parameter.nbytes for parameter in encoder.parameters() if not parameter.requires_grad),
        word_parameters=sum(m.weight.numel() for m in encoder.modules() if isinstance(m, TouchedRows)),
    )


class _NoTokenizer:
    """Takes the place of an encoder's tokenizer: nothing is tokenised."""

    pad_id = 0

    def after(self, prompt: str) -> _NoTokenizer:  # noqa: ARG002
        return self


def _random(config: EncoderConfig, vocabulary: int | None) -> Encoder:
    no_tokenizer: Any = _NoTokenizer()
    if config.name == STATIC:
        vectors_VH = torch.empty(vectors_shape(config, vocabulary or RANDOM_VOCABULARY))
        return StaticEncoder(config, no_tokenizer, vectors_VH)
    named = EncoderConfig(name=config.name, hidden_dropout=config.hidden_dropout, layers=config.layers)
    transformer = _transformer(named, vocabulary or TINY_VOCABULARY)
    if config.lora is not None:
        transformer = deepcopy(transformer)  # the cached one stays without adapters
        add_adapters(transformer, config.lora.model_copy(update={"adapters": None}), config.name, seed=0)
    return TransformerEncoder(config, transformer, no_tokenizer, TransformerEncoder.own_modules(config))


@lru_cache(maxsize=1)  # pooling and normalisation differ between the methods of a suite, transformers rarely
def _transformer(config: EncoderConfig, vocabulary: int) -> torch.nn.Module:
    try:
        settings = TransformerEncoder.architecture(config, vocabulary)
    except XMCBenchError:
        if config.name not in KNOWN:
            raise
        from transformers import AutoConfig

        settings = AutoConfig.for_model(KNOWN[config.name])
    with torch.random.fork_rng(devices=[]):
        return TransformerEncoder.transformer_of(settings)


def _kept(encoder: Encoder, precision: Precision, texts: int, width: int) -> int:
    """Bytes that a training pass over `texts` texts leaves for its backward pass."""
    device = next(encoder.parameters()).device
    encoder.train()
    lengths = np.full(texts, width)
    lengths[0] -= isinstance(encoder, TransformerEncoder)  # most micro-batches pad some text
    tokens = Tokens.from_offsets(np.ones(lengths.sum(), np.int32), np.concatenate(([0], np.cumsum(lengths))))
    arrays = encoder.collate(tokens, np.arange(texts))
    saved = SavedBytes(encoder.parameters())
    with torch.random.fork_rng(devices=[]), autocast(device, precision)(), saved:
        output_MD = encoder(*(torch.from_numpy(array).to(device) for array in arrays))
    del output_MD
    return saved.total
