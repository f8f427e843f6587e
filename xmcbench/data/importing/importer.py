"""The contract of an importer, which makes a dataset folder of files in another format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.data.importing.rows import Row
from xmcbench.data.inspection import Imported
from xmcbench.plugins.hookspecs import check_subclass

# A table is a CSV, TSV, JSON, Parquet or Arrow file; a layout is one of the repository's.
BUILT_IN = ("table", "beir", "hf", "annif", "pecos", "fasttext", "libmultilabel", "layout")


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
    if thing.name in BUILT_IN:
        raise TypeError(f"{thing.__name__}.name is {thing.name!r}, a format of xmcbench")
