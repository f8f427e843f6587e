"""Floating-point operations, counted where they happen: by formula, and by watching matrix products.

A multiplication and an addition are two operations. What the harness computes itself (encoder passes, scores, search)
is counted by a formula, the same on every machine. Every other matrix product of torch is counted as it is computed,
whoever wrote it, forward and backward (`matrix_products`). So a method's own modules are charged without its help.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from xmcbench.trial.budget import Ledger, OpenStage


@dataclass
class Count:
    """Operations so far. A backward pass may run in another thread: it keeps the count that its forward pass saw."""

    flops: int = 0  # by formula, of scores
    module_flops: int = 0  # of all other matrix products
    kept_scores: int = 0  # by forward passes of losses, for their backward passes

    def add_product(self, flops: int) -> None:
        """Count a matrix product that no formula covers."""
        self.module_flops += flops

    def add_score(self, flops: int) -> None:
        """Count a matrix product of a search by scores that are no inner products."""
        self.flops += flops


_current: ContextVar[Count | None] = ContextVar("_current", default=None)


@contextmanager
def counting() -> Iterator[Count]:
    """Count the operations of the block, which then are in no block around it."""
    from xmcbench.engine.matrix_products import watched

    count = Count()
    token = _current.set(count)
    try:
        with watched(count.add_product):
            yield count
    finally:
        _current.reset(token)


def current() -> Count:
    """The count of the innermost `counting` block; outside of any block, a count that is discarded."""
    return _current.get() or Count()


@contextmanager
def of_scores() -> Iterator[None]:
    """The matrix products of the block are operations on scores."""
    from xmcbench.engine.matrix_products import watched

    with watched(current().add_score):
        yield


@contextmanager
def by_formula() -> Iterator[None]:
    """The operations of the block are counted by a formula, or are not charged: its matrix products are not watched."""
    from xmcbench.engine.matrix_products import unwatched

    with unwatched():
        yield


@contextmanager
def charged_to_open_stages(ledger: Ledger) -> Iterator[None]:
    """Charge every matrix product of the block that no formula covers, as seconds are: to the ledger's open stage.

    Where torch is first imported within the block, nobody saw its products: the operations are unknown then, not few.
    """
    import sys

    if "torch" in sys.modules:
        from xmcbench.engine.matrix_products import watched

        with watched(OpenStage().charge_product):
            yield
        return
    yield
    if "torch" in sys.modules and "flops" not in ledger.not_counted:
        ledger.not_counted.append("flops")
