"""The file layouts of extreme multi-label datasets, detected from the files in a folder; and the parts of raw text.

Targets are CSR float32 matrices of ones with sorted, unique indices.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy

from xmcbench.data.bag_of_words import check_has_texts
from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.data.text_files import binary_csr, check_utf8, no_pairs, read_blocks, read_pairs, read_targets, read_texts
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError, shown
from xmcbench.files.arrays import open_npz, read_csr
from xmcbench.files.regular import with_names_once

MEAN_LABELS = 1000  # per query, at most: what is read is bounded by the texts, whatever a file claims
Lines = Iterable[Mapping[str, Any]]  # of a JSON file, each an object
IGNORE_FILES = {
    "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


CARD_FILE = "card.yaml"  # what the files do not say
KEYS_FILE = "label_keys.txt"  # the labels' keys, one a line, where a layout has no place for them
IMPORT_FILE = "import.json"  # how the dataset was imported, as facts
DATASHEET_FILE = "datasheet.md"  # the same for people
OWN_FILES = frozenset((CARD_FILE, KEYS_FILE, IMPORT_FILE, DATASHEET_FILE))


@dataclass(frozen=True)
class Layout:
    """The file names of one layout, each of which may also end with .gz: of each split the texts, then the targets."""

    name: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str

    @property
    def stems(self) -> tuple[str, ...]:
        return (*self.train, *self.test, self.labels)

    def find(self, directory: Path, stem: str) -> Path:
        """The plain or compressed file with this name. Raises XMCBenchError if both exist, which would be ambiguous."""
        forms = [path for path in (directory / stem, directory / f"{stem}.gz") if path.is_file()]
        if len(forms) == 2:
            raise XMCBenchError(f"{directory}: found both {stem} and {stem}.gz, expected one of them")
        return forms[0] if forms else directory / stem


LAYOUTS = (
    Layout("JSON", ("trn.json",), ("tst.json",), "lbl.json"),
    Layout("raw text", ("trn_X.txt", "trn_X_Y.txt"), ("tst_X.txt", "tst_X_Y.txt"), "Y.txt"),
    Layout("DEXML", ("raw/trn_X.txt", "Y.trn.npz"), ("raw/tst_X.txt", "Y.tst.npz"), "raw/Y.txt"),
    Layout("XR-Transformer", ("X.trn.txt", "Y.trn.npz"), ("X.tst.txt", "Y.tst.npz"), "output-items.txt"),
)


def read_directory(directory: Path, text: str, make_card: Callable[[int, int, int, str], DatasetCard]) -> Dataset:
    """Read the dataset in `directory`. `text` is "title" or "title content": the JSON fields that form a text.

    `make_card` gets the numbers of training queries, test queries and labels, and where they were read.
    """
    layout = detect(directory)
    labels_file = layout.find(directory, layout.labels)
    labels = _read_json(labels_file, text)[0] if layout.labels.endswith(".json") else read_texts(labels_file)
    train, test = (
        _read_split([layout.find(directory, stem) for stem in stems], text, len(labels))
        for stems in (layout.train, layout.test)
    )
    ignored = []
    for paths, split in zip(_all_ignore_files(directory).values(), (train, test), strict=True):
        shape = len(split.texts), len(labels)
        ignored.append(read_pairs(paths[0], shape) if paths else no_pairs(shape))
    card = make_card(len(train.texts), len(test.texts), len(labels), str(directory))
    return Dataset(card, train, test, labels, *ignored)


def detect(directory: Path) -> Layout:
    """The layout whose files are all in `directory`. Raises XMCBenchError unless there is exactly one."""
    absent = {layout: missing_files(layout, directory) for layout in LAYOUTS}
    complete = [layout for layout in LAYOUTS if not absent[layout]]
    if len(complete) == 1:
        return complete[0]
    if complete:
        names = " and ".join(layout.name for layout in complete)
        raise XMCBenchError(f"{directory}: found the files of {names}, expected those of one layout")
    partial = [layout for layout in LAYOUTS if len(absent[layout]) < len(layout.stems)]
    if len(partial) == 1:
        check_has_texts(directory)
        lacking = ", ".join(absent[partial[0]])
        raise XMCBenchError(f"{directory}: found part of the {partial[0].name} layout, expected also {lacking}")
    check_has_texts(directory)
    raise XMCBenchError(f"{directory}: found no dataset, expected {expected_files()}")


def missing_files(layout: Layout, directory: Path) -> list[str]:
    """The files of `layout` that are not in `directory`."""
    return [stem for stem in layout.stems if not layout.find(directory, stem).is_file()]


def expected_files() -> str:
    """The files of every layout, for error messages."""
    return "; or ".join(f"{', '.join(layout.stems)} ({layout.name})" for layout in LAYOUTS) + "; texts plain or .gz"


def file_names() -> set[str]:
    """The names that files of a dataset may have, in any layout."""
    names = {stem for layout in LAYOUTS for stem in layout.stems}.union(*IGNORE_FILES.values())
    return names | {f"{name}.gz" for name in names}


_LIKE_IGNORE_FILE = re.compile(r"filter.*(label|pair|train|test|trn|tst)|(train|test|trn|tst).*filter", re.IGNORECASE)


def seems_to_list_pairs(name: str) -> bool:
    """Whether a file of this name, which no layout has, seems to list pairs to ignore."""
    return _LIKE_IGNORE_FILE.search(name.rpartition("/")[2]) is not None


def dataset_files(directory: Path) -> list[Path]:
    """The files that `read_directory` reads, with those of ignored pairs, in a fixed order."""
    layout = detect(directory)
    named = [layout.find(directory, stem) for stem in layout.stems]
    return named + [path for paths in _all_ignore_files(directory).values() for path in paths]


def _all_ignore_files(directory: Path) -> dict[str, list[Path]]:
    """The file of ignored pairs of each split, if it is there.

    Raises XMCBenchError where a file lies there that seems to list ignored pairs and would not be read.
    """
    for path in unread_files(directory):
        if seems_to_list_pairs(path.name):
            expected = " and ".join(names[0] for names in IGNORE_FILES.values())
            raise XMCBenchError(
                f"{path}: found a file that seems to list pairs to ignore and would not be read, expected the names "
                f"{expected}, plain or .gz: rename it, or move it out of the folder"
            )
    return {split: _ignore_files(directory, split) for split in IGNORE_FILES}


def unread_files(directory: Path) -> list[Path]:
    """The files and folders in a dataset's folder that no layout names, hidden ones left out, in alphabetical order."""
    known = file_names() | OWN_FILES
    raw = directory / "raw"
    beside = [*directory.iterdir(), *(raw.iterdir() if raw.is_dir() else ())]
    return sorted(
        path
        for path in beside
        if not path.name.startswith(".") and path != raw and path.relative_to(directory).as_posix() not in known
    )


