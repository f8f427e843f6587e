"""The texts of labels by their keys: SKOS vocabularies, tables with columns, lists of lines.

A label's text is its preferred name in the chosen language. Where there is none it is a name without a language, then
one in another language; a code is never a name. Keys are in the order of the file.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any
from xml.parsers import expat

from xmcbench.data.text_files import open_binary
from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra, shown
from xmcbench_plugins.datasets.importing.label_fields import SNIFFED, as_key, as_text
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import (
    TABS,
    check_file,
    check_is_text,
    lines_of,
    read_records,
    suffix_of,
    tab_separated,
)
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

RDF_FORMATS = {
    **dict.fromkeys((".ttl", ".n3"), "turtle"),
    **dict.fromkeys((".rdf", ".xml", ".owl", ".skos"), "xml"),
    ".nt": "nt",
    ".jsonld": "json-ld",
}
FORMS = {"turtle": "Turtle", "xml": "RDF/XML", "nt": "N-Triples", "json-ld": "JSON-LD"}
KEY_COLUMNS = ("uri", "id", "_id", "key", "label_id", "identifier", "concept", "code", "notation", "index")
NAME_COLUMNS = ("label", "preflabel", "pref_label", "name", "text", "title", "term", "label_text", "label_name")
LANGUAGE_COLUMN = re.compile(r"(?:pref_?label|label|name|title|term|text)[_@-]([a-z]{2,3}(?:[-_]\w+)*)", re.IGNORECASE)
CODE = re.compile(r"[^a-z\s]*\d[^a-z\s]*$|\d[\w.:/-]*$")
LISTED = 8  # languages in a message
SHARE_OF_CODES = 0.9  # of the preferred names, from which on other names come before what is a code
MAX_JSON = 1 << 28  # bytes of a file that is one JSON value
SKOS = "http://www.w3.org/2004/02/skos/core#"
SKOSXL = "http://www.w3.org/2008/05/skos-xl#"


def read_label_texts(path: Path, options: Options, report: Report) -> dict[str, str]:
    """The text of each label by its key.

    RDF files (.ttl, .nt, .rdf, .jsonld) are SKOS vocabularies. A .txt file has a label text per line, and line numbers
    from 0 are the keys. A .json file may be one object of texts by key, or a list of texts. Of other tables a column
    has the keys and another one the texts. Each may be compressed.
    """
    check_file(path)
    suffix = suffix_of(path)
    if suffix == ".json" and _is_json_ld(path):
        suffix = ".jsonld"
    if suffix in RDF_FORMATS:
        texts = _read_skos(path, suffix, options, report)
    elif suffix == ".txt":
        texts = {str(number): line for number, (_, line) in enumerate(lines_of(path, options, report))}
    elif suffix in TABS and not (options.given("label_key") or options.given("label_name")):
        texts = _read_lines(path, options, report)
    else:
        texts = (_read_json(path, options) if suffix == ".json" else None) or _read_table(path, options, report)
    if not texts:
        raise XMCBenchError(f"{path}: found no label texts, expected one for each label")
    return texts


def clean_uri(key: str) -> str:
    """The key without the angle brackets that Turtle and Annif write around a URI.

    >>> clean_uri("<http://example.org/1>"), clean_uri("red")
    ('http://example.org/1', 'red')
    """
    return key[1:-1] if key.startswith("<") and key.endswith(">") else key


def add_text(texts: dict[str, str], key: str, text: str, where: str) -> None:
    """Enter the text of a new key."""
    if key in texts:
        raise XMCBenchError(f"{where}: found {shown(key)} again, expected each key once")
    texts[key] = text


# Tables -------------------------------------------------------------------------------------------------------------


def _read_lines(path: Path, options: Options, report: Report) -> dict[str, str]:
    """Key, tab, text a line, as Annif has them, without a header; a third field, a notation, is left out.

    Where the first line names columns the file is a table with a header.
    """
    lines = tab_separated(path, options, report)
    first = next(lines, None)
    if first is None:
        return {}
    where, (key, rest) = first
    if key.strip().lower() in KEY_COLUMNS and rest is not None and "://" not in rest:
        return _read_table(path, options, report)
    texts: dict[str, str] = {}
    others: list[list[str]] = []
    for where, (key, rest) in chain([first], lines):
        if rest is None:
            raise XMCBenchError(f"{where}: found no tab, expected two columns separated by a tab")
        fields = rest.split("\t")
        add_text(texts, clean_uri(key), fields[0], where)
        if len(others) < SNIFFED:
            others.append([key, *fields])
    _look_for_codes(path, others, report)
    return texts


def _look_for_codes(path: Path, rows: Sequence[Sequence[str]], report: Report) -> None:
    """Say where the texts are codes, or URIs of which no key is one, and another field has names."""
    first = [row[1] for row in rows if len(row) > 1 and row[1]]
    keys = [row[0] for row in rows]
    if first and all("://" in text for text in first) and not any("://" in key for key in keys):
        report.add(Kind.CODES_FOR_NAMES, Severity.GRAVE, len(first), example=first[0], place=str(path), names=[keys[0]])
    behind = [row[2] for row in rows if len(row) > 2 and row[2]]
    if first and behind and all(map(CODE.match, first)) and not any(map(CODE.match, behind)):
        report.add(
            Kind.CODES_FOR_NAMES, Severity.GRAVE, len(first), example=first[0], place=str(path), names=[behind[0]]
        )


def _read_table(path: Path, options: Options, report: Report) -> dict[str, str]:
    records = read_records(path, options, report)
    first = list(islice(records, SNIFFED))
    if first and (uris := [str(name) for name in first[0][1] if "://" in str(name)]):
        raise XMCBenchError(f"{path}: found {shown(uris[0])} in the first row, expected the names of the columns there")
    names = list(dict.fromkeys(str(name) for _, record in first for name in record))
    if first and len(names) < 2:
        raise XMCBenchError(f"{first[0][0]}: found {len(names)} columns, expected a key and a text per label")
    key_column, text_columns = _columns(path, names, [record for _, record in first], options, report)
    texts: dict[str, str] = {}
    elsewhere = unnamed = 0
    for where, record in chain(first, records):
        key = clean_uri(as_key(_value(record, key_column, where), where))
        found = [(column, record.get(column)) for column in text_columns]
        filled = [(column, as_text(value, where)) for column, value in found if value not in (None, "")]
        if len(text_columns) > 1 and not filled:
            unnamed += 1
            continue
        if not filled:
            filled = [(text_columns[0], as_text(_value(record, text_columns[0], where), where))]
        elsewhere += filled[0][0] != text_columns[0]
        add_text(texts, key, filled[0][1], where)
    if elsewhere:
        report.add(Kind.OTHER_LANGUAGE, Severity.DOUBT, elsewhere, len(texts), place=str(path), names=text_columns[:1])
    if unnamed:
        report.add(Kind.UNNAMED, Severity.DOUBT, unnamed, len(texts) + unnamed, place=str(path))
    return texts


def _value(record: dict[str, Any], column: str, where: str) -> Any:
    if column not in record:
        raise UnknownNameError("column", column, map(str, record), where)
    return record[column]


def _columns(
    path: Path, names: Sequence[str], records: Sequence[dict[str, Any]], options: Options, report: Report
) -> tuple[str, list[str]]:
    """The column of the keys, and those of the texts: the chosen one, then those in other languages."""
    key = options.label_key if options.given("label_key") else _known(names, KEY_COLUMNS) or (names[0] if names else "")
    if key not in names and names:
        raise UnknownNameError("column", str(key), names, f"{path}: --label-key")
    others = [name for name in names if name != key]
    if options.given("label_name"):
        name = str(options.label_name)
        if name not in names:
            raise UnknownNameError("column", name, names, f"{path}: --label-name")
        return str(key), [name]
    by_language = {match[1].lower(): name for name in others if (match := LANGUAGE_COLUMN.fullmatch(name))}
    if by_language:
        return str(key), _in_language(path, by_language, options, report)
    if (known := _known(others, NAME_COLUMNS)) or len(others) == 1:
        chosen = known or others[0]
        _check_names(path, chosen, others, records)
        return str(key), [chosen]
    if not others:
        return str(key), [""]
    raise XMCBenchError(
        f"{path}: found the columns {shown(', '.join(names), quote=False)}, expected --label-name, and --label-key "
        f"where the keys are not in {key!r}"
    )


def _known(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The name among `names` that comes first among the `known` ones, whatever its case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in known if name in lower), None)


def _in_language(path: Path, by_language: dict[str, str], options: Options, report: Report) -> list[str]:
    """The columns in the chosen language and its regions, then the others."""
    wanted = options.language.lower()
    fitting = [language for language in by_language if _fits(language, wanted)]
    report.add(Kind.LANGUAGES, Severity.NOTE, place=str(path), names=[wanted, *by_language])
    if not fitting:
        languages = ", ".join(list(by_language)[:LISTED])
        raise XMCBenchError(f"{path}: found label texts in {languages}, expected {wanted!r}, or another --language")
    fitting.sort(key=lambda language: language != wanted)
    return [by_language[language] for language in [*fitting, *(set_ for set_ in by_language if set_ not in fitting)]]


def _fits(language: str, wanted: str) -> bool:
    """Whether a language tag is the wanted one, or a region or script of it, as `en-GB` is of `en`."""
    return language == wanted or re.match(rf"{re.escape(wanted)}[-_]", language) is not None


def _check_names(path: Path, chosen: str, others: Sequence[str], records: Sequence[dict[str, Any]]) -> None:
    """Raise where the chosen column has codes and another one names."""
    values = {name: [str(record.get(name) or "") for record in records] for name in others}
    codes = [name for name, texts in values.items() if any(texts) and all(CODE.match(text) for text in texts if text)]
    names = [
        name for name in others if name not in codes and any(re.search(r"[^\W\d_]{2}", text) for text in values[name])
    ]
    if chosen in codes and names:
        raise XMCBenchError(
            f"{path}: found codes in the column {chosen!r}, such as {shown(values[chosen][0])}, expected names, which "
            f"may be in {', '.join(map(repr, names))}: --label-name says which"
        )


def _is_json_ld(path: Path) -> bool:
    with open_binary(path) as file:
        return re.match(rb'\s*\{\s*"@(?:context|graph|id)"', file.read(1 << 12)) is not None


def _read_json(path: Path, options: Options) -> dict[str, str] | None:
    """The texts in a file that is one JSON object of texts by key, or one list of texts; None for another one."""
    try:
        with open_binary(path) as file:
            content = json.loads(file.read(MAX_JSON).decode(options.encoding or "utf-8-sig"))
    except (ValueError, OSError, EOFError, LookupError, RecursionError):
        return None  # JSON lines; what is wrong is said where they are read
    if isinstance(content, list) and content and all(isinstance(text, str) for text in content):
        return {str(number): text for number, text in enumerate(content)}
    if isinstance(content, dict) and content and all(isinstance(text, str) for text in content.values()):
        if set(content) <= {*KEY_COLUMNS, *NAME_COLUMNS}:
            return None  # one line of a table
        return content
    if isinstance(content, dict) and content and all(type(number) is int for number in content.values()):
        return {str(number): text for text, number in sorted(content.items(), key=lambda pair: pair[1])}  # label2id
    return None


# SKOS ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Name:
    """A name of a concept: its language in lower case, empty where it has none; whether it is a preferred name."""

    text: str
    language: str
    preferred: bool
    place: int  # in the order of the graph

    def rank(self, wanted: str, codes: bool) -> tuple[int, int]:
        """The lowest is the name to show: preferred ones in the chosen language, in a region of it, without a language,
        other names, names in other languages; what is a code comes last, with a language only where most preferred
        names are `codes`."""
        if (codes or not self.language) and CODE.match(self.text):
            rank = 7
        elif self.language == wanted or _fits(self.language, wanted):
            rank = (0 if self.language == wanted else 1) if self.preferred else 3
        elif not self.language:
            rank = 2 if self.preferred else 5
        else:
            rank = 4 if self.preferred else 6
        return rank, self.place


def _read_skos(path: Path, suffix: str, options: Options, report: Report) -> dict[str, str]:
    rdflib = import_extra("rdflib", "skos", "reading SKOS vocabularies")
    check_is_text(path)
    logging.getLogger("rdflib").setLevel(logging.ERROR)  # it warns of each URI before it says what is wrong
    graph = rdflib.Graph()
    try:
        with open_binary(path) as file:
            content = file.read()
        if RDF_FORMATS[suffix] == "xml":
            _check_entities(path, content)
        if RDF_FORMATS[suffix] == "json-ld":
            _check_contexts(path, json.loads(content))
        graph.parse(io.BytesIO(content), format=RDF_FORMATS[suffix], publicID=path.absolute().as_uri())
    except XMCBenchError:
        raise
    except Exception as error:  # rdflib's parsers raise errors of many kinds
        raise XMCBenchError(
            f"{path}: {json.dumps(str(error))[:200]}, expected a vocabulary as {FORMS[RDF_FORMATS[suffix]]}, which "
            f"the ending {suffix} says"
        ) from error
    names, deprecated, unnamed = _concepts(rdflib, graph)
    if not names:
        raise XMCBenchError(f"{path}: found no skos:prefLabel of a concept, expected a SKOS vocabulary")
    wanted = options.language.lower()
    languages = Counter(name.language for found in names.values() for name in found)
    tags = [tag for tag, _ in languages.most_common() if tag]
    report.add(Kind.LANGUAGES, Severity.NOTE, place=str(path), names=[wanted, *(tags or ["none"])])
    if "" not in languages and not any(_fits(tag, wanted) for tag in tags):
        raise XMCBenchError(
            f"{path}: found names in {', '.join(tags[:LISTED])}, expected {wanted!r}, or another --language"
        )
    preferred = [name for found in names.values() for name in found if name.preferred]
    codes = sum(CODE.match(name.text) is not None for name in preferred) >= SHARE_OF_CODES * len(preferred)
    chosen = {node: min(found, key=lambda name: name.rank(wanted, codes)) for node, found in names.items()}
    _report_names(path, chosen, names, wanted, report)
    for kind, severity, count in (
        (Kind.UNNAMED, Severity.DOUBT, unnamed),
        (Kind.DEPRECATED, Severity.NOTE, deprecated),
    ):
        if count:
            report.add(kind, severity, count, len(chosen) + count, place=str(path))
    return {node: name.text for node, name in sorted(chosen.items(), key=lambda item: item[1].place)}


def _concepts(rdflib: Any, graph: Any) -> tuple[dict[str, list[_Name]], int, int]:
    """The names of each concept in use; how many concepts are deprecated, and how many have no name."""
    preferred = rdflib.URIRef(SKOS + "prefLabel")
    extended, form = rdflib.URIRef(SKOSXL + "prefLabel"), rdflib.URIRef(SKOSXL + "literalForm")
    typed = set(graph.subjects(rdflib.RDF.type, rdflib.URIRef(SKOS + "Concept")))
    # Where a file types nothing as a concept, what has a preferred name is one.
    concepts = typed or {*graph.subjects(preferred), *graph.subjects(extended)}
    true = {"true", "1"}
    deprecated = {node for node, value in graph.subject_objects(rdflib.OWL.deprecated) if str(value).lower() in true}
    statements = chain(
        ((node, name, True) for node, name in graph.subject_objects(preferred)),
        ((node, form_, True) for node, name in graph.subject_objects(extended) for form_ in graph.objects(name, form)),
        ((node, name, False) for node, name in graph.subject_objects(rdflib.RDFS.label)),
        ((node, name, False) for node, name in graph.subject_objects(rdflib.URIRef(SKOS + "altLabel"))),
    )
    names: dict[str, list[_Name]] = {}
    for place, (node, literal, is_preferred) in enumerate(statements):
        in_use = node in concepts and node not in deprecated and isinstance(node, rdflib.URIRef)
        if in_use and isinstance(literal, rdflib.Literal) and str(literal).strip():
            name = _Name(str(literal), (literal.language or "").lower(), is_preferred, place)
            names.setdefault(str(node), []).append(name)
    return names, len(concepts & deprecated), len(concepts - deprecated) - len(names)


def _report_names(
    path: Path, chosen: dict[str, _Name], names: dict[str, list[_Name]], wanted: str, report: Report
) -> None:
    untagged = [name for name in chosen.values() if not name.language]
    other = [name for name in chosen.values() if name.language and not _fits(name.language, wanted)]
    several = [
        name
        for node, name in chosen.items()
        if len({each.text for each in names[node] if each.preferred and each.language == name.language}) > 1
    ]
    all_untagged = len(untagged) == len(chosen)
    for kind, severity, found in (
        (Kind.UNTAGGED, Severity.NOTE if all_untagged else Severity.DOUBT, untagged),
        (Kind.OTHER_LANGUAGE, Severity.DOUBT, other),
        (Kind.SEVERAL_NAMES, Severity.NOTE, several),
    ):
        if found:
            report.add(kind, severity, len(found), len(chosen), found[0].text, str(path), [wanted])


def _check_contexts(path: Path, value: Any) -> None:
    """Raise XMCBenchError where JSON-LD names a context elsewhere, which rdflib would fetch."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            continue
        context = each.get("@context")
        for one in context if isinstance(context, list) else [context]:
            imported = one.get("@import") if isinstance(one, dict) else one
            if isinstance(imported, str):
                raise XMCBenchError(
                    f"{path}: found the context {shown(imported)}, which is elsewhere and is not fetched, expected it "
                    "in the file, or the vocabulary as .ttl or .nt"
                )
        for inner in each.values():
            if isinstance(inner, dict | list):
                _check_contexts(path, inner)


def _check_entities(path: Path, content: bytes) -> None:
    """Raise XMCBenchError where an XML file defines an entity by others: a short file could be a text without end."""

    def declared(name: str, is_parameter: bool, value: str | None, *_: object) -> None:
        if is_parameter or value is None or "&" in value:
            raise XMCBenchError(f"{path}: found the entity {shown(name)}, which is made of others, expected plain text")

    begun: list[str] = []
    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    parser.StartElementHandler = lambda name, _: begun.append(name)
    with suppress(expat.ExpatError):  # rdflib says what is wrong
        for start in range(0, len(content), 1 << 12):
            if begun:
                break
            parser.Parse(content[start : start + (1 << 12)])
