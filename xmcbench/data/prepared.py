"""Datasets by name. The first use reads the source and writes a prepared copy; later uses memory-map that copy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

import platformdirs

from xmcbench.data.dataset import Dataset, DatasetCard
from xmcbench.data.folder import is_dataset, own_names, own_source
from xmcbench.data.prepared_copy import CARD, PREPARED_VERSION, content_hash, read_card, read_copy, write_copy
from xmcbench.data.source import Family, Source
from xmcbench.data.tracks import MARK, derived_source
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.cached_folder import check_cached_folder, open_or_make
from xmcbench.files.manifest import DamagedFolder
from xmcbench.plugins.registry import registry

__all__ = ["content_hash", "dataset_name", "find_source", "load", "prepared_directory"]


def default_data_dir() -> Path:
    """$XMCBENCH_DATA, or `data` in the working directory."""
    return Path(os.environ.get("XMCBENCH_DATA", "data"))


def default_cache_dir() -> Path:
    """$XMCBENCH_CACHE, or the user's cache directory. Raises XMCBenchError for a user without a home folder."""
    if given := os.environ.get("XMCBENCH_CACHE"):
        return Path(given)
    try:
        return Path(platformdirs.user_cache_dir("xmcbench"))
    except RuntimeError:
        reason = "found no home folder, expected one, or the folder of caches in $XMCBENCH_CACHE"
        raise XMCBenchError(reason) from None


def find_source(name: str, data_dir: Path | None = None) -> Source:
    """The registered source `name`, a member of a registered family, or the folder `name` of the data directory.

    `NAME+TRACK` is the dataset that a track makes of NAME.
    """
    data_dir = data_dir or default_data_dir()
    first, mark, track = name.rpartition(MARK)
    if mark and not is_dataset(data_dir / name):
        return derived_source(find_source(first, data_dir), track)
    try:
        source = registry().dataset(name)
    except UnknownNameError:
        if Path(name).name == name and is_dataset(data_dir / name):
            return own_source(data_dir / name)
        known = {registered.name for registered in registry().all("dataset")} | set(own_names(data_dir))
        raise UnknownNameError("dataset", name, known) from None
    return source.make(name) if isinstance(source, Family) else source


def dataset_name(entry: Mapping[str, Any]) -> str:
    """The name of a family's dataset with options: `{name: catalog-1k, test: 20000}` is `catalog-1k-test-20000`."""
    options = dict(entry)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise XMCBenchError(f"found {name!r} as name, expected the name of a dataset")
    if track := options.pop("track", None):
        return f"{dataset_name({'name': name, **options}) if options else name}{MARK}{track}"
    registered = registry().dataset(name)
    known = registered.options if isinstance(registered, Family) else ()
    for option in options:
        if option not in known:
            raise UnknownNameError("option", option, known, f"of dataset {name}")
    full = "".join([name, *(f"-{option}-{options[option]}" for option in known if option in options)])
    if isinstance(registered, Family) and not registered.matches(full):
        raise XMCBenchError(f"dataset {full}: a value is not one of {registered.name}, see docs/datasets.md")
    return full


def load(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """The dataset `name`, texts and matrices memory-mapped from its prepared copy; its card holds the content hash.

    A missing copy is made from the source; a damaged one is made again, with a warning.
    """
    source, data_dir, directory = _places(name, data_dir, cache_dir)
    try:
        return open_or_make(
            directory,
            read_copy,
            lambda made: write_copy(_read(source, data_dir), made),
            f"the prepared copy of {source.name}",
        )
    except OSError as error:
        raise XMCBenchError(f"{directory}: cannot be written ({error.strerror or error})") from error


def load_card(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> DatasetCard:
    """The card of the dataset `name`, with its content hash. Of a prepared copy no other file is opened."""
    *_, directory = _places(name, data_dir, cache_dir)
    with suppress(DamagedFolder):
        check_cached_folder(directory, [CARD])
        return read_card(directory)
    return load(name, data_dir, cache_dir).card


def prepared_copies(name: str, cache_dir: Path | None = None) -> list[Path]:
    """All prepared copies of the dataset `name`, of whatever content, with the files beside them."""
    pattern = f"{escape(name)}-{'[0-9a-f]' * 16}*"
    return sorted(((cache_dir or default_cache_dir()) / "datasets").glob(pattern))


def _places(name: str, data_dir: Path | None, cache_dir: Path | None) -> tuple[Source, Path, Path]:
    """The source of a dataset, the folder of its data and the folder of its prepared copy."""
    data_dir = data_dir or default_data_dir()
    source = find_source(name, data_dir)
    if message := source.missing(data_dir):
        raise XMCBenchError(message)
    return source, data_dir, prepared_directory(source, data_dir, cache_dir or default_cache_dir())


def _read(source: Source, data_dir: Path) -> Dataset:
    dataset = source.read(data_dir)
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise XMCBenchError(f"dataset {source.name}: read returned {kind}, expected xmcbench.Dataset")
    return dataset


def prepared_directory(source: Source, data_dir: Path, cache_dir: Path) -> Path:
    """The folder of the prepared copy; its name has a hash of the files' fingerprint and the card."""
    content = [PREPARED_VERSION, source.draft.model_dump(mode="json"), source.fingerprint(data_dir)]
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir / "datasets" / f"{source.name}-{digest}"


def source_folders(source: Source, data_dir: Path, cache_dir: Path) -> tuple[Path, ...]:
    """The folders of what `source` is read from: its own files, and those of the dataset that it is derived from."""
    own = (data_dir / source.name,)
    if source.base is None:
        return own
    copy = prepared_directory(source.base, data_dir, cache_dir)
    return (*own, copy, *source_folders(source.base, data_dir, cache_dir))
