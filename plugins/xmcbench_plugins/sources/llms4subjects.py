"""Import of a clone of the LLMs4Subjects collection, TIBKAT's library records with GND subjects (docs/datasheets.md).

It has one JSON-LD file per record, in folders by part, type of record and language. A record is a graph: the node with
the title is the record, the others name what it refers to, its subjects among them. Of texts, runs of blanks are one
blank. Labels are in the order of their GND identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xmcbench.data.formats import CARD_FILE, write_json_layout
from xmcbench.data.importer import Imported, Importer
from xmcbench.errors import XMCBenchError
from xmcbench.files.regular import with_names_once

RECORDS = Path("library-records-dataset/data")
TRAIN, TEST = ("train", "dev"), ("test/gold-standard-testset",)
ABSTRACT_CHARACTERS = 1500
SUBJECT = "gnd:"
CARD = """\
source: https://github.com/sciknoworg/subject-indexing-dataset
licence: CC BY 4.0 by the repository's LICENSE, CC BY-SA 4.0 by its README
max_length: 128
"""


class LLMs4Subjects(Importer):
    """A clone of the collection of the shared task LLMs4Subjects."""

    name = "llms4subjects"
    summary = "a clone of the collection of LLMs4Subjects: from library records to GND subjects"

    def write(self, path: Path, folder: Path) -> Imported:
        """See `Importer`."""
        return import_llms4subjects(path, folder)


class LibraryRecord(NamedTuple):
    """A record: its number in the library, its texts, and its subjects as `gnd:` identifiers."""

    uid: str
    cell: str  # type of record and language, as `Book/de`
    title: str
    abstract: str
    subjects: set[str]

    @property
    def folded(self) -> tuple[str, str]:
        """What two editions of a text have in common."""
        return self.title.lower(), self.abstract.lower()


def import_llms4subjects(clone: Path, folder: Path) -> Imported:
    """Write the dataset of the clone into `folder`, which is empty or is made.

    Raises XMCBenchError that names the file of a record that is damaged, or the folder that is missing.
    """
    names: dict[str, str] = {}
    test = list(library_records(clone, TEST))
    of_test = {record.folded for record in test}
    official = list(library_records(clone, TRAIN, names))
    train = [record for record in official if record.folded not in of_test]
    labels = sorted({subject for record in train for subject in record.subjects})
    ids = {subject: number for number, subject in enumerate(labels)}
    test = [record for record in test if not record.subjects.isdisjoint(ids)]
    if unnamed := [subject for subject in labels if subject not in names]:
        raise XMCBenchError(f"{clone}: no record names the subject {unnamed[0]}, expected a node with its `sameAs`")
    if not (train and test):
        raise XMCBenchError(f"{clone}: found {len(train)} training and {len(test)} test records, expected some of each")
    write_json_layout(
        folder,
        (_line(record, ids) for record in train),
        (_line(record, ids) for record in test),
        ({"uid": label, "title": names[label], "content": ""} for label in labels),
        {CARD_FILE: CARD},
    )
    shared = len(official) - len(train)
    return Imported(train=len(train), test=len(test), labels=len(labels), shared=shared, removed=True)


def library_records(clone: Path, parts: Iterable[str], names: dict[str, str] | None = None) -> Iterator[LibraryRecord]:
    """The records of the parts in the order of their numbers; the first name of each subject goes into `names`.

    Raises XMCBenchError that names the file of a record that is damaged, or the folder that is missing.
    """
    names = {} if names is None else names
    paths: list[Path] = []
    for part in parts:
        of_part = list((clone / RECORDS / part).rglob("*.jsonld"))
        if not of_part:
            raise XMCBenchError(f"{clone / RECORDS / part}: found no .jsonld file, expected a clone of the collection")
        paths += of_part
    for path in sorted(paths, key=lambda path: path.stem):
        try:
            graph = json.loads(path.read_bytes(), object_pairs_hook=with_names_once)["@graph"]
            (record,) = (node for node in graph if "title" in node)
            for node in graph:
                if "sameAs" in node and node["@id"].startswith(SUBJECT):
                    names.setdefault(node["@id"], _text(node["sameAs"]))
            given = record.get("dcterms:subject", [])
            subjects = {subject["@id"] for subject in (given if isinstance(given, list) else [given])}
            title, abstract = _text(record["title"]), _text(record.get("abstract", ""))
            cell = f"{path.parent.parent.name}/{path.parent.name}"
            yield LibraryRecord(path.stem, cell, title, abstract, subjects)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problem = f"{type(error).__name__}: {str(error)[:100]}"
            raise XMCBenchError(f"{path}: {problem}, expected a JSON-LD graph with one record") from error


def _text(value: str | list[str]) -> str:
    """A value, or several, as one text in which runs of blanks are one blank."""
    return " ".join((value if isinstance(value, str) else " ".join(value)).split())


def _line(record: LibraryRecord, ids: dict[str, int]) -> dict[str, Any]:
    targets = sorted(ids[subject] for subject in record.subjects if subject in ids)
    texts = {"uid": record.uid, "title": record.title, "content": record.abstract[:ABSTRACT_CHARACTERS]}
    return {**texts, "target_ind": targets, "target_rel": [1.0] * len(targets)}
