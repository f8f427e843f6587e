"""Means of bags of word vectors: values and gradients are those of the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xmcbench.engine.encoders.static import WordBags
from xmcbench.engine.workers import ALONE

TEXTS = [[3, 1, 1], [], [7], [1, 3, 3, 8, 7], []]
IDS_T = torch.tensor([word for text in TEXTS for word in text])
STARTS_M = torch.tensor([0, 3, 3, 4, 9])


def bags(*, weighted: bool) -> WordBags:
    generator = torch.Generator().manual_seed(0)
    vectors_VH = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    return WordBags(vectors_VH, torch.rand(9, generator=generator, dtype=torch.float64) if weighted else None)


def defined(vectors_VH: Tensor, weights_V: Tensor) -> Tensor:
    """The means, a text at a time."""
    rows = [sum((weights_V[word] * vectors_VH[word] for word in text), torch.zeros(5)) for text in TEXTS]
    return torch.stack([row / max(1, len(text)) for row, text in zip(rows, TEXTS, strict=True)])


@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_the_definition(weighted: bool) -> None:
    words = bags(weighted=weighted)
    vectors_VH = words.vectors.weight.detach().clone().requires_grad_()
    weights_V = words.weights.weight.detach().clone() if words.weights else torch.ones(9, dtype=torch.float64)
    weights_V.requires_grad_()
    found, wanted = words(IDS_T, STARTS_M), defined(vectors_VH, weights_V)
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        assert torch.equal(words(IDS_T, STARTS_M), found)
    upstream = torch.randn(5, 5, dtype=torch.float64)
    for means in (found, wanted):
        (means * upstream).square().sum().backward()
    for table, gradient in ((words.vectors, vectors_VH.grad), (words.weights, weights_V.grad)):
        if table is not None:
            rows, of_rows = table.take_gradient(ALONE)
            assert rows.tolist() == [1, 3, 7, 8]
            torch.testing.assert_close(torch.zeros_like(gradient).index_copy_(0, rows, of_rows), gradient)


def test_folded_vectors_have_the_same_means_to_the_bit() -> None:
    words = WordBags(torch.randn(9, 5), torch.rand(9))
    assert torch.equal(words(IDS_T, STARTS_M), WordBags(words.folded_VH)(IDS_T, STARTS_M))


def test_two_passes_add_their_gradients() -> None:
    words = bags(weighted=False)
    for _ in range(2):
        words(IDS_T, STARTS_M).sum().backward()
    twice = words.vectors.take_gradient(ALONE)
    words(IDS_T, STARTS_M).sum().backward()
    once = words.vectors.take_gradient(ALONE)
    assert torch.equal(twice[0], once[0])
    torch.testing.assert_close(twice[1], 2 * once[1])
    assert len(words.vectors.take_gradient(ALONE)[0]) == 0


def test_no_texts_have_no_means() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    words = bags(weighted=False)
    means_MH = words(nothing, nothing)
    assert means_MH.shape == (0, 5)
    means_MH.sum().backward()
    rows, gradient = words.vectors.take_gradient(ALONE)
    assert (len(rows), gradient.shape) == (0, (0, 5))
