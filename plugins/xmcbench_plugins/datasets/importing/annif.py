"""Annif's corpora: files of short texts (TSV, CSV, JSON lines), and folders with a file for each document.

Annif skips lines without a tab and subjects that its vocabulary lacks, and so does this, with a count; with `--strict`
both are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xmcbench.data.importer import Row
from xmcbench.errors import XMCBenchError, shown, suggest
from xmcbench_plugins.datasets.importing.encodings import find_encoding
from xmcbench_plugins.datasets.importing.label_fields import as_text
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import JSON_FILES, read_records, suffix_of, tab_separated
from xmcbench_plugins.datasets.importing.vocabulary import clean_uri
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

BRACKETS = re.compile(r"^<.*[^>]$|^[^<].*>$|.[<]|[>].")  # not as around one URI
TEXT, SUBJECTS = "text", "subject_uris"  # the columns of a CSV corpus


def read_annif(path: Path, options: Options, report: Report, label_texts: Mapping[str, str] | None) -> Iterator[Row]:
    """The documents of a corpus. `label_texts` has the name of each subject in the vocabulary, if there is one."""
    if path.is_dir():
        rows = _folder(path, options, report)
    elif suffix_of(path) == ".csv":
        rows = _csv(path, options, report)
    elif suffix_of(path) in JSON_FILES:
        records = read_records(path, options, report)
        rows = (_document(record, where) for where, record in records)
    else:
        rows = _lines(path, options, report)
    return _known_subjects(rows, options, report, label_texts)


def _lines(path: Path, options: Options, report: Report) -> Iterator[Row]:
    """A text, a tab, and the subjects' URIs, in angle brackets or bare, with blanks between them."""
    skipped: list[tuple[str, str]] = []
    lines = 0
    for where, (text, rest) in tab_separated(path, options, report):
        lines += 1
        if rest is None:
            skipped.append((where, text))
            if options.strict:
                raise XMCBenchError(f"{where}: found no tab, expected a text, a tab and URIs")
            continue
        subjects = rest.split()
        if wrong := [subject for subject in subjects if BRACKETS.search(subject)]:
            raise XMCBenchError(f"{where}: found {shown(wrong[0])}, expected URIs with blanks between them")
        yield Row(text, [subject[1:-1] if subject[0] == "<" else subject for subject in subjects], where)
    if filled := [line for line in skipped if line[1].strip()]:
        where, text = filled[0]
        report.add(Kind.LINES_WITHOUT_TAB, Severity.DOUBT, len(filled), lines, text, where)


def _csv(path: Path, options: Options, report: Report) -> Iterator[Row]:
    for where, record in read_records(path, options, report, (TEXT, SUBJECTS)):
        if missing := [column for column in (TEXT, SUBJECTS) if column not in record]:
            found = shown(", ".join(map(str, record)), quote=False)
            raise XMCBenchError(f"{where}: found the columns {found}, expected also {missing[0]}")
        yield Row(record[TEXT], [clean_uri(subject) for subject in record[SUBJECTS].split()], where)


def _document(record: Mapping[str, Any], where: str) -> Row:
    """A document of Annif's JSON: `text`, and `subjects` with a `uri` or else a `label` each."""
    metadata = record.get("metadata") or {}
    text = record.get("text") or (" ".join(map(str, metadata.values())) if isinstance(metadata, dict) else "")
    subjects = record.get("subjects", [])
    if not isinstance(subjects, list) or not all(isinstance(subject, dict) for subject in subjects):
        raise XMCBenchError(f"{where}, key 'subjects': found {shown(subjects)}, expected a list of objects")
    keys = [
        clean_uri(as_text(subject.get("uri") or subject.get("label"), f"{where}, key 'subjects'"))
        for subject in subjects
    ]
    return Row(as_text(text, f"{where}, key 'text'"), keys, where)


def _folder(folder: Path, options: Options, report: Report) -> Iterator[Row]:
    """A .txt file for each document, its subjects in a .tsv or .key file of the same name; or a .json file."""
    texts = sorted(folder.glob("*.txt"))
    documents = sorted(folder.glob("*.json"))
    if not (texts or documents):
        raise XMCBenchError(f"{folder}: found no .txt or .json file, expected one for each document")
    without: list[Path] = []
    read = {*texts, *documents}
    for path in texts:
        subjects = [other for ending in (".tsv", ".key") if (other := path.with_suffix(ending)).is_file()]
        if not subjects:
            without.append(path)
            continue
        read.update(subjects)
        content = _content(path, options, report)
        yield Row(content, list(_subjects(_content(subjects[0], options, report))), str(path))
    for path in documents:
        try:
            record = json.loads(_content(path, options, report))
        except (ValueError, RecursionError) as error:
            raise XMCBenchError(f"{path}: {error}, expected a JSON object") from error
        if not isinstance(record, dict):
            raise XMCBenchError(f"{path}: found {shown(record)}, expected a JSON object")
        yield _document(record, str(path))
    if without:
        names = [path.name for path in without]
        report.add(Kind.UNREAD_FILES, Severity.DOUBT, len(without), len(texts), place=str(folder), names=names[:5])
    if others := sorted(path.name for path in folder.iterdir() if path not in read and not path.name.startswith(".")):
        report.add(Kind.UNREAD_FILES, Severity.NOTE, len(others), place=str(folder), names=others[:5])


def _content(path: Path, options: Options, report: Report) -> str:
    try:
        return path.read_text(find_encoding(path, options, report))
    except (OSError, ValueError) as error:
        raise XMCBenchError(f"{path}: {error}") from error


def _subjects(content: str) -> Iterator[str]:
    """The subject of each line: its URI in angle brackets, else its first field, a label."""
    for line in content.splitlines():
        fields = [field.strip() for field in line.split("\t") if field.strip()]
        uris = [field for field in fields if field.startswith("<") and field.endswith(">")]
        if fields:
            yield clean_uri((uris or fields)[0])


def _known_subjects(
    rows: Iterable[Row], options: Options, report: Report, label_texts: Mapping[str, str] | None
) -> Iterator[Row]:
    """The rows with the subjects that the vocabulary has, by URI or by name."""
    if label_texts is None:
        yield from rows
        return
    by_name = {text: key for key, text in reversed(list(label_texts.items()))}
    unknown = pairs = 0
    first = ("", "")
    for row in rows:
        if label_texts.keys() >= set(row.labels):
            pairs += len(row.labels)
            yield row
            continue
        keys = [subject if subject in label_texts else by_name.get(subject, "") for subject in row.labels]
        pairs += len(keys)
        if "" in keys:
            subject = row.labels[keys.index("")]
            if options.strict:
                near = suggest(subject, list(label_texts)[:10_000])
                raise XMCBenchError(f"{row.where}: found the subject {shown(subject)}, which has no text{near}")
            unknown, first = unknown + keys.count(""), first if unknown else (subject, row.where)
        yield Row(row.text, list(dict.fromkeys(filter(None, keys))), row.where)
    if unknown:
        severity = Severity.GRAVE if unknown == pairs else Severity.DOUBT
        report.add(Kind.UNKNOWN_LABELS, severity, unknown, pairs, *first)