def _ignore_files(directory: Path, split: str) -> list[Path]:
    """The file of ignored pairs if it is there. Raises XMCBenchError for two, a folder, a pipe or a link to nothing."""
    forms = (form for name in IGNORE_FILES[split] for form in (name, f"{name}.gz"))
    paths = [path for form in forms if os.path.lexists(path := directory / form)]
    for path in paths:
        if not path.is_file():
            raise XMCBenchError(f"{path}: not a regular file")
    if len(paths) > 1:
        raise XMCBenchError(f"{directory}: found {' and '.join(p.name for p in paths)}, expected one of them")
    return paths


def _read_split(paths: list[Path], text: str, num_labels: int) -> Split:
    """The queries in `paths`, texts and then targets, or both in one. Raises XMCBenchError if their sizes differ."""
    if len(paths) == 1:
        return Split(*_read_json(paths[0], text, num_labels))
    texts = read_texts(paths[0])
    if ".npz" in paths[1].suffixes:
        targets = read_npz(paths[1], max((len(texts) + 1) * min(num_labels + 1, MEAN_LABELS), num_labels + 1))
    else:
        targets = read_targets(paths[1])
    if targets.shape != (len(texts), num_labels):
        sizes = f"found {targets.shape[0]} rows and {targets.shape[1]} labels"
        wanted = f"{len(texts)} rows (texts in {paths[0].name}) and {num_labels} labels (label texts)"
        raise XMCBenchError(f"{paths[1]}: {sizes}, expected {wanted}")
    return Split(texts, targets)


def read_npz(path: Path, max_entries: int) -> scipy.sparse.csr_array:
    """A matrix with ones at the non-zero entries of a matrix saved by `scipy.sparse.save_npz`. Never unpickles.

    Arrays of more than `max_entries` are an error before they are unpacked.
    """
    try:
        with open_npz(path) as archive:
            indptr, indices, data, (_, columns) = read_csr(archive, max_entries, str(path))
    except OSError as error:
        raise XMCBenchError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not np.isfinite(data).all():
        raise XMCBenchError(f"{path}: found a value that is not finite, expected finite numbers")
    if len(indices) and (indices.min() < 0 or indices.max() >= columns):
        raise XMCBenchError(f"{path}: found labels {indices.min()} to {indices.max()}, expected 0 to {columns - 1}")
    return binary_csr(indptr, indices, data, columns)


