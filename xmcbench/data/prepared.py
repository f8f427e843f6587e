"""Datasets by name, and their statistics. The first use writes a prepared copy; later uses memory-map that copy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import scipy
from pydantic import BaseModel, ConfigDict

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.data.formats import detect
from xmcbench.data.lengths import count_tokens, count_words, percentiles
from xmcbench.data.source import Family, Source, folder_names, is_dataset, own_names, own_source
from xmcbench.data.texts import PackedTexts, TextBlocks, repeated
from xmcbench.data.tracks import MARK, derived_source
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.files.manifest import DamagedFolder, check_cached_folder, open_or_make
from xmcbench.plugins.code import code_of
from xmcbench.plugins.registry import calling, plugin_package, registry


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


def find_source(name: str, data_dir: Path | str | None = None) -> Source:
    """The registered source `name`, a member of a registered family, or the folder `name` of the data directory.

    `NAME+TRACK` is the dataset that a track makes of NAME. Raises XMCBenchError where a folder has the name of one.
    """
    if not isinstance(name, str):
        raise XMCBenchError(f"dataset: found {type(name).__name__}, expected a name")
    data_dir = Path(data_dir or default_data_dir())
    first, mark, track = name.rpartition(MARK)
    if mark:
        is_folder, derived = is_dataset(data_dir / name), None
        with suppress(XMCBenchError) if is_folder else nullcontext():
            derived = derived_source(find_source(first, data_dir), track)
        if derived and is_folder:
            raise XMCBenchError(f"{data_dir / name}: a folder with the name of a track of {first}: rename it")
        if derived:
            return derived
    try:
        source = registry().thing("dataset", name)
    except UnknownNameError:
        if Path(name).name == name and is_dataset(data_dir / name):
            return own_source(data_dir / name)
        if name in folder_names(data_dir):
            detect(data_dir / name)  # says which files are missing
        known = {registered.name for registered in registry().all("dataset")} | set(own_names(data_dir))
        raise UnknownNameError("dataset", name, known) from None
    made = source.make(name) if isinstance(source, Family) else source
    if not isinstance(made, Source):
        raise XMCBenchError(f"dataset {name}: make returned {shown(made)}, expected an xmcbench.data.Source")
    return made


def dataset_name(entry: Mapping[str, Any]) -> str:
    """The name of a family's dataset with options: `{name: catalog-1k, test: 20000}` is `catalog-1k-test-20000`."""
    options = dict(entry)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise XMCBenchError(f"found {name!r} as name, expected the name of a dataset")
    if track := options.pop("track", None):
        return f"{dataset_name({'name': name, **options}) if options else name}{MARK}{track}"
    registered = registry().thing("dataset", name)
    known = registered.options if isinstance(registered, Family) else ()
    for option in options:
        if option not in known:
            raise UnknownNameError("option", option, known, f"of dataset {name}")
    full = "".join([name, *(f"-{option}-{options[option]}" for option in known if option in options)])
    if isinstance(registered, Family) and not registered.matches(full):
        raise XMCBenchError(f"dataset {full}: a value is not one of {registered.name}, see docs/datasets.md")
    return full


def load(name: str, data_dir: Path | str | None = None, cache_dir: Path | str | None = None) -> Dataset:
    """The dataset `name`, texts and matrices memory-mapped from its prepared copy; its card holds the content hash.

    A missing copy is made from the source; a damaged one is made again, with a warning.
    """
    source, data_dir, directory = _places(name, data_dir, cache_dir)

    def write(made: Path) -> None:
        with calling("dataset", source.name):
            dataset = source.read(data_dir)
            if wrong := _why_not_a_dataset(dataset):
                raise XMCBenchError(f"dataset {source.name}: read returned {wrong}")
            write_copy(dataset, made)

    try:
        return open_or_make(directory, read_copy, write, f"the prepared copy of {source.name}")
    except OSError as error:
        raise XMCBenchError(f"{directory}: cannot be written ({error.strerror or error})") from error


