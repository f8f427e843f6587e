"""The costs of an encoder, from its architecture: parameters, operations, and bytes kept for the backward pass.

The transformer is built with random weights, so no weights are downloaded. Operations are counted as trials count them.
Kept bytes are measured over two micro-batches of different sizes, which separates the bytes per token from those that
any pass keeps (weights cast to bf16).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from xmcbench.data import Texts
from xmcbench.engine.encoders.embedding import autocast
from xmcbench.engine.encoders.encoder import RANDOM_ENCODERS, Encoder, TextFlops
from xmcbench.engine.encoders.settings import EncoderConfig, Precision
from xmcbench.engine.encoders.tokenizer import TINY_VOCABULARY, TextTokenizer, tiny_tokenizer
from xmcbench.engine.training.activations import SavedBytes
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

    parameters: int
    dimension: int
    flops: TextFlops
    bytes_per_token: float  # kept for the backward pass, per padded token
    bytes_per_pass: float  # kept for the backward pass, whatever the number of tokens


def tokenizer_of(config: EncoderConfig, texts: Texts, cache: Path) -> tuple[TextTokenizer, str]:
    """The encoder's tokenizer, and a warning where that of `tiny` takes its place."""
    if config.name in RANDOM_ENCODERS:
        return TextTokenizer(tiny_tokenizer(texts, cache)), ""
    with suppress(XMCBenchError):
        return TextTokenizer(Encoder.tokenizer_of(config)), ""
    warning = f"the tokenizer of {config.name} cannot be loaded: token counts are those of tiny's tokenizer"
    return TextTokenizer(tiny_tokenizer(texts, cache)), warning


def costs(config: EncoderConfig, precision: Precision, width: int, vocabulary: int = TINY_VOCABULARY) -> EncoderCosts:
    """The costs of training the encoder on texts of about `width` tokens.

    Raises XMCBenchError if its architecture is unknown here.
    """
    config = config.model_copy(update={"compile": False})
    encoder = _random(config, vocabulary)
    kept = [_kept(encoder, precision, texts, max(2, width)) for texts in (FEW, MORE)]
    slope = (kept[1] - kept[0]) / ((MORE - FEW) * max(2, width))
    return EncoderCosts(
        parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        dimension=encoder.dimension,
        flops=encoder.flops_of_a_text,
        bytes_per_token=slope,
        bytes_per_pass=kept[0] - slope * FEW * max(2, width),
    )


class _NoTokenizer:
    """Takes the place of an encoder's tokenizer: nothing is tokenised."""

    pad_id = 0


def _random(config: EncoderConfig, vocabulary: int) -> Encoder:
    no_tokenizer: Any = _NoTokenizer()
    return Encoder(config, _transformer(config.name, config.hidden_dropout, vocabulary), no_tokenizer)


@lru_cache(maxsize=1)  # pooling and normalisation differ between the methods of a suite, transformers rarely
def _transformer(name: str, hidden_dropout: float | None, vocabulary: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        settings = _architecture(EncoderConfig(name=name, hidden_dropout=hidden_dropout), vocabulary)
        return Encoder.transformer_of(settings)


def _architecture(config: EncoderConfig, vocabulary: int) -> Any:
    try:
        return Encoder.architecture(config, vocabulary)
    except XMCBenchError:
        if config.name not in KNOWN:
            raise
    from transformers import AutoConfig

    return AutoConfig.for_model(KNOWN[config.name])


def _kept(encoder: Encoder, precision: Precision, texts: int, width: int) -> int:
    """Bytes that a training pass over `texts` texts leaves for its backward pass."""
    device = next(encoder.parameters()).device
    encoder.train()
    ids_MW = torch.ones((texts, width), dtype=torch.int64, device=device)
    mask_MW = torch.ones((texts, width), dtype=torch.bool, device=device)
    mask_MW[0, -1] = False  # most micro-batches pad some text
    saved = SavedBytes(encoder.parameters())
    with torch.random.fork_rng(devices=[]), autocast(device, precision)(), saved:
        output_MD = encoder(ids_MW, mask_MW)
    del output_MD
    return saved.total
