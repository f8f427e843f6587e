"""An encoder whose network a method makes (`DualEncoder.build_network`); tokenizer and pooling are the settings'.

Legend: M texts, W tokens of the longest text, H hidden size (the embedding's dimension).
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.encoders.own_modules import POOLINGS
from xmcbench.engine.encoders.settings import STATIC, WEIGHTS, EncoderConfig
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.errors import XMCBenchError
from xmcbench.trial.meter import encoded, uncounted


class NetworkEncoder(Encoder):
    """A method's network over token ids, and the settings' pooling."""

    def __init__(self, config: EncoderConfig, tokenizer: TextTokenizer, network: nn.Module) -> None:
        super().__init__(config, tokenizer)
        self.network = network
        ids_MW, expected = torch.zeros(1, 2, dtype=torch.int64), "[texts, tokens, width] for token ids [texts, tokens]"
        with torch.no_grad(), uncounted():
            shape = self.network(ids_MW, ids_MW == 0).shape
        if len(shape) != 3 or shape[:2] != ids_MW.shape:
            raise XMCBenchError(f"{type(network).__name__} returned {list(shape)}, expected {expected} [1, 2]")
        self.dimension = shape[2]

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path, network: nn.Module) -> NetworkEncoder:
        """The encoder that `save` wrote, with a network of the same kind."""
        network.load_state_dict(load_file(directory / WEIGHTS))
        return cls(config, cls.saved_tokenizer(config, directory), network)

    @staticmethod
    def saved_tokenizer(config: EncoderConfig, directory: Path) -> TextTokenizer:
        """The tokenizer that `save` wrote."""
        from transformers import PreTrainedTokenizerFast

        saved = PreTrainedTokenizerFast.from_pretrained(directory)
        return TextTokenizer(saved, special_tokens=config.name != STATIC)

    def forward(self, ids_MW: Tensor, mask_MW: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Embeddings [M, H] in float32."""
        mask_MW = torch.ones_like(ids_MW) if mask_MW is None else mask_MW
        encoded(len(ids_MW), mask_MW.sum())
        states_MWH = self.network(ids_MW, mask_MW.bool()).float()
        if self.pooling is not None:
            return self.pooled(states_MWH, mask_MW, ids_MW)
        return self.finished(POOLINGS[self.config.pooling](states_MWH, mask_MW.float()))

    def save(self, directory: Path) -> None:
        """Write weights and tokenizer."""
        state = {name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}
        save_file(state, directory / WEIGHTS)
        self.tokenizer.save(directory)

    def sentence_modules(self, max_length: int) -> NoReturn:  # noqa: ARG002
        raise TypeError("sentence-transformers has no module for a method's own network")
