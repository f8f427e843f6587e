"""Datasets by name. The first use reads the source and writes a prepared copy; later uses map that from disk."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import scipy.sparse as sp
from filelock import FileLock

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.data.folder import is_dataset, own_names, own_source
from xmcbench.data.source import Family, Source
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.registry import registry

PREPARED_VERSION = 2  # of the files below; a change makes every copy a new one
TEXTS = ("train", "test", "labels")
MATRICES = ("train_targets", "test_targets", "ignore_train", "ignore_test")


def default_data_dir() -> Path:
    """$XMCBENCH_DATA, or `data` in the working directory."""
    return Path(os.environ.get("XMCBENCH_DATA", "data"))


def default_cache_dir() -> Path:
    """$XMCBENCH_CACHE, or the user's cache directory."""
    return Path(os.environ.get("XMCBENCH_CACHE") or platformdirs.user_cache_dir("xmcbench"))


def find_source(name: str, data_dir: Path | None = None) -> Source:
    """The registered source `name`, a member of a registered family, or the folder `name` of the data directory."""
    data_dir = data_dir or default_data_dir()
    try:
        found = registry().dataset(name)
    except UnknownNameError:
        if Path(name).name == name and is_dataset(data_dir / name):
            return own_source(data_dir / name)
        known = {registered.name for registered in registry().all("dataset")} | set(own_names(data_dir))
        raise UnknownNameError("dataset", name, known) from None
    return found.make(name) if isinstance(found, Family) else found


def dataset_name(entry: Mapping[str, Any]) -> str:
    """The name of a family's dataset with options: `{name: catalog-1k, test: 20000}` is `catalog-1k-test-20000`."""
    options = dict(entry)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise XMCBenchError(f"found {name!r} as name, expected that of a dataset")
    found = registry().dataset(name)
    known = found.options if isinstance(found, Family) else ()
    for option in options:
        if option not in known:
            raise UnknownNameError("option", option, known, f"of dataset {name}")
    full = "".join([name, *(f"-{option}-{options[option]}" for option in known if option in options)])
    if isinstance(found, Family) and not found.matches(full):
        raise XMCBenchError(f"dataset {full}: a value is not one of {found.name}, see docs/datasets.md")
    return full


def load(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """The dataset `name`, texts and matrices mapped from its prepared copy; its card holds the content hash."""
    data_dir = data_dir or default_data_dir()
    source = find_source(name, data_dir)
    if message := source.missing(data_dir):
        raise XMCBenchError(message)
    directory = prepared_directory(source, data_dir, cache_dir or default_cache_dir())
    if not directory.is_dir():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(directory.with_name(directory.name + ".lock")):
                if not directory.is_dir():
                    _write(source.read(data_dir), directory)
        except OSError as error:
            raise XMCBenchError(f"{directory}: cannot be written ({error.strerror or error})") from error
    return _open(directory)


def prepared_directory(source: Source, data_dir: Path, cache_dir: Path) -> Path:
    """Where the prepared copy lies: a name and what it depends on, the card's facts included."""
    content = [PREPARED_VERSION, source.draft.model_dump(mode="json"), source.fingerprint(data_dir)]
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir / "datasets" / f"{source.name}-{digest}"


def content_hash(dataset: Dataset) -> str:
    """SHA-256 of all that training sees: texts and the lengths they are cut at, targets and ignored pairs.

    The same wherever the files lie. The card's other facts weigh figures and change no prediction.
    """
    digest = sha256()
    _update(digest, np.array([dataset.card.max_length, dataset.card.max_label_length]), "<i8")
    for texts in (dataset.train.texts, dataset.test.texts, dataset.label_texts):
        packed = PackedTexts.of(texts)
        _update(digest, packed.offsets - packed.offsets[0], "<i8")
        _update(digest, packed.data[packed.offsets[0] : packed.offsets[-1]], "u1")
    for matrix in (dataset.train.targets, dataset.test.targets, dataset.ignore_train, dataset.ignore_test):
        _update(digest, np.array(matrix.shape), "<i8")
        _update(digest, matrix.indptr, "<i8")
        _update(digest, matrix.indices, "<i4")
    return digest.hexdigest()


def _update(digest: Any, values: np.ndarray, kind: str) -> None:
    digest.update(np.ascontiguousarray(values, dtype=kind))


def _write(dataset: Dataset, directory: Path) -> None:
    """Write all files beside `directory` and move them there at once: it is whole or absent."""
    texts = (dataset.train.texts, dataset.test.texts, dataset.label_texts)
    matrices = (dataset.train.targets, dataset.test.targets, dataset.ignore_train, dataset.ignore_test)
    card = dataset.card.model_copy(update={"content_hash": content_hash(dataset)})
    made = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for name, part in zip(TEXTS, texts, strict=True):
            PackedTexts.of(part).save(made / name)
        for name, matrix in zip(MATRICES, matrices, strict=True):
            np.save(made / f"{name}.indptr.npy", matrix.indptr)
            np.save(made / f"{name}.indices.npy", matrix.indices)
        (made / "card.json").write_text(card.model_dump_json(indent=2), encoding="utf-8")
        made.replace(directory)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _open(directory: Path) -> Dataset:
    try:
        card = DatasetCard.model_validate_json((directory / "card.json").read_bytes())
        train, test, labels = (PackedTexts.open(directory / name) for name in TEXTS)
        rows = (card.num_train, card.num_test) * 2
        y_train, y_test, ignore_train, ignore_test = (
            _open_matrix(directory, name, (n, card.num_labels)) for name, n in zip(MATRICES, rows, strict=True)
        )
    except (OSError, EOFError, ValueError) as error:  # pydantic's errors are ValueErrors
        reason = str(error).splitlines()[0]
        raise XMCBenchError(f"{directory}: the prepared copy is damaged ({reason}); delete this folder") from error
    return Dataset(card, Split(train, y_train), Split(test, y_test), labels, ignore_train, ignore_test)


def _open_matrix(directory: Path, name: str, shape: tuple[int, int]) -> sp.csr_array:
    parts = (directory / f"{name}.indptr.npy", directory / f"{name}.indices.npy")
    indptr, indices = (np.load(path, mmap_mode="r", allow_pickle=False) for path in parts)
    matrix = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    # Known from `binary_csr`; without it the first use of the matrix would look at every entry.
    matrix.has_canonical_format = True
    return matrix
