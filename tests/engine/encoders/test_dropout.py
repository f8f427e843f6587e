"""Dropout by text: the distribution of torch's, and masks that nothing but a text's seed and the call decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import dropout

from xmcbench.engine.encoders.dropout import SeededDropout, _kept_on_device, mixed, text_seeds

SIZE = 2048  # values per text


def seeds(count: int, seed: int = 0, kind: str = "query") -> np.ndarray:
    return text_seeds(seed, kind, np.arange(count))


def dropped(seeds_M: np.ndarray, *shape: int, rate: float = 0.5, calls: int = 1) -> Tensor:
    """Whether each value of a tensor [M, *shape] is dropped, by the last of some calls."""
    with SeededDropout(seeds_M):
        for _ in range(calls):
            result = dropout(torch.ones(len(seeds_M), *shape), rate)
    return result == 0


def standardised(seeds_M: np.ndarray, rate: float, calls: int = 1) -> Tensor:
    """Masks [M, SIZE] with mean 0 and variance 1."""
    rounded = round(rate * 2**16) / 2**16
    return (dropped(seeds_M, SIZE, rate=rate, calls=calls).float() - rounded) / (rounded * (1 - rounded)) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_are_dropped_at_the_rate_and_scaled(rate: float, kind: torch.dtype) -> None:
    with SeededDropout(seeds(1000)):
        result = dropout(torch.ones(1000, 999, dtype=kind), rate)
    assert result.dtype == kind
    rounding = 2**-8 if kind == torch.bfloat16 else 1e-4
    assert result.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate), rel=rounding)]
    share = (result == 0).float()
    # Six standard deviations: over all values and per text.
    assert abs(float(share.mean()) - rate) < 6 * (rate * (1 - rate) / share.numel()) ** 0.5 + 2**-16
    assert float((share.mean(1) - rate).abs().max()) < 6 * (rate * (1 - rate) / 999) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_are_independent_between_places_texts_calls_steps_and_kinds(rate: float) -> None:
    """All correlations have the spread of independent bits, and none of two million is far out: at most 7 standard
    deviations, more where few values are dropped."""
    texts, limit = 1000, 7.0 if rate == 0.5 else 9.0
    fourth_moment = (1 - 3 * rate * (1 - rate)) / (rate * (1 - rate))  # of a standardised mask's value
    first = standardised(seeds(texts), rate)
    between_texts = (first @ first.T)[tuple(torch.triu_indices(texts, texts, 1))] / SIZE**0.5
    between_places = (first.T @ first)[tuple(torch.triu_indices(SIZE, SIZE, 1))] / texts**0.5
    for correlations, values in ((between_texts, SIZE), (between_places, texts)):
        assert float(correlations.std()) == pytest.approx(1.0, abs=0.01)
        assert float(correlations.abs().max()) < limit
        assert float(correlations.pow(4).mean()) == pytest.approx(3 + (fourth_moment**2 - 3) / values, abs=0.1)
    others = standardised(seeds(texts), rate, 2), standardised(seeds(texts, 1), rate)
    for other in (*others, standardised(seeds(texts, kind="label"), rate)):
        correlations = (first * other).sum(1) / SIZE**0.5
        assert float(correlations.std()) == pytest.approx(1.0, abs=0.08)
        assert abs(float(correlations.mean())) < 6 / texts**0.5


def test_a_text_keeps_its_masks_in_any_batch_and_any_padding() -> None:
    names = seeds(9)
    some = np.array([7, 2, 5])
    hidden, attention = dropped(names, 11, 16), dropped(names, 3, 11, 11)
    assert torch.equal(dropped(names[some], 6, 16), hidden[some, :6])
    assert torch.equal(dropped(names[some], 3, 6, 6), attention[some, :, :6, :6])
    assert torch.equal(dropped(names[some], 2, 9, 10), attention[some, :2, :9, :10])


def test_another_device_would_drop_the_same() -> None:
    names = seeds(5)
    numbers_M = torch.from_numpy(mixed(names + np.uint64(1)).view(np.int64))
    for rate in (0.1, 0.5, 0.9):
        kept = _kept_on_device(numbers_M, (7, 4), round(rate * 2**16))
        assert torch.equal(~kept.view(5, 7, 16), dropped(names, 7, 16, rate=rate))


def test_each_call_drops_its_own_and_every_pass_the_same() -> None:
    names = seeds(4)
    assert not torch.equal(dropped(names, 64), dropped(names, 64, calls=2))
    assert torch.equal(dropped(names, 64, calls=2), dropped(names, 64, calls=2))


def test_the_gradient_has_the_mask() -> None:
    values = torch.randn(9, 7, requires_grad=True)
    with SeededDropout(seeds(9)):
        result = dropout(values, 0.3)
    result.sum().backward()
    kept = torch.tensor(1 / (1 - round(0.3 * 65536) / 65536))
    assert torch.equal(values.grad, torch.where(result == 0, 0.0, kept))


def test_fused_attention_drops_what_plain_products_drop() -> None:
    names, generator = seeds(3), torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, 2, 5, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    query, key, value = inputs
    hidden = torch.tensor([5, 3, 1])[:, None, None, None] <= torch.arange(5)  # padding
    mask = torch.zeros(3, 1, 1, 5, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    with SeededDropout(names):
        weights = torch.softmax(query @ key.transpose(2, 3) / 2 + mask, -1)
        wanted = dropout(weights, 0.4) @ value
    for attn_mask in (mask, ~hidden):
        with SeededDropout(names):
            result = functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=0.4)
        torch.testing.assert_close(result, wanted)
        pairs = zip(*(torch.autograd.grad(z.sum(), inputs, retain_graph=True) for z in (result, wanted)), strict=True)
        for gradient, expected in pairs:
            torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.1}, {"enable_gqa": True}])
def test_attention_in_separate_products_is_the_fused_one(options: dict[str, Any]) -> None:
    """At a rate so small that nothing is dropped."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, heads, 5, 4, generator=generator) for heads in (4, 2, 2))
    if not options.get("enable_gqa"):
        query = query[:, :2]
    with SeededDropout(seeds(3)):
        result = functional.scaled_dot_product_attention(query, key, value, dropout_p=2**-16, **options)
    torch.testing.assert_close(
        result, functional.scaled_dot_product_attention(query, key, value, **options), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (1.0, True), (0.4, False)])
def test_without_anything_to_draw_the_result_is_torchs(rate: float, training: bool) -> None:
    values = torch.randn(5, 3)
    with SeededDropout(seeds(5)):
        assert torch.equal(dropout(values, rate, training), (values, torch.zeros(5, 3))[rate == 1.0])


def test_modules_and_functions_within_the_context_use_it() -> None:
    values = torch.ones(3, 4)
    for drop in (nn.Dropout(0.2), nn.Dropout(0.2, inplace=True), lambda x: functional.dropout(x, p=0.2, training=True)):
        with SeededDropout(seeds(3)):
            result = drop(values.clone())
        assert torch.equal(result == 0, dropped(seeds(3), 4, rate=0.2))