def load_card(name: str, data_dir: Path | str | None = None, cache_dir: Path | str | None = None) -> DatasetCard:
    """The card of the dataset `name`, with its content hash. Of a copy only card and statistics are checked."""
    *_, directory = _places(name, data_dir, cache_dir)
    with suppress(DamagedFolder):
        check_cached_folder(directory, [CARD, STATISTICS])
        return read_card(directory)
    return load(name, data_dir, cache_dir).card


def prepared_copies(name: str) -> list[Path]:
    """All prepared copies of the dataset `name`, of whatever content, with the files beside them."""
    pattern = f"{escape(name)}-{'[0-9a-f]' * 16}*"
    return sorted((default_cache_dir() / "datasets").glob(pattern))


def _places(name: str, data_dir: Path | str | None, cache_dir: Path | str | None) -> tuple[Source, Path, Path]:
    """The source of a dataset, the folder of its data and the folder of its prepared copy."""
    data_dir = Path(data_dir or default_data_dir())
    source = find_source(name, data_dir)
    if message := source.missing(data_dir):
        raise XMCBenchError(message)
    return source, data_dir, prepared_directory(source, data_dir, Path(cache_dir or default_cache_dir()))


def prepared_directory(source: Source, data_dir: Path, cache_dir: Path) -> Path:
    """The folder of the prepared copy; its name has a hash of the card, the fingerprint and a third party's code."""
    content = [PREPARED_VERSION, source.draft.model_dump(mode="json"), source.fingerprint(data_dir), *_codes(source)]
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir / "datasets" / f"{source.name}-{digest}"


def _codes(source: Source) -> list[str]:
    """The digest of the code of the plugin that makes the data, or what they are derived from; none of xmcbench."""
    modules = [kind.__module__ for kind in type(source).__mro__ if registry().origin_of(kind.__module__)]
    digests = [code_of(tuple(dict.fromkeys(map(plugin_package, modules)))).digest] if modules else []
    return [*digests, *(_codes(source.base) if source.base else ())]


def source_folders(source: Source, data_dir: Path, cache_dir: Path) -> tuple[Path, ...]:
    """The folders of what `source` is read from: its own files, and those of the dataset that it is derived from."""
    folder = (data_dir / source.name,)
    if source.base is None:
        return folder
    copy = prepared_directory(source.base, data_dir, cache_dir)
    return (*folder, copy, *source_folders(source.base, data_dir, cache_dir))


PREPARED_VERSION = 7  # of the files below; a change makes every copy a new one
CARD = "card.json"
STATISTICS = "statistics.json"
TEXTS = ("train", "test", "labels")
MATRICES = ("train_targets", "test_targets", "ignore_train", "ignore_test")


def content_hash(dataset: Dataset) -> str:
    """SHA-256 of all that training sees: texts and their maximum lengths in tokens, targets and ignored pairs.

    It does not depend on where the files lie. The card's other facts change metrics, but no prediction.
    """
    digest = sha256()

    def update(values: Any, kind: str) -> None:
        digest.update(np.ascontiguousarray(values, dtype=kind).data)

    update([dataset.card.max_length, dataset.card.max_label_length], "<i8")
    for texts in _texts(dataset):
        update(texts.offsets, "<i8")
        update(texts.data, "u1")
    for matrix in _matrices(dataset):
        update(matrix.shape, "<i8")
        update(matrix.indptr, "<i8")
        update(matrix.indices, "<i4")
    return digest.hexdigest()


def _texts(dataset: Dataset) -> list[PackedTexts]:
    return [PackedTexts.of(texts) for texts in (dataset.train.texts, dataset.test.texts, dataset.label_texts)]


def _matrices(dataset: Dataset) -> tuple[scipy.sparse.csr_array, ...]:
    return dataset.train.targets, dataset.test.targets, dataset.ignore_train, dataset.ignore_test


