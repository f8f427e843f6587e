"""BEIR folders: queries, a corpus of documents, which are the labels, and relevance judgements for each split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

from xmcbench.data.importer import Row
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench_plugins.datasets.importing.label_fields import as_key, as_text
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import COMPRESSED, read_records
from xmcbench_plugins.datasets.importing.vocabulary import add_text
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

SPLITS = ("train", "test")


def read_beir(folder: Path, options: Options, report: Report) -> tuple[dict[str, Iterator[Row]], dict[str, str]]:
    """The splits of a BEIR folder, and the text of each document by its key."""
    documents = _texts(_plain_or_compressed(folder / "corpus.jsonl"), options, report)
    queries = _texts(_plain_or_compressed(folder / "queries.jsonl"), options, report)
    qrels = {split: _plain_or_compressed(folder / "qrels" / f"{split}.tsv") for split in SPLITS}
    read = {path.name for path in qrels.values()}
    present = (folder / "qrels").iterdir() if (folder / "qrels").is_dir() else ()
    if others := sorted(path.name for path in present if path.name not in read):
        report.add(Kind.UNREAD_SPLITS, Severity.NOTE, len(others), place=str(folder / "qrels"), names=others)
    splits = {split: _read_qrels(path, queries, documents, options, report) for split, path in qrels.items()}
    return splits, documents


def _plain_or_compressed(path: Path) -> Path:
    forms = [path, *(path.with_name(path.name + ending) for ending in COMPRESSED)]
    return next((form for form in forms if form.is_file()), path)


def _texts(path: Path, options: Options, report: Report) -> dict[str, str]:
    """Title, if there is one, and text of each record by its `_id`."""
    texts: dict[str, str] = {}
    for where, record in read_records(path, options, report):
        for name in ("_id", "text"):
            if name not in record:
                raise UnknownNameError("key", name, record, where)
        key = as_key(record["_id"], f"{where}, key '_id'")
        title = as_text(record.get("title") or "", f"{where}, key 'title'")
        text = as_text(record["text"], f"{where}, key 'text'")
        add_text(texts, key, f"{title} {text}" if title and text else title or text, where)
    return texts


def _read_qrels(
    path: Path, queries: Mapping[str, str], documents: Mapping[str, str], options: Options, report: Report
) -> Iterator[Row]:
    """A row for each query with a document of positive score."""
    relevant: dict[str, list[str]] = defaultdict(list)
    for where, record in read_records(path, options, report):
        try:
            query, document, score = record["query-id"], record["corpus-id"], float(record["score"])
        except (KeyError, ValueError) as error:
            raise XMCBenchError(f"{where}: {error}, expected query-id, corpus-id and score") from error
        if not isfinite(score):
            raise XMCBenchError(f"{where}, column 'score': found {score}, expected a finite number")
        if query not in queries:
            raise XMCBenchError(f"{where}, column 'query-id': found {shown(query)}, which is no query")
        if document not in documents:
            raise XMCBenchError(f"{where}, column 'corpus-id': found {shown(document)}, which is no document")
        if score > 0:
            relevant[query].append(document)
    for query, found in relevant.items():
        yield Row(queries[query], found, f"{path}: query {query}")
