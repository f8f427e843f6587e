"""The table of word vectors has the gradient of torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import WordTable
from xmcbench.engine.encoders.transformer import TransformerEncoder

WORDS = torch.tensor([[3, 1, 1, 0], [7, 3, 3, 3]])


@pytest.mark.parametrize("padding", [None, 0, 3])
def test_vectors_and_gradient_are_those_of_an_embedding(padding: int | None) -> None:
    plain = nn.Embedding(9, 5, padding)
    mine = WordTable.of(plain)
    assert mine.weight is plain.weight
    weights = torch.randn(2, 2, 4, 5)
    gradients = []
    for table in (plain, mine):
        table.zero_grad()
        for turn in range(2):  # the second adds to the first
            vectors = table(WORDS + turn)
            assert torch.equal(vectors, plain.weight[WORDS + turn])
            (vectors * weights[turn]).sum().backward()
        gradients.append(plain.weight.grad.clone())
    torch.testing.assert_close(*gradients)
    assert not gradients[0][6].any()


def test_a_table_that_is_not_trained_gets_no_gradient() -> None:
    table = WordTable.of(nn.Embedding(9, 5))
    table.weight.requires_grad_(False)
    scale = torch.ones(5, requires_grad=True)
    (table(WORDS) * scale).sum().backward()
    assert table.weight.grad is None
    assert scale.grad is not None


def test_an_encoder_has_one(small_encoder: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small_encoder), Path(small_encoder))
    assert isinstance(encoder.transformer.get_input_embeddings(), WordTable)
    assert "transformer.embeddings.word_embeddings.weight" in encoder.state_dict()