def _why_not_a_dataset(dataset: Any) -> str:
    """What is wrong with what a source read, and what was expected; empty for a dataset whose parts fit its card."""
    if not isinstance(dataset, Dataset):
        return f"{type(dataset).__name__}, expected xmcbench.data.Dataset"
    card = dataset.card
    sizes = card.num_train, card.num_test, card.num_labels
    shapes = [(size, card.num_labels) for size in sizes[:2]] * 2
    for name, matrix, shape in zip(MATRICES, _matrices(dataset), shapes, strict=True):
        if not scipy.sparse.issparse(matrix) or matrix.format != "csr":
            return f"{name} as {type(matrix).__name__}, expected a scipy.sparse.csr_array"
        if matrix.shape != shape:
            return f"{name} of shape {list(matrix.shape)}, expected {list(shape)} by its card"
        if not np.isfinite(matrix.data).all():
            return f"{name} with values that are no finite numbers"
    texts = dataset.train.texts, dataset.test.texts, dataset.label_texts
    for name, part, size in zip(TEXTS, texts, sizes, strict=True):
        if len(part) != size:
            return f"{len(part)} texts as {name}, expected {size} by its card"
    return ""


def write_copy(dataset: Dataset, directory: Path) -> None:
    """Write the files of a prepared copy into the empty folder `directory`.

    Texts are written first, and read from there: not all that are made block by block fit into memory.
    """
    of_dataset, matrices = (dataset.train.texts, dataset.test.texts, dataset.label_texts), _matrices(dataset)
    texts = [part if isinstance(part, TextBlocks) else PackedTexts.of(part) for part in of_dataset]
    needed = sum(part.nbytes for part in texts)
    needed += sum(matrix.indptr.nbytes + matrix.indices.nbytes for matrix in matrices)
    if (free := shutil.disk_usage(directory).free) < needed:
        raise XMCBenchError(f"{directory}: found {free:,} bytes of free disk space, expected {needed:,} or more")
    for name, part in zip(TEXTS, texts, strict=True):
        part.save(directory / name)
    train, test, labels = (PackedTexts.open(directory / name) for name in TEXTS)
    dataset = replace(
        dataset,
        train=replace(dataset.train, texts=train),
        test=replace(dataset.test, texts=test),
        label_texts=labels,
    )
    card = dataset.card.model_copy(update={"content_hash": content_hash(dataset)})
    for name, matrix in zip(MATRICES, matrices, strict=True):
        np.save(directory / f"{name}.indptr.npy", matrix.indptr)
        np.save(directory / f"{name}.indices.npy", matrix.indices)
    (directory / CARD).write_text(card.model_dump_json(indent=2), encoding="utf-8")
    (directory / STATISTICS).write_text(statistics(dataset).model_dump_json(indent=2), encoding="utf-8")


def read_copy(directory: Path) -> Dataset:
    """The dataset in a prepared copy, memory-mapped. Raises ValueError, OSError or EOFError where parts do not fit."""
    card = read_card(directory)
    texts = [PackedTexts.open(directory / name) for name in TEXTS]
    rows = (card.num_train, card.num_test)
    for part, size in zip(texts, (*rows, card.num_labels), strict=True):
        if len(part) != size:
            raise ValueError(f"found {len(part)} texts, expected {size} by the card")
    y_train, y_test, ignore_train, ignore_test = (
        _open_matrix(directory, name, (n, card.num_labels)) for name, n in zip(MATRICES, rows * 2, strict=True)
    )
    return Dataset(card, Split(texts[0], y_train), Split(texts[1], y_test), texts[2], ignore_train, ignore_test)


def read_card(directory: Path) -> DatasetCard:
    """The card of a prepared copy. Raises ValueError or OSError where it is none."""
    return DatasetCard.model_validate_json((directory / CARD).read_bytes())


def read_statistics(directory: Path) -> Statistics:
    """The statistics of a prepared copy that was opened."""
    return Statistics.model_validate_json((directory / STATISTICS).read_bytes())


