"""Counted activations are what the graphs keep."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from xmcbench.engine.training.gradient_cache import SavedBytes


def test_what_graphs_keep_counts_once_and_parameters_not() -> None:
    layer = nn.Linear(10, 20)
    rows = torch.randn(6, 10)
    saved = SavedBytes(layer.parameters())
    with saved:
        first = layer(rows).exp()  # keeps the rows, and its result
    assert saved.total == 4 * (6 * 10 + 6 * 20)
    with saved:
        second = layer(rows).exp()  # keeps the same rows
    assert saved.total == 4 * (6 * 10 + 2 * 6 * 20)
    (first + second).sum().backward()
    assert layer.weight.grad is not None


def test_without_a_graph_nothing_is_kept() -> None:
    layer = nn.Linear(10, 20)
    saved = SavedBytes(layer.parameters())
    with saved, torch.no_grad():
        layer(torch.randn(6, 10)).exp()
    assert saved.total == 0


def test_a_graph_that_is_dropped_is_freed() -> None:
    """An operation that keeps its own result must not keep itself alive by it."""
    with SavedBytes([]):
        result = torch.ones(10, requires_grad=True).exp()
    storage = weakref.ref(result.untyped_storage())
    del result
    assert storage() is None
