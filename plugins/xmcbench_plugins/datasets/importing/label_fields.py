"""The labels in a field of a table: a list, separated text, or text in which a program wrote a list.

Programs write lists as JSON, as Python's lists, tuples and sets, and as numpy's arrays, which separate by blanks.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from xmcbench.errors import XMCBenchError, shown
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.inspection import INDICATORS_MEND, Kind, Report, Severity

SNIFFED = 1000  # rows that tell how labels are written
MOSTLY = 0.9  # share of the filled fields that are written lists where a column holds lists
# What a program writes around a list: array([...], dtype=object), dict_keys([...]), frozenset({...}), c("a", "b") of R
_WRAPPED = re.compile(r"(?:\w+\.)*\w+\(\s*([\[({].*?[\])}]|)(?:,\s*(?:dtype|name)\s*=[^()]*)?\)$", re.DOTALL)
_OF_R = re.compile(r"c(\(.*\))$", re.DOTALL)
_TAGS = re.compile(r"(?:<[^<>\s]+>)+$")  # <python><pandas>, of Stack Exchange's dumps
_PAIRS = {"[": "]", "(": ")", "{": "}"}
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PLAIN = r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|True|False|None|true|false|null|nan"
_ITEM = re.compile(rf"(?P<typed>np\.\w+\()?[uUbBrR]?(?P<item>{_QUOTED}|{_PLAIN})(?(typed)\))", re.DOTALL)
_BETWEEN = re.compile(r"\s*,\s*|\s+|$")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None, "nan": None}


def parse_list(text: str) -> list[Any] | None:
    """The items of a list that is written in `text`; None if it is something else.

    >>> parse_list("['glass', \\"it's\\"]"), parse_list('["a", 2]'), parse_list("{'a'}"), parse_list("('a',)")
    (['glass', "it's"], ['a', 2], ['a'], ['a'])
    >>> parse_list("['glass' 'print']"), parse_list("array(['a', 'b'], dtype=object)"), parse_list("[np.str_('a')]")
    (['glass', 'print'], ['a', 'b'], ['a'])
    >>> parse_list("dict_keys([b'a'])"), parse_list('c("a", "b")'), parse_list("<a><b>")
    (['a'], ['a', 'b'], ['a', 'b'])
    >>> parse_list("[electronic resource]"), parse_list("{'a': 1}"), parse_list("[[1]]"), parse_list("glass")
    (None, None, None, None)

    Raises ValueError for a list that a program cut short.
    """
    text = text.strip()
    if _TAGS.match(text):
        return text[1:-1].split("><")
    if wrapped := _WRAPPED.match(text) or _OF_R.match(text):
        return parse_list(wrapped[1]) if wrapped[1].strip() else []
    if len(text) < 2 or _PAIRS.get(text[0]) != text[-1]:
        return None
    inner, place = text[1:-1].strip(), 0
    items: list[Any] = []
    while place < len(inner):
        if inner.startswith("...", place) and items:
            raise ValueError(f"a list that a program cut short, {shown(text)}")
        found = _ITEM.match(inner, place)
        between = _BETWEEN.match(inner, found.end()) if found else None
        if found is None or between is None:
            return None
        try:
            items.append(_value(found["item"]))
        except (ValueError, SyntaxError):
            return None
        place = between.end()
    return items


def _value(item: str) -> Any:
    if item in _WORDS:
        return _WORDS[item]
    if item[0] == '"':
        try:
            return json.loads(item)
        except ValueError:
            return ast.literal_eval(item)
    if item[0] == "'":
        return ast.literal_eval(item)
    return float(item) if re.search(r"[.eE]", item) else int(item)


def is_indicator(field: Any) -> bool:
    """Whether a field is a zero or a one, as of a column that stands for one label.

    >>> [is_indicator(field) for field in (0, 1.0, True, "1", " 0.0", "false", 2, "", None, [1], "yes")]
    [True, True, True, True, True, True, False, False, False, False, False]
    """
    if isinstance(field, str):
        return field.strip().lower() in ("0", "1", "0.0", "1.0", "true", "false")
    return isinstance(field, int | float) and field in (0, 1)


class LabelColumn:
    """How the labels of a column are written, as its first fields tell; reads the labels of each field."""

    def __init__(self, name: str, fields: Sequence[Any], options: Options, report: Report, first: str) -> None:
        """`fields` are those of up to `SNIFFED` rows; `first` is the place of the first row."""
        self._name, self._options = name, options
        self._separator = ""  # taken from the options where a field is separated text
        where = f"{first}, column {name!r}"
        self.lists = self._written = False
        texts = [field for field in fields if isinstance(field, str) and field.strip()]
        written = [items for field in texts if (items := _parsed(field, where)) is not None]
        if written and not options.given("separator"):
            self._written = len(written) >= MOSTLY * len(texts)
            if not self._written and any(items and isinstance(items[0], str) for items in written):
                example = next(field for field in texts if _parsed(field, where) is not None)
                report.add(Kind.MIXED_FIELDS, Severity.GRAVE, len(written), len(texts), example, where)
        self.lists = self._written or any(isinstance(field, list) for field in fields)
        vectors = written if self._written else [field for field in fields if isinstance(field, list)]
        self._multi_hot = _are_vectors(vectors)
        if self._written:
            report.add(Kind.LISTS, Severity.NOTE, len(written), len(texts), texts[0], where)

    def read(self, field: Any, row: str) -> list[str]:
        """The labels in a field. Raises XMCBenchError, which names the `row` and the column, for what holds none."""
        if field is None:
            return []
        if isinstance(field, str):
            if not self._written:
                self._separator = self._separator or self._options.separator
                return [label for part in field.split(self._separator) if (label := part.strip())]
            if not field.strip():
                return []
            where = self._where(row)
            if (items := _parsed(field, where)) is None:
                raise XMCBenchError(f"{where}: found {shown(field)}, expected a list, as in the rows before")
            field = items
        elif isinstance(field, int) and not isinstance(field, bool):
            field = [field]
        if isinstance(field, bool):
            raise XMCBenchError(f"{self._where(row)}: found {field}, expected labels: {INDICATORS_MEND}")
        if not isinstance(field, list):
            raise XMCBenchError(f"{self._where(row)}: found {shown(field)}, expected text or a list of labels")
        if self._multi_hot:
            return self._places(field, self._where(row))
        if not all(isinstance(part, str) for part in field):
            field = [as_key(part, self._where(row)) for part in field]
        return [label for part in field if (label := part.strip())]

    def _where(self, row: str) -> str:
        return f"{row}, column {self._name!r}"

    def _places(self, vector: list[Any], where: str) -> list[str]:
        if not self._options.given("label_texts"):
            raise XMCBenchError(
                f"{where}: found a vector of {len(vector)} zeros and ones, expected a list of labels, or the text of "
                "each place with --label-texts (a .txt file, one a line)"
            )
        return [str(place) for place, value in enumerate(vector) if value]


def _parsed(field: str, where: str) -> list[Any] | None:
    try:
        return parse_list(field)
    except ValueError as error:
        raise XMCBenchError(f"{where}: found {error}, expected all of it") from error


def _are_vectors(lists: Sequence[list[Any]]) -> bool:
    """Whether lists are vectors with a zero or a one for each label: of one length, with a value that repeats."""
    if not lists or len(lists[0]) < 2 or any(len(items) != len(lists[0]) for items in lists):
        return False
    numbers = all(isinstance(value, int | float) and value in (0, 1) for items in lists for value in items)
    return numbers and any(len(set(items)) < len(items) for items in lists)


def as_text(value: Any, where: str) -> str:
    """`value` if it is text. Raises XMCBenchError, which begins with `where`."""
    if not isinstance(value, str):
        raise XMCBenchError(f"{where}: found {shown(value)}, expected text")
    return value


def as_key(value: Any, where: str) -> str:
    """`value` as a key: text, or a whole number. Raises XMCBenchError, which begins with `where`."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise XMCBenchError(f"{where}: found {shown(value)}, expected text or a whole number")
    return str(value)
