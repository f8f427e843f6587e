"""Rows with a text and its labels, from a table; what is suspicious about how its labels are separated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from xmcbench.data.importer import Row
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench_plugins.datasets.importing.label_fields import SNIFFED, LabelColumn, as_text, is_indicator
from xmcbench_plugins.datasets.importing.options import SEPARATOR, Options
from xmcbench_plugins.datasets.importing.records import first_records, open_parquet, read_records, suffix_of
from xmcbench_plugins.datasets.inspection import INDICATORS_MEND, PIECE, Kind, Report, Severity

CANDIDATES = ("|", ",", ";", "\t", "\n", " ")
RARE = ("/", "#", "+", "&")  # which stand in single labels too
NEARLY_ALL = 0.9  # of the rows with labels have one label
SOME = 0.01  # of them have a label with another separator in it
SEVERAL_URIS = re.compile(r"<?[a-zA-Z][a-zA-Z0-9+.-]*:\S+(?:\s+<?[a-zA-Z][a-zA-Z0-9+.-]*:\S+)+$")
CODES = re.compile(r"\S*\d\S*(?:\s+\S*\d\S*)*$")
UNREAD_LIST = re.compile(r"['\"]?(?:\w+\()?[\[({].*,.*[\])}]\)?['\"]?$", re.DOTALL)


def read_rows(path: Path, options: Options, report: Report, named: bool = False) -> Iterator[Row]:
    """The rows of a table, one for each record, or for each value of the column that the options group by.

    With `named` labels are numbers whose names are known.

    Fields of labels are lists, written lists, or texts with the options' separator between labels.
    """
    group = options.group_by
    columns = [options.text, options.labels, *([group] if group else [])]
    rows = _rows(path, read_records(path, options, report, columns), columns, options, report, named)
    return _grouped(rows) if group else (row for _, row in rows)


def _rows(
    path: Path,
    records: Iterator[tuple[str, dict[str, Any]]],
    columns: Sequence[str],
    options: Options,
    report: Report,
    named: bool,
) -> Iterator[tuple[str, Row]]:
    """Each row after its value in the third of `columns`, by which rows are grouped, if there is one."""
    text, labels, *group = columns
    try:
        first = list(islice(records, SNIFFED))
        for where, record in first:
            _check_columns(record, columns, where)
    except UnknownNameError as error:
        if len(found := _indicators(path, options, columns)) > 1:
            names = f"such as {found[0]!r} and {found[1]!r}"
            raise XMCBenchError(
                f"{error}: {len(found)} columns hold zeros and ones, {names}: {INDICATORS_MEND}"
            ) from error
        raise
    fields = [record[labels] for _, record in first]
    if fields and all(is_indicator(field) for field in fields):
        beside = [labels, *_indicators(path, options, columns)]
        if len(beside) > 1:
            report.add(Kind.INDICATOR_COLUMNS, Severity.GRAVE, len(beside), place=str(path), names=beside[:2])
    column = LabelColumn(labels, fields, options, report, first[0][0] if first else str(path))
    labelled, is_number = False, True
    count = separated = 0
    for where, record in chain(first, records):
        if labels not in record or text not in record or (group and group[0] not in record):
            _check_columns(record, columns, where)
        found = column.read(record[labels], where)
        labelled = labelled or bool(found)
        is_number = is_number and all(map(str.isdigit, found))
        count, separated = count + 1, separated + (len(found) > 1)
        content = record[text]
        if not isinstance(content, str):
            as_text(content, f"{where}, column {text!r}")  # says what is expected
        yield str(record[group[0]]) if group else "", Row(content, found, where)
    if count and not (column.lists or separated or options.given("separator")):
        report.one_label_a_row = True
    if report.within:
        _look_within(path, options, report, columns, column)
    if labelled and is_number and not (named or options.given("label_texts")):
        _look_for_names(path, options, report, columns)


def _indicators(path: Path, options: Options, columns: Sequence[str]) -> list[str]:
    """The columns of a table, beside `columns`, that hold zeros and ones alone in its first rows."""
    try:
        records = first_records(path, options, SNIFFED)
    except XMCBenchError:  # of a column that nobody asked for
        return []
    names = [name for name in (records[0] if records else ()) if name not in columns]
    return [name for name in names if all(is_indicator(record.get(name)) for record in records)]


def _check_columns(record: dict[str, Any], columns: Sequence[str], where: str) -> None:
    if not set(columns) & record.keys():
        found, wanted = shown(", ".join(map(str, record))), " or ".join(map(repr, columns[:2]))
        raise XMCBenchError(
            f"{where}: no column {wanted}, found {found}: expected their names with --text and --labels, and in a "
            "table a first row with names"
        )
    for column in columns:
        if column not in record:
            raise UnknownNameError("column", column, [str(name) for name in record], where)


def _grouped(rows: Iterable[tuple[str, Row]]) -> Iterator[Row]:
    """One row for each value that is grouped by, with the labels of all."""
    groups: dict[str, Row] = {}
    for value, row in rows:
        earlier = groups.setdefault(value, Row(row.text, [], row.where))
        if earlier.text != row.text:
            raise XMCBenchError(
                f"{row.where}: found another text than in {earlier.where.rpartition(': ')[2]}, though --group-by finds "
                f"{shown(value)} in both, expected one text"
            )
        earlier.labels.extend(label for label in row.labels if label not in earlier.labels)
    yield from groups.values()


def _look_within(path: Path, options: Options, report: Report, columns: Sequence[str], column: LabelColumn) -> None:
    """Say where lines within fields are rows: what stands in the column of labels are labels of other rows.

    The file is read again for these, which few files need.
    """
    known: set[str] = set()
    labels = columns[1]
    for where, record in read_records(path, options, Report(), columns):
        known.update(column.read(record[labels], where))
    swallowed = []
    for where, record in report.within:
        try:
            found = column.read(record[labels], where)
        except XMCBenchError:
            continue
        if found and known.issuperset(found):
            swallowed.append((where, record))
    report.within.clear()
    if swallowed:
        where, record = swallowed[0]
        report.add(Kind.SWALLOWED_ROWS, Severity.GRAVE, len(swallowed), example=", ".join(record.values()), place=where)


def _look_for_names(path: Path, options: Options, report: Report, columns: Sequence[str]) -> None:
    """Say where the labels are numbers and another column names them: each number always with one name."""
    numbers = columns[1]
    others = _text_columns(path, options)
    records = first_records(path, options, SNIFFED, [numbers, *others] if others else ())
    named: list[str] = []
    for other in (name for name in (records[0] if records else ()) if name not in columns):
        names: dict[str, str] = {}
        rows = ((_as_list(record[numbers]), _as_list(record.get(other))) for record in records)
        pairs = [zip(keys, texts, strict=True) for keys, texts in rows if keys and len(keys) == len(texts)]
        consistent = all(
            isinstance(text, str) and not text.strip().isdigit() and names.setdefault(str(key), text) == text
            for pair in pairs
            for key, text in pair
        )
        if pairs and consistent and len(names) > 1 and len(set(names.values())) == len(names):
            named.append(other)
    if named:
        report.add(Kind.NUMBERS_FOR_NAMES, Severity.GRAVE, place=f"{path}, column {numbers!r}", names=named)


def _text_columns(path: Path, options: Options) -> list[str]:
    """The columns of a Parquet file that may hold names; of other tables all columns are read, so none are chosen."""
    if suffix_of(path) != ".parquet":
        return []
    schema = open_parquet(path).schema_arrow
    return [name for name in schema.names if "string" in str(schema.field(name).type) and name != options.labels]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def look_at_separator(rows: Sequence[Row], options: Options, report: Report, source: str) -> None:
    """Say where labels seem to be lists, or to have another separator than the one they were split at."""
    labels = [label for row in rows for label in row.labels]
    lists = [label for label in labels if UNREAD_LIST.match(label)]
    if lists and len(lists) >= NEARLY_ALL * len(labels):
        report.add(Kind.UNREAD_LISTS, Severity.GRAVE, len(lists), len(labels), lists[0], source)
    elif found := suspicion(rows):
        sign, single, with_sign, total, example = found
        severity = Severity.DOUBT if options.given("separator") or sign in RARE else Severity.GRAVE
        names = [sign, SEPARATOR, f"{single / total:.0%}"]
        report.add(Kind.SEPARATOR, severity, with_sign, total, example, source, names)


def suspicion(rows: Sequence[Row]) -> tuple[str, int, int, int, str] | None:
    """The separator that labels seem to have; the rows with one label, with the separator in it, and with any label;
    and an example. None if nothing is suspicious."""
    labels = [row.labels for row in rows if row.labels]
    single = sum(len(set(row)) == 1 for row in labels)
    if not labels or single < NEARLY_ALL * len(labels):
        return None
    different = {label for row in labels for label in row}
    codes = all(map(CODES.match, different))
    signs = [*CANDIDATES, *(sign for sign in RARE if _is_reused(sign, different))]
    counts = {sign: sum(any(_has(sign, label, codes) for label in row) for row in labels) for sign in signs}
    sign = max(counts, key=counts.__getitem__)
    if counts[sign] <= SOME * len(labels):
        return None
    example = next(label for row in labels for label in row if _has(sign, label, codes))
    return sign, single, counts[sign], len(labels), example


def _has(sign: str, label: str, codes: bool) -> bool:
    """Whether a label has the separator in it; in a list stands none, and a blank separates only URIs, or codes where
    all labels are `codes`."""
    return sign in label and (sign != " " or codes or SEVERAL_URIS.match(label) is not None) and not PIECE.match(label)


def _is_reused(sign: str, labels: set[str]) -> bool:
    """Whether at least half of what stands between the signs is part of two labels or more, as tags are. Of a path
    (`books/crime`) the last part is in one label alone."""
    parts = Counter(part for label in labels if sign in label for part in {*label.split(sign)})
    return bool(parts) and 2 * sum(count > 1 for count in parts.values()) >= len(parts)