def _read_json(path: Path, text: str, num_labels: int = -1) -> tuple[PackedTexts, scipy.sparse.csr_array]:
    """The texts of a file with one JSON object per line, and their targets; no targets are read for -1 labels."""
    data, lengths = bytearray(), array("q")
    counts, labels, weights = array("q"), array("q"), array("d")
    for block in read_blocks(path):
        check_utf8(block)
        for i, line in enumerate(block.data.tobytes().split(b"\n")[:-1]):
            try:
                entry = json.loads(line, parse_constant=_no_number, object_pairs_hook=with_names_once)
                if not isinstance(entry, dict):
                    raise ValueError(shown(entry))
                encoded = _json_text(entry, text).encode()
                line_labels, line_weights = _json_targets(entry, num_labels) if num_labels >= 0 else ([], [])
                labels.extend(line_labels)
                weights.extend(line_weights)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                fields = "title, content" + (", target_ind, target_rel" if num_labels >= 0 else "")
                fault = f"no key {error}" if isinstance(error, KeyError) else str(error).removeprefix("found ")
                where = f"{path}: line {block.first_line + i}"
                raise XMCBenchError(f"{where}: found {fault}, expected a JSON object with {fields}") from error
            data += encoded
            lengths.append(len(encoded))
            counts.append(len(line_labels))
    if not lengths:
        raise XMCBenchError(f"{path}: found an empty file, expected one JSON object per line")
    texts = PackedTexts.from_lengths(np.frombuffer(bytes(data), np.uint8), np.frombuffer(lengths, np.int64))
    indptr = np.concatenate([[0], np.cumsum(np.frombuffer(counts, np.int64))])
    indices, values = np.frombuffer(labels, np.int64), np.frombuffer(weights, np.float64)
    return texts, binary_csr(indptr, indices, values, max(num_labels, 0))


def _json_text(entry: dict[str, str], text: str) -> str:
    title, content = entry["title"], entry.get("content", "")
    if not (isinstance(title, str) and isinstance(content, str)):
        raise ValueError("a title or content that is not text")
    return " ".join(part for part in (title, content) if part) if text == "title content" else title


def _json_targets(entry: dict[str, list[float]], num_labels: int) -> tuple[list[int], list[float]]:
    labels = entry["target_ind"]
    if not isinstance(labels, list):
        raise ValueError(f"the target_ind {shown(labels)}, which is no list")
    weights = entry.get("target_rel", [1.0] * len(labels))
    if len(weights) != len(labels):
        raise ValueError(f"{len(labels)} target_ind and {len(weights)} target_rel")
    if not all(type(label) is int for label in labels):
        raise ValueError("a target_ind that is not an integer")
    if labels and not 0 <= min(labels) <= max(labels) < num_labels:
        raise ValueError(f"target_ind {min(labels)} to {max(labels)} where labels are 0 to {num_labels - 1}")
    return cast("list[int]", labels), weights


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant}, which is not a number")


def read_keys(directory: Path) -> list[str]:
    """The keys of the labels of the dataset in `directory`, such as their URIs; empty where its files have none."""
    if (path := directory / KEYS_FILE).is_file():
        return list(read_texts(path))
    layout = detect(directory)
    if layout is not LAYOUTS[0]:  # JSON
        return []
    keys = []
    for block in read_blocks(layout.find(directory, layout.labels)):
        for line in block.data.tobytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            keys.append(str(entry.get("uid", "")) if isinstance(entry, dict) else "")
    return keys if any(keys) else []


def write_json_layout(
    folder: Path, train: Lines, test: Lines, labels: Lines, more: Mapping[str, str] | None = None
) -> None:
    """Write a dataset into `folder`; `more` are the contents of further files by name, of the card among them."""
    folder.mkdir(parents=True, exist_ok=True)
    encode = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for each line
    for name, lines in (("trn", train), ("tst", test), ("lbl", labels)):
        with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
            file.writelines(encode(line) + "\n" for line in lines)
    for name, content in (more or {}).items():
        (folder / name).write_text(content, encoding="utf-8")


def write_texts(texts: Sequence[str], path: Path) -> None:
    """Write one text a line; a line break within a text becomes a space."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(text.replace("\r", " ").replace("\n", " ") + "\n" for text in texts)


def write_targets(targets: scipy.sparse.csr_array, path: Path) -> None:
    """Write a line `rows labels`, then `label:1.0 ...` a row of `targets` [N, L]."""
    with path.open("w", encoding="ascii") as file:
        file.write("{} {}\n".format(*targets.shape))
        file.writelines(" ".join(f"{label}:1.0" for label in labels) + "\n" for labels in _rows(targets))


def write_pairs(pairs: scipy.sparse.csr_array, path: Path) -> None:
    """Write `row label` a line for each entry of `pairs` [N, L]."""
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{row} {label}\n" for row, labels in enumerate(_rows(pairs)) for label in labels)


def _rows(pairs: scipy.sparse.csr_array) -> Iterator[list[int]]:
    """The labels of each row."""
    return (pairs.indices[start:end].tolist() for start, end in pairwise(pairs.indptr.tolist()))