def _open_matrix(directory: Path, name: str, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    parts = (directory / f"{name}.indptr.npy", directory / f"{name}.indices.npy")
    indptr, indices = (np.load(path, mmap_mode="r", allow_pickle=False) for path in parts)
    fits = indptr.shape == (shape[0] + 1,) and indices.ndim == 1 and indptr[0] == 0 and indptr[-1] == len(indices)
    if not fits or bool((indptr[1:] < indptr[:-1]).any()):
        raise ValueError(f"{name}: row pointers do not fit {shape[0]} rows and {len(indices)} entries")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < shape[1]:
        raise ValueError(f"{name}: labels {indices.min()} to {indices.max()}, expected 0 to {shape[1] - 1}")
    matrix = scipy.sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    # Known from `binary_csr`; without it the first use of the matrix would look at every entry.
    matrix.has_canonical_format = True
    return matrix


class Spread(BaseModel):
    """Mean, median, least and most of a count."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    mean: float
    median: float
    least: int
    most: int

    @classmethod
    def of(cls, counts: np.ndarray) -> Spread:
        return cls(mean=counts.mean(), median=np.median(counts), least=counts.min(), most=counts.max())


class Statistics(BaseModel):
    """Counts of a dataset; the card's thresholds separate head, torso and tail labels."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    labels_per_train_query: Spread
    labels_per_test_query: Spread
    train_queries_per_label: Spread
    query_words: Spread
    label_words: Spread
    query_tokens: float  # mean, as far as words and characters tell it
    label_tokens: float
    query_percentiles: tuple[int, ...]  # tokens of training queries at 0 to 100 per cent
    label_percentiles: tuple[int, ...]
    head: int
    torso: int
    tail: int
    labels_without_training: int
    test_labels_without_training: int  # labels of some test query that no training query has
    train_queries_without_labels: int
    test_queries_without_labels: int
    repeated_train_texts: int  # training queries whose text an earlier training query has
    test_texts_in_train: int  # test queries whose text a training query has
    labels_with_shared_text: int  # labels whose text another label has too
    ignored_train: int
    ignored_test: int


def statistics(dataset: Dataset) -> Statistics:
    """Count everything; empty texts do not count as repeated."""
    card = dataset.card
    per_train, per_test = np.diff(dataset.train.targets.indptr), np.diff(dataset.test.targets.indptr)
    per_label = np.bincount(dataset.train.targets.indices, minlength=card.num_labels)
    head, tail = per_label >= card.head_at_least, per_label <= card.tail_at_most
    in_test = np.bincount(dataset.test.targets.indices, minlength=card.num_labels) > 0
    train, test, labels = _texts(dataset)
    train_hashes, test_hashes = (texts.hashes()[texts.lengths > 0] for texts in (train, test))
    ordered = np.sort(train_hashes)
    places = [np.searchsorted(ordered, test_hashes, side) for side in ("left", "right")]
    query_words, label_words = count_words(train), count_words(labels)
    query_tokens, label_tokens = count_tokens(train, query_words), count_tokens(labels, label_words)
    return Statistics(
        labels_per_train_query=Spread.of(per_train),
        labels_per_test_query=Spread.of(per_test),
        train_queries_per_label=Spread.of(per_label),
        query_words=Spread.of(query_words),
        label_words=Spread.of(label_words),
        query_tokens=float(query_tokens.mean()),
        label_tokens=float(label_tokens.mean()),
        query_percentiles=percentiles(query_tokens),
        label_percentiles=percentiles(label_tokens),
        head=int(head.sum()),
        torso=int((~head & ~tail).sum()),
        tail=int(tail.sum()),
        labels_without_training=int((per_label == 0).sum()),
        test_labels_without_training=int((in_test & (per_label == 0)).sum()),
        train_queries_without_labels=int((per_train == 0).sum()),
        test_queries_without_labels=int((per_test == 0).sum()),
        repeated_train_texts=int((ordered[1:] == ordered[:-1]).sum()),
        test_texts_in_train=int((places[1] > places[0]).sum()),
        labels_with_shared_text=int(repeated(labels).sum()),
        ignored_train=int(dataset.ignore_train.nnz),
        ignored_test=int(dataset.ignore_test.nnz),
    )
