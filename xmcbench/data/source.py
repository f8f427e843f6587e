"""Where a dataset comes from: a `Source` has a name and reads one dataset, a `Family` makes sources from a pattern."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from xmcbench.data.dataset import Dataset, DatasetCard, Facts
from xmcbench.errors import XMCBenchError

SIZES = ("num_train", "num_test", "num_labels")


class Draft(Facts):
    """A card before the data are read. A size that is set must be the one found; one that is None is taken as found."""

    num_train: int | None = Field(default=None, ge=1, description="training queries")
    num_test: int | None = Field(default=None, ge=1, description="test queries")
    num_labels: int | None = Field(default=None, ge=1)
    text: Literal["title", "title content"] = Field(default="title content", description="JSON fields that make a text")

    def card(self, num_train: int, num_test: int, num_labels: int, where: str) -> DatasetCard:
        """The card of data of these sizes, found at `where`."""
        found = dict(zip(SIZES, (num_train, num_test, num_labels), strict=True))
        for size, value in found.items():
            expected = getattr(self, size)
            if expected is not None and expected != value:
                raise XMCBenchError(
                    f"{where}: found {size} = {value}, expected {expected} by the card of {self.name}; "
                    "other data belong under another name"
                )
        return DatasetCard(**(self.model_dump(exclude={"text"}) | found))


class Source(ABC):
    """A named dataset and how to read it."""

    draft: Draft

    @property
    def name(self) -> str:
        return self.draft.name

    @abstractmethod
    def missing(self, data_dir: Path) -> str | None:
        """None when it can be read; otherwise the one message: where to get it and which files go where."""

    @abstractmethod
    def fingerprint(self, data_dir: Path) -> str:
        """What changes when the data may have changed: paths, sizes and times, or a generator's parameters. Quick."""

    @abstractmethod
    def read(self, data_dir: Path) -> Dataset:
        """Read or make the data. The card's `content_hash` is left to `load`."""


@dataclass(frozen=True)
class Family:
    """Datasets of any size by name: `name` is the pattern shown to people, `regex` matches the whole name."""

    name: str
    regex: str
    summary: str
    make: Callable[[str], Source]
    options: tuple[str, ...] = ()  # what may follow the size in a name, in this order: `-option-value`

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.regex, name) is not None


def stamp(paths: list[Path]) -> str:
    """Where these files are, how large, and when they were last written."""
    lines = []
    for path in paths:
        state = path.stat()
        lines.append(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(lines)
