"""The contract of an importer, which makes a dataset folder of files in another format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.plugins.hookspecs import check_subclass


@dataclass(frozen=True)
class Row:
    """A text with the keys of its labels; `where` is the place in the file, for error messages."""

    text: str
    labels: list[str]
    where: str


@dataclass
class Imported:
    """The sizes of a dataset, its repeated texts, and its rows without a label."""

    train: int = 0
    test: int = 0
    labels: int = 0
    repeated: int = 0  # rows whose text an earlier row of their split has
    shared: int = 0  # test rows whose text a training row has
    unlabelled_train: int = 0  # rows without a label
    unlabelled_test: int = 0
    empty_rows: int = 0  # rows and labels whose text is empty
    empty_labels: int = 0
    removed: bool = False  # whether repeated and shared rows were left out by an import
    folder: Path = Path()


class Importer:
    """Reads files or a folder for `xmcbench datasets import PATH --format NAME`.

    A subclass defines `read`, or `write` if the dataset has files that rows do not describe.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def read(self, path: Path) -> Mapping[str, Iterable[Row]]:
        """The rows of the parts `train` and `test`. Raises XMCBenchError with the file and line of what is wrong."""
        raise NotImplementedError

    def write(self, path: Path, folder: Path) -> Imported:
        """Write a dataset of its own layout into `folder`, which is new and empty, in place of `read`."""
        raise NotImplementedError


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as an importer."""
    check_subclass(thing, Importer, "xmcbench.data.Importer")
    if not isinstance(getattr(thing, "summary", None), str):
        raise TypeError(f"{thing.__name__} has no summary")
    if thing.read is Importer.read and thing.write is Importer.write:
        raise TypeError(f"{thing.__name__} defines neither read nor write")
