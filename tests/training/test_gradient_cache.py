"""The gradient cache gives the embeddings and gradients of one plain pass, in any amount of memory."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.models.encoder import Encoder, EncoderConfig
from xmcbench.training.gradient_cache import GradientCache, TextRows

QUERY_ROWS, LABEL_ROWS = np.array([5, 0, 41, 17, 3]), np.array([2, 3, 11, 39])
ALL_TOKENS = 10**6


def make_encoder(path: str, dropout: float) -> Encoder:
    return Encoder.load(EncoderConfig(name=path, dropout=dropout, hidden_dropout=dropout), path).train()


def make_cache(encoder: Encoder, *, graph_tokens: int, micro_batch_tokens: int = 25) -> GradientCache:
    return GradientCache(
        encoder,
        device=torch.device("cpu"),
        pad_id=encoder.tokenizer.pad_id,
        micro_batch_tokens=micro_batch_tokens,
        graph_tokens=graph_tokens,
        autocast=nullcontext,
    )


def texts(encoder: Encoder, data: TrainingData) -> tuple[Tokens, Tokens]:
    return encoder.tokenizer.tokens(data.texts, 16), encoder.tokenizer.tokens(data.label_texts, 8)


def cached_pass(cache: GradientCache, data: TrainingData, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings, and the parameters' gradients under `objective`."""
    encoder = cache.encode
    assert isinstance(encoder, Encoder)
    encoder.zero_grad()
    queries, labels = texts(encoder, data)
    cached = cache.embed([TextRows(queries, QUERY_ROWS), TextRows(labels, LABEL_ROWS)], seed)
    assert cached.tokens == queries.lengths[QUERY_ROWS].sum() + labels.lengths[LABEL_ROWS].sum()
    objective(cached.embeddings).backward()
    cached.backward()
    return cached.embeddings.detach().clone(), gradients(encoder)


def objective(embeddings_ND: Tensor) -> Tensor:
    """Something that every row takes part in, in its own way."""
    queries, labels = embeddings_ND.split([len(QUERY_ROWS), len(LABEL_ROWS)])
    return ((queries @ labels.T) * 3 - torch.arange(len(LABEL_ROWS))).square().sum()


def gradients(encoder: Encoder) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("graph_tokens", [0, 60, ALL_TOKENS])
def test_without_dropout_it_equals_a_plain_pass(small_encoder: str, data: TrainingData, graph_tokens: int) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    found = cached_pass(make_cache(encoder, graph_tokens=graph_tokens), data)
    encoder.zero_grad()
    parts = []
    for tokens, rows in zip(texts(encoder, data), (QUERY_ROWS, LABEL_ROWS), strict=True):
        parts += [encoder(*map(torch.from_numpy, tokens.padded(np.array([row]), 0))) for row in rows]
    objective(torch.cat(parts)).backward()
    torch.testing.assert_close(found[0], torch.cat(parts).detach(), rtol=1e-4, atol=1e-6)
    assert_near(found[1], gradients(encoder))


def test_dropout_is_replayed_exactly(small_encoder: str, data: TrainingData) -> None:
    """Whether a micro-batch keeps its graph or is run again: bit-equal embeddings, equal gradients."""
    encoder = make_encoder(small_encoder, 0.3)
    passes = [cached_pass(make_cache(encoder, graph_tokens=tokens), data) for tokens in (ALL_TOKENS, 60, 0)]
    for embeddings, of_parameters in passes[1:]:
        assert torch.equal(embeddings, passes[0][0])
        assert_near(of_parameters, passes[0][1])


def test_dropout_is_active_and_follows_the_seed(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.3)
    cache = make_cache(encoder, graph_tokens=0)
    first, again, other = (cached_pass(cache, data, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-2)
    encoder.eval()
    assert not torch.allclose(first, cached_pass(cache, data)[0], atol=1e-2)


def test_the_state_of_the_global_generator_does_not_matter(small_encoder: str, data: TrainingData) -> None:
    cache = make_cache(make_encoder(small_encoder, 0.3), graph_tokens=0)
    queries, _ = texts(cache.encode, data)
    parts = [TextRows(queries, QUERY_ROWS)]
    torch.manual_seed(1)
    first = cache.embed(parts, 0).embeddings
    torch.manual_seed(2)
    assert torch.equal(first, cache.embed(parts, 0).embeddings)


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 10_000])
def test_rows_keep_their_order_whatever_the_micro_batches(
    small_encoder: str, data: TrainingData, micro_batch_tokens: int
) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    cache = make_cache(encoder, graph_tokens=0, micro_batch_tokens=micro_batch_tokens)
    queries, labels = texts(encoder, data)
    found = cache.embed([TextRows(labels, LABEL_ROWS), TextRows(queries, QUERY_ROWS)], 0).embeddings
    for place, (tokens, row) in enumerate([*((labels, r) for r in LABEL_ROWS), *((queries, r) for r in QUERY_ROWS)]):
        alone = encoder(*map(torch.from_numpy, tokens.padded(np.array([row]), 0)))[0]
        torch.testing.assert_close(found[place], alone, rtol=1e-4, atol=1e-6)


def test_backward_is_called_once_and_after_the_loss(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    queries, _ = texts(encoder, data)
    cached = make_cache(encoder, graph_tokens=0).embed([TextRows(queries, QUERY_ROWS)], 0)
    with pytest.raises(ValueError, match="no gradient"):
        cached.backward()
    cached.embeddings.sum().backward()
    cached.backward()
    before = gradients(encoder)
    with pytest.raises(ValueError, match="this one once"):
        cached.backward()
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(encoder).items())


def test_a_batch_without_texts_is_an_error(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    queries, _ = texts(encoder, data)
    with pytest.raises(ValueError, match="at least one text"):
        make_cache(encoder, graph_tokens=0).embed([TextRows(queries, np.empty(0, np.int64))], 0)
