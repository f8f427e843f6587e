"""The built-in samplers, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xmcbench.data.dataset import TrainingData
from xmcbench.engine import sampling
from xmcbench.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from xmcbench.engine.sampling.sampler import Sampler


@dataclass(frozen=True)
class Recipe:
    """A named sampler: `parts` returns the arguments `order`, `positives` and `negatives` of a `Sampler`.

    Example:
        >>> Recipe("all", lambda: {"negatives": [sampling.AllLabels()]}).name
        'all'
    """

    name: str
    parts: Callable[[], dict[str, Any]]
    version: int = 1  # raised by every change that moves results

    def __call__(self, train: TrainingData, *, batch_size: int, seed: int) -> Sampler:
        return sampling.Sampler(train, batch_size=batch_size, seed=seed, **self.parts())


RECIPES = (
    Recipe("in-batch", dict),
    Recipe("hard", lambda: {"negatives": [sampling.Nearest()]}),
    Recipe("clustered", lambda: {"order": sampling.Clusters()}),
    Recipe("embedding-cache", lambda: {"negatives": [sampling.Cached(1024)]}),
    Recipe("all", lambda: {"negatives": [sampling.AllLabels()]}),
)


@hookimpl
def register_samplers(register: Callable[[Recipe], None]) -> None:
    for recipe in RECIPES:
        register(recipe)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a sampler."""
    if not callable(thing):
        raise TypeError(f"{thing!r} is not a Recipe of xmcbench.sampling or a subclass of its Sampler")
