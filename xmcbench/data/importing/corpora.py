"""Folders and files of other tools: BEIR, Hugging Face `datasets`, Annif, and PECOS text files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from math import isfinite
from pathlib import Path
from xml.parsers import expat

from xmcbench.data.importing.rows import Columns, Row, as_key, as_text, open_text, read_records, read_rows, reading
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.files.regular import open_regular
from xmcbench.plugins.extras import import_extra

PREFERRED = "http://www.w3.org/2004/02/skos/core#prefLabel"


def read_beir(directory: Path) -> tuple[dict[str, Iterator[Row]], dict[str, str]]:
    """The splits of a BEIR folder, whose labels are the documents of the corpus, and the text of each document."""
    documents, queries = _texts(directory / "corpus.jsonl"), _texts(directory / "queries.jsonl")
    splits = {split: _read_qrels(directory / "qrels" / f"{split}.tsv", queries) for split in ("train", "test")}
    return splits, documents


def _texts(path: Path) -> dict[str, str]:
    """Title, if there is one, and text of each record by its `_id`."""
    texts: dict[str, str] = {}
    for number, record in enumerate(read_records(path), start=1):
        where = f"{path}: row {number}"
        for name in ("_id", "text"):
            if name not in record:
                raise UnknownNameError("key", name, record, where)
        key = as_key(record["_id"], f"{where}, key '_id'")
        title, text = (
            as_text(value, f"{where}, key {name!r}")
            for name, value in (("title", record.get("title") or ""), ("text", record["text"]))
        )
        _add(texts, key, " ".join(part for part in (title, text) if part), where)
    return texts


def _add(texts: dict[str, str], key: str, text: str, where: str) -> None:
    """Enter the text of a new key."""
    if key in texts:
        raise XMCBenchError(f"{where}: found {shown(key)} again, expected each key once")
    texts[key] = text


def _read_qrels(path: Path, queries: dict[str, str]) -> Iterator[Row]:
    relevant: dict[str, list[str]] = defaultdict(list)
    for number, record in enumerate(read_records(path), start=1):
        try:
            query, document, score = record["query-id"], record["corpus-id"], float(record["score"])
        except (KeyError, ValueError) as error:
            raise XMCBenchError(f"{path}: row {number}: {error}, expected query-id, corpus-id and score") from error
        if not isfinite(score):
            raise XMCBenchError(f"{path}: row {number}, column 'score': found {score}, expected a finite number")
        if query not in queries:
            raise XMCBenchError(f"{path}: row {number}, column 'query-id': found {shown(query)}, which is no query")
        if score > 0:
            relevant[query].append(document)
    for query, documents in relevant.items():
        yield Row(queries[query], documents, f"{path}: query {query}")


def read_hugging_face(directory: Path, columns: Columns) -> dict[str, Iterator[Row]]:
    """The train and test splits of a folder that `DatasetDict.save_to_disk` or the hub's Parquet layout wrote."""
    splits: dict[str, Iterator[Row]] = {}
    for split in ("train", "test"):
        files = sorted([*directory.glob(f"{split}/*.arrow"), *directory.glob(f"**/{split}-*.parquet")])
        if not files:
            raise XMCBenchError(f"{directory}: found no {split} split, expected {split}/*.arrow or {split}-*.parquet")
        splits[split] = chain.from_iterable(read_rows(path, columns) for path in files)
    return splits


def read_annif(path: Path) -> Iterator[Row]:
    """An Annif corpus: a text, a tab, and the subjects' URIs in angle brackets, separated by spaces."""
    for number, (text, rest) in enumerate(_tab_separated(path), start=1):
        where = f"{path}: row {number}"
        subjects = rest.split()
        wrong = [subject for subject in subjects if not (subject.startswith("<") and subject.endswith(">"))]
        if wrong:
            raise XMCBenchError(f"{where}: found {shown(wrong[0])}, expected URIs in angle brackets")
        yield Row(text, [subject[1:-1] for subject in subjects], where)


def read_pecos(path: Path) -> Iterator[Row]:
    """A PECOS text file: label numbers separated by commas, a tab, and the text."""
    for number, (labels, text) in enumerate(_tab_separated(path), start=1):
        yield Row(text, [label for label in labels.split(",") if label], f"{path}: row {number}")


def read_label_texts(path: Path, language: str = "en") -> dict[str, str]:
    """The text of each label by its key.

    SKOS vocabularies (.ttl, .rdf) give preferred labels in `language`. A .txt file has a label text per line, and line
    numbers from 0 are the keys. Of other tables the first column is the key, the second the text.
    """
    if path.suffix in (".ttl", ".rdf"):
        return _read_skos(path, language)
    if path.suffix == ".txt":
        with reading(path), open_text(path) as file:
            return {str(number): line.rstrip("\r\n") for number, line in enumerate(file)}
    texts: dict[str, str] = {}
    if path.suffix == ".tsv":
        for number, (key, text) in enumerate(_tab_separated(path), start=1):
            name = key[1:-1] if key.startswith("<") and key.endswith(">") else key
            _add(texts, name, text.split("\t")[0], f"{path}: row {number}")
        return texts
    for number, record in enumerate(read_records(path), start=1):
        where, values = f"{path}: row {number}", list(record.values())
        if len(values) < 2:
            raise XMCBenchError(f"{where}: found {len(values)} columns, expected a key and a text per label")
        _add(texts, as_key(values[0], where), as_text(values[1], where), where)
    return texts


def _read_skos(path: Path, language: str) -> dict[str, str]:
    rdflib = import_extra("rdflib", "skos", "reading SKOS vocabularies")
    if path.suffix == ".rdf":
        _check_entities(path)
    graph = rdflib.Graph()
    try:
        graph.parse(path, format="turtle" if path.suffix == ".ttl" else "xml")
    except Exception as error:  # rdflib's parsers raise errors of many kinds
        raise XMCBenchError(f"{path}: {json.dumps(str(error))[:200]}, expected a SKOS vocabulary") from error
    texts = {
        str(subject): str(label)
        for subject, label in graph.subject_objects(rdflib.URIRef(PREFERRED))
        if label.language in (language, None)
    }
    if not texts:
        raise XMCBenchError(f"{path}: found no skos:prefLabel in {language!r}")
    return texts


def _check_entities(path: Path) -> None:
    """Raise XMCBenchError where an XML file defines an entity by others: a short file could be a text without end."""

    def declared(name: str, is_parameter: bool, value: str | None, *_: object) -> None:
        if is_parameter or value is None or "&" in value:
            raise XMCBenchError(f"{path}: found the entity {shown(name)}, which is made of others, expected plain text")

    begun: list[str] = []
    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    parser.StartElementHandler = lambda name, _: begun.append(name)
    with reading(path), open_regular(path) as file, suppress(expat.ExpatError):  # rdflib says what is wrong
        while not begun and (chunk := file.read(1 << 12)):
            parser.Parse(chunk)


def _tab_separated(path: Path) -> Iterator[tuple[str, str]]:
    if not path.is_file():
        raise XMCBenchError(f"{path}: found no such file")
    with reading(path) as place, open_text(path) as file:
        for line in file:
            first, tab, rest = line.rstrip("\r\n").partition("\t")
            if not tab:
                raise XMCBenchError(f"{path}: row {place.row}: found no tab, expected two columns separated by a tab")
            yield first, rest
            place.row += 1
