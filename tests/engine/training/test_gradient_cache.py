"""The gradient cache gives the embeddings and gradients of one plain pass, in any amount of memory."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders.encoder import autocast
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.training.gradient_cache import GradientCache, TextRows

QUERY_ROWS, LABEL_ROWS = np.array([5, 0, 41, 17, 3]), np.array([2, 3, 11, 39])
SOME_BYTES, ALL_BYTES = 120_000, 10**9


def make_encoder(path: str, dropout: float) -> TransformerEncoder:
    return TransformerEncoder.load(EncoderConfig(name=path, dropout=dropout, hidden_dropout=dropout), path).train()


def make_cache(encoder: TransformerEncoder, *, activation_bytes: int, micro_batch_tokens: int = 25) -> GradientCache:
    return GradientCache(
        encoder,
        device=torch.device("cpu"),
        micro_batch_tokens=micro_batch_tokens,
        activation_bytes=activation_bytes,
        autocast=nullcontext,
    )


def texts(encoder: TransformerEncoder, data: TrainingData) -> tuple[Tokens, Tokens]:
    return encoder.tokenizer.tokens(data.texts, 16), encoder.tokenizer.tokens(data.label_texts, 8)


def cached_pass(cache: GradientCache, data: TrainingData, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Embeddings, and the parameters' gradients under `objective`."""
    encoder = cache.encoder
    encoder.zero_grad()
    queries, labels = texts(encoder, data)
    cached = cache.embed([TextRows(queries, QUERY_ROWS, "query"), TextRows(labels, LABEL_ROWS, "label")], seed)
    assert cached.tokens == queries.lengths[QUERY_ROWS].sum() + labels.lengths[LABEL_ROWS].sum()
    objective(cached.embeddings).backward()
    cached.backward()
    return cached.embeddings.detach().clone(), gradients(encoder)


def objective(embeddings_ND: Tensor) -> Tensor:
    """Something that every row takes part in, in its own way."""
    queries, labels = embeddings_ND.split([len(QUERY_ROWS), len(LABEL_ROWS)])
    return ((queries @ labels.T) * 3 - torch.arange(len(LABEL_ROWS))).square().sum()


def gradients(encoder: TransformerEncoder) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("activation_bytes", [0, SOME_BYTES, ALL_BYTES])
def test_without_dropout_it_equals_a_plain_pass(small_encoder: str, data: TrainingData, activation_bytes: int) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    found = cached_pass(make_cache(encoder, activation_bytes=activation_bytes), data)
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
    passes = [cached_pass(make_cache(encoder, activation_bytes=size), data) for size in (ALL_BYTES, SOME_BYTES, 0)]
    for embeddings, of_parameters in passes[1:]:
        assert torch.equal(embeddings, passes[0][0])
        assert_near(of_parameters, passes[0][1])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_micro_batches_of_any_size_drop_the_same(
    small_encoder: str, data: TrainingData, precision: Literal["float32", "bf16"]
) -> None:
    """Sizes from one text to all texts at a time: other padding and other company, equal embeddings and gradients."""
    encoder = make_encoder(small_encoder, 0.3)
    passes = []
    for tokens in (1, 30, 64, 10_000):
        cache = make_cache(encoder, activation_bytes=SOME_BYTES, micro_batch_tokens=tokens)
        cache.autocast = autocast(torch.device("cpu"), precision)
        passes.append(cached_pass(cache, data))
    for embeddings, of_parameters in passes[1:]:
        if precision == "bf16":  # rounds otherwise for every shape, but nowhere near another mask's values
            torch.testing.assert_close(embeddings, passes[0][0], rtol=0, atol=0.03)
            continue
        torch.testing.assert_close(embeddings, passes[0][0], rtol=1e-4, atol=1e-6)
        assert_near(of_parameters, passes[0][1])


