"""Sources of datasets: a `Source` has a name and reads one dataset, a `Family` makes sources from a name pattern.

A `FolderSource` reads a folder of the data directory, from the catalogue or added by users.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from xmcbench.data import formats
from xmcbench.data.dataset import Dataset, DatasetCard, Facts
from xmcbench.data.formats import CARD_FILE as CARD_FILE
from xmcbench.errors import XMCBenchError

FEWEST_TRAIN = 3
SIZES = ("num_train", "num_test", "num_labels")


class Draft(Facts):
    """A card before the data are read. A size must match the data where it is set, and is taken from them otherwise."""

    num_train: int | None = Field(default=None, ge=1, description="training queries")
    num_test: int | None = Field(default=None, ge=1, description="test queries")
    num_labels: int | None = Field(default=None, ge=1)
    text: Literal["title", "title content"] = Field(default="title content", description="JSON fields that make a text")
    query_words: float | None = Field(default=None, gt=0, description="words of a query, for plans without the data")
    label_words: float | None = Field(default=None, gt=0, description="words of a label text, likewise")
    labels_per_query: float | None = Field(default=None, gt=0, description="labels of a query, likewise")
    language: str = Field(default="", description="language of the label texts, where they were chosen by it")

    def card(self, num_train: int, num_test: int, num_labels: int, where: str) -> DatasetCard:
        """The card of data with these sizes, read from `where`. Raises XMCBenchError if a size is unexpected."""
        sizes = dict(zip(SIZES, (num_train, num_test, num_labels), strict=True))
        for size, value in sizes.items():
            if (expected := getattr(self, size)) not in (None, value):
                raise XMCBenchError(
                    f"{where}: found {size} = {value}, expected {expected} by the card of {self.name}; "
                    "other data belong under another name"
                )
        if num_train < FEWEST_TRAIN:  # propensities are not defined below
            raise XMCBenchError(f"{where}: found {num_train} training queries, expected at least {FEWEST_TRAIN}")
        return DatasetCard(**(self.model_dump(include=set(Facts.model_fields)) | sizes))


class Source(ABC):
    """A named dataset and how to read it."""

    draft: Draft
    download: str = ""  # the address of an archive with the files, where there is one
    base: Source | None = None  # the dataset that this one is derived from
    of_machine: bool = False  # its content follows the machine: two machines may have other data of this name

    @property
    def name(self) -> str:
        return self.draft.name

    @abstractmethod
    def missing(self, data_dir: Path) -> str | None:
        """None if the data can be read; otherwise a message that says where to get them and which files go where."""

    @abstractmethod
    def fingerprint(self, data_dir: Path) -> str:
        """Text that changes when the data may have changed: sizes and times, or a generator's parameters. Quick."""

    @abstractmethod
    def read(self, data_dir: Path) -> Dataset:
        """Read or make the data. `load` fills in the card's `content_hash`."""


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
    """Path, size, times and inode of each file.

    A program that writes a file anew may keep its size and set its modification time, as `cp -p` and `rsync -t` do, but
    not the time at which its inode changed.
    """
    states = ((path.resolve(), path.stat()) for path in paths)
    return "\n".join(
        f"{place} {state.st_size} {state.st_mtime_ns} {state.st_ino} {state.st_ctime_ns}" for place, state in states
    )


LONGEST_NAME = 255  # bytes of a folder name, on most file systems


class FolderSource(Source):
    """The dataset in `<data directory>/<name>/`, in any of the known layouts."""

    def __init__(self, draft: Draft, download: str = "") -> None:
        self.draft = draft
        self.download = download

    def missing(self, data_dir: Path) -> str | None:
        directory = data_dir / self.name
        try:
            formats.detect(directory)
        except XMCBenchError as problem:
            if directory.is_dir():
                return str(problem)
            if self.download:
                return f"dataset {self.name} is not on disk: `xmcbench datasets fetch {self.name}` downloads it"
            files = formats.expected_files()
            return f"dataset {self.name} is not on disk: get it from {self.draft.source}; into {directory}/ go {files}"
        return None

    def fingerprint(self, data_dir: Path) -> str:
        return stamp(formats.dataset_files(data_dir / self.name))

    def read(self, data_dir: Path) -> Dataset:
        return formats.read_directory(data_dir / self.name, self.draft.text, self.draft.card)


def own_source(directory: Path) -> FolderSource:
    """The source of a folder that is not in the catalogue. Its card is inferred from the files and `card.yaml`."""
    path = directory / CARD_FILE
    if not os.path.lexists(path):
        return FolderSource(Draft(name=directory.name, source=str(directory.resolve())))
    from xmcbench.files.yaml_lines import Problems, read, validate

    content = read(path)
    problems = Problems(content)
    if "name" in content.data:
        problems.add(("name",), "unknown key: the folder's name is the dataset's")
    values = {"source": str(directory.resolve()), **content.data, "name": directory.name}
    draft = validate(Draft, values, (), {}, problems)
    problems.check()
    assert draft is not None, "it has no problem"
    return FolderSource(draft)


def own_names(data_dir: Path) -> list[str]:
    """The names of the folders in `data_dir` that contain a dataset in one of the layouts."""
    return [name for name in folder_names(data_dir) if is_dataset(data_dir / name)]


def folder_names(data_dir: Path) -> list[str]:
    """The names of the folders in `data_dir`, hidden ones left out."""
    paths = data_dir.iterdir() if data_dir.is_dir() else []
    return sorted(path.name for path in paths if not path.name.startswith(".") and path.is_dir())


def is_dataset(directory: Path) -> bool:
    """Whether `directory` contains all files of one of the layouts, or too many to say which are meant."""
    try:
        return any(not formats.missing_files(layout, directory) for layout in formats.LAYOUTS)
    except XMCBenchError:  # said where this dataset is read, and not where another is
        return True
    except (OSError, UnicodeEncodeError):  # the name is too long, or no name that a file can have
        return False


def label_keys(source: Source, data_dir: Path) -> list[str]:
    """The keys of the labels of a source's dataset, by label id; empty where its files have none.

    A dataset that a track derives has the labels, and so the keys, of its base.
    """
    while source.base is not None:
        source = source.base
    return formats.read_keys(data_dir / source.name) if isinstance(source, FolderSource) else []


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a dataset."""
    if not isinstance(thing, Source | Family):
        raise TypeError(f"{thing!r} is not a Source or a Family of xmcbench.data")
    if isinstance(thing, Source) and not isinstance(getattr(thing, "draft", None), Draft):
        raise TypeError(f"{type(thing).__name__}.draft is not a Draft of xmcbench.data")
    if isinstance(thing, Family):
        re.compile(thing.regex)
        if not callable(thing.make) or not isinstance(thing.summary, str):
            raise TypeError(f"the family {thing.name!r} needs a text as summary, and a function as make")


def answers_to(thing: Any, name: str) -> bool:
    """Whether what is registered has datasets of this name besides its own."""
    return isinstance(thing, Family) and thing.matches(name)
