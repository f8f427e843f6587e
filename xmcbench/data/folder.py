"""Datasets in folders of the data directory, from the catalogue or added by users."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from xmcbench.data import formats
from xmcbench.data.dataset import Dataset
from xmcbench.data.source import Draft, Source, stamp
from xmcbench.errors import XMCBenchError, shown, suggest
from xmcbench.files import yaml_lines

CARD_FILE = "card.yaml"
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
        directory = data_dir / self.name
        parts = formats.read_directory(directory, self.draft.text)
        sizes = (len(parts.train.texts), len(parts.test.texts), len(parts.label_texts))
        return parts.dataset(self.draft.card(*sizes, where=str(directory)))


def own_source(directory: Path) -> FolderSource:
    """The source of a folder that is not in the catalogue. Its card is inferred from the files and `card.yaml`."""
    path = directory / CARD_FILE
    if not path.is_file():
        return FolderSource(Draft(name=directory.name, source=str(directory.resolve())))
    content = yaml_lines.read(path)
    allowed = sorted(set(Draft.model_fields) - {"name"})
    for key in content.data:
        if key not in allowed:
            raise XMCBenchError(f"{content.where((key,))}: unknown key {shown(key)}{suggest(key, allowed)}")
    try:
        return FolderSource(Draft(**{"source": str(directory.resolve()), **content.data, "name": directory.name}))
    except ValidationError as problem:
        first = problem.errors()[0]
        place = content.where(tuple(first["loc"]))
        raise XMCBenchError(
            f"{place}: {first['loc'][0]}: found {shown(first['input'])}, {first['msg'].lower()}"
        ) from None


def own_names(data_dir: Path) -> list[str]:
    """The names of the folders in `data_dir` that contain a dataset in one of the layouts; hidden ones are none."""
    if not data_dir.is_dir():
        return []
    paths = [path for path in data_dir.iterdir() if not path.name.startswith(".")]
    return sorted(path.name for path in paths if path.is_dir() and is_dataset(path))


def is_dataset(directory: Path) -> bool:
    """Whether `directory` contains all files of one of the layouts."""
    try:
        length = len(os.fsencode(directory.name))
    except UnicodeEncodeError:  # half a surrogate pair, which no file has in its name
        return False
    if length > LONGEST_NAME:
        return False
    return any(not formats.missing_files(layout, directory) for layout in formats.LAYOUTS)
