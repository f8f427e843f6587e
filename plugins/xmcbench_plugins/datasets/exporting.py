"""A dataset as files: what is written reads back with the same content hash, with its card and its labels' keys.

Raw text is what other programs read. It has a text a line, and so no text with a line break: there it becomes a space,
and the JSON layout keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from xmcbench.data.dataset import Dataset, Split
from xmcbench.data.formats import (
    CARD_FILE,
    IGNORE_FILES,
    KEYS_FILE,
    read_keys,
    write_json_layout,
    write_pairs,
    write_targets,
    write_texts,
)
from xmcbench.data.importer import Imported
from xmcbench.data.source import SIZES, Draft, own_source
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory

ExportLayout = Literal["text", "json"]
BREAKS, MARK = ("\n", "\r"), "\ufeff"


def export(
    dataset: Dataset, folder: Path, draft: Draft, keys: Sequence[str] = (), layout: ExportLayout = "text"
) -> int:
    """Write `folder`, whole or not at all; returns how many texts are other ones: a line break became a space.

    `draft` is the card as its source states it: what it leaves open stays open. `keys` are those of the labels.
    Raises XMCBenchError if `folder` is there already.
    """
    if folder.exists():
        raise XMCBenchError(f"{folder}: found a file or folder of this name, expected a new one")
    with atomic_directory(folder) as partial:
        return write_files(dataset, partial, draft, keys, layout)


def write_files(dataset: Dataset, folder: Path, draft: Draft, keys: Sequence[str], layout: ExportLayout) -> int:
    """Write the files of a dataset into `folder`, which is empty; returns what `export` returns."""
    if stated := card_text(draft):
        (folder / CARD_FILE).write_text(stated, encoding="utf-8")
    for name, pairs in (("train", dataset.ignore_train), ("test", dataset.ignore_test)):
        if pairs.nnz:
            write_pairs(pairs, folder / IGNORE_FILES[name][0])
    if layout == "json":
        keyed = zip(keys or [""] * len(dataset.label_texts), dataset.label_texts, strict=True)
        labels = ({**({"uid": key} if key else {}), "title": text} for key, text in keyed)
        write_json_layout(folder, _rows(dataset.train), _rows(dataset.test), labels)
        return 0
    if keys:
        write_texts(keys, folder / KEYS_FILE)
    write_texts(dataset.label_texts, folder / "Y.txt")
    for name, split in (("trn", dataset.train), ("tst", dataset.test)):
        write_texts(split.texts, folder / f"{name}_X.txt")
        write_targets(split.targets, folder / f"{name}_X_Y.txt")
    parts = (dataset.train.texts, dataset.test.texts, dataset.label_texts)
    marks = sum(part[0].startswith(MARK) for part in parts)  # at the start of a file it is none of a text
    return marks + sum(any(sign in text for sign in BREAKS) for part in parts for text in part)


def card_text(draft: Draft) -> str:
    """What a card states, as the content of `card.yaml`; sizes and name are those of the files and the folder.

    A folder of this machine is no source for others.
    """
    import yaml

    stated = draft.model_dump(mode="json", exclude_unset=True, exclude={"name", "text", *SIZES})
    if Path(stated.get("source", "")).is_absolute():
        del stated["source"]
    return yaml.safe_dump(stated, sort_keys=False, allow_unicode=True) if stated else ""


def _rows(split: Split) -> Iterator[dict[str, Any]]:
    ends = pairwise(split.targets.indptr.tolist())
    for text, (start, end) in zip(split.texts, ends, strict=True):
        yield {"title": text, "target_ind": split.targets.indices[start:end].tolist()}


def import_layout(folder: Path, made: Path) -> Imported:
    """Write the dataset in `folder`, which is in any layout, into the empty folder `made`, in the JSON layout."""
    source = own_source(folder)
    dataset = source.read(folder.parent)
    write_files(dataset, made, source.draft, read_keys(folder), "json")
    return Imported(train=len(dataset.train.texts), test=len(dataset.test.texts), labels=len(dataset.label_texts))