def test_dropout_is_active_and_follows_the_seed(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.3)
    cache = make_cache(encoder, activation_bytes=0)
    first, again, other = (cached_pass(cache, data, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-2)
    encoder.eval()
    assert not torch.allclose(first, cached_pass(cache, data)[0], atol=1e-2)


def test_the_state_of_the_global_generator_does_not_matter(small_encoder: str, data: TrainingData) -> None:
    cache = make_cache(make_encoder(small_encoder, 0.3), activation_bytes=0)
    queries, _ = texts(cache.encoder, data)
    parts = [TextRows(queries, QUERY_ROWS, "query")]
    torch.manual_seed(1)
    first = cache.embed(parts, 0).embeddings
    torch.manual_seed(2)
    assert torch.equal(first, cache.embed(parts, 0).embeddings)


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 10_000])
def test_rows_keep_their_order_whatever_the_micro_batches(
    small_encoder: str, data: TrainingData, micro_batch_tokens: int
) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    cache = make_cache(encoder, activation_bytes=0, micro_batch_tokens=micro_batch_tokens)
    queries, labels = texts(encoder, data)
    found = cache.embed([TextRows(labels, LABEL_ROWS, "label"), TextRows(queries, QUERY_ROWS, "query")], 0).embeddings
    for place, (tokens, row) in enumerate([*((labels, r) for r in LABEL_ROWS), *((queries, r) for r in QUERY_ROWS)]):
        alone = encoder(*map(torch.from_numpy, tokens.padded(np.array([row]), 0)))[0]
        torch.testing.assert_close(found[place], alone, rtol=1e-4, atol=1e-6)


def test_backward_is_called_once_and_after_the_loss(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    queries, _ = texts(encoder, data)
    cached = make_cache(encoder, activation_bytes=0).embed([TextRows(queries, QUERY_ROWS, "query")], 0)
    with pytest.raises(ValueError, match="no gradient"):
        cached.backward()
    cached.embeddings.sum().backward()
    cached.backward()
    before = gradients(encoder)
    with pytest.raises(ValueError, match="this one once"):
        cached.backward()
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(encoder).items())


def test_a_batch_may_have_no_texts(small_encoder: str, data: TrainingData) -> None:
    """As a worker's share may be empty."""
    encoder = make_encoder(small_encoder, 0.0)
    queries, _ = texts(encoder, data)
    cached = make_cache(encoder, activation_bytes=0).embed([TextRows(queries, np.empty(0, np.int64), "query")], 0)
    assert (cached.embeddings.shape, cached.tokens) == ((0, encoder.dimension), 0)
    cached.embeddings.sum().backward()
    cached.backward()
    assert not gradients(encoder)


def test_graphs_are_kept_up_to_the_budget(small_encoder: str, data: TrainingData) -> None:
    encoder = make_encoder(small_encoder, 0.0)
    kept = []
    for size in (0, SOME_BYTES, ALL_BYTES):
        cached = make_cache(encoder, activation_bytes=size).embed(
            [TextRows(texts(encoder, data)[0], QUERY_ROWS, "query")], 0
        )
        graphs = [done.output_MD is not None for done in cached.passes]
        assert graphs == sorted(graphs, reverse=True)
        kept.append(sum(graphs))
    assert kept[0] == 0 < kept[1] < kept[2] == len(graphs)


def test_bf16_equals_itself_in_any_amount_of_memory(small_encoder: str, data: TrainingData) -> None:
    """Weights are cast once for many micro-batches: their gradients still come from every one of them."""
    encoder = make_encoder(small_encoder, 0.3)
    passes = []
    for size in (ALL_BYTES, SOME_BYTES, 0):
        cache = make_cache(encoder, activation_bytes=size)
        cache.autocast = autocast(torch.device("cpu"), "bf16")
        passes.append(cached_pass(cache, data))
    assert not torch.equal(passes[0][0], cached_pass(make_cache(encoder, activation_bytes=0), data)[0])
    assert all(name in passes[0][1] for name, _ in encoder.named_parameters())
    for embeddings, of_parameters in passes[1:]:
        assert torch.equal(embeddings, passes[0][0])
        assert_near(of_parameters, passes[0][1])


def test_a_compiled_encoder_draws_as_torch_does(small_encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler's own draws differ between a pass with a graph and one without."""
    asked: list[tuple[nn.Module, object]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **how: asked.append((module, how["options"])))
    encoder = TransformerEncoder.load(EncoderConfig(name=small_encoder, compile=True), Path(small_encoder))
    assert asked == [(encoder.transformer, {"fallback_random": True})]


def test_what_another_part_of_the_step_keeps_takes_from_the_room(small_encoder: str, data: TrainingData) -> None:
    cache = make_cache(make_encoder(small_encoder, 0.0), activation_bytes=SOME_BYTES)
    queries, labels = texts(cache.encoder, data)

    def kept(kept_bytes: int) -> int:
        cached = cache.embed(
            [TextRows(queries, QUERY_ROWS, "query"), TextRows(labels, LABEL_ROWS, "label")], 0, kept_bytes
        )
        return sum(done.output_MD is not None for done in cached.passes)

    assert kept(0) > kept(SOME_BYTES // 2) > kept(2 * SOME_BYTES) == 0
