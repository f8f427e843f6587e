"""What is suspicious about a dataset, as facts: one place looks at texts and labels, at an import and in `show`.

Whoever reads files adds what only it knows (a guessed encoding, lines that were skipped) to the same `Report`.

N rows, L labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from xmcbench.data.dataset import Dataset
from xmcbench.data.importer import Imported
from xmcbench.data.texts import PackedTexts, repeated, take

LOOKED_AT = 100_000  # texts of rows, at most: every one of them, or evenly spaced ones
EXAMPLE = 80  # characters of an example
PAIRS = 0.5  # share of the rows that repeat a text, from which on each row seems to be a pair of a text and a label
INDICATORS_MEND = (
    "expected one column of labels, which pandas makes: "
    "table['labels'] = [[name for name in NAMES if row[name]] for row in table.to_dict('records')]"
)
UNSEEN = 0.9  # share of the labels of test rows from which on splits seem to write labels differently
LEFT_OUT, KEPT = ("left out",), ("kept",)  # what an import did with repeated texts
MANY = 0.1  # share of the labels from which on a suspicion is a doubt: below it is a note


def _table(signs: bytes) -> np.ndarray:
    """Which bytes are among `signs`, bool [256]."""
    table = np.zeros(256, bool)
    table[np.frombuffer(signs, np.uint8)] = True
    return table


BREAKS, BLANKS, DIGITS = _table(b"\t\r\n"), _table(b" \t\r\n"), _table(b"0123456789")
NUMBERS = _table(b"0123456789.,-+ ")
LOWER, UPPER = _table(b"abcdefghijklmnopqrstuvwxyz"), _table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
OPENING, QUOTES, URI_STARTS = (np.frombuffer(signs, np.uint8) for signs in (b"[({", b"\"'", b"<hHuUfFiI"))
MISSING = frozenset(("nan", "none", "null", "n/a", "na", "<na>", "nat", "#n/a", "\\n"))
URI = re.compile(r"<?(?:[a-zA-Z][a-zA-Z0-9+.-]*://|urn:)\S+$")
# How a list, or a piece of one, begins: ['a', ("a", {'a', [1, {2}, [None
PIECE = re.compile(r"[\[({]\s*['\"]|[\[{]\s*-?\d+\s*[,\s\])}]|[\[({]\s*(?:None|nan|null|np\.)\b|[\[({]{2}")
UNCLOSED = re.compile(r"\[[^\]]*$|\{[^}]*$|\([^)]*$")  # a bracket that is opened alone, as in a list that was split
WHOLE = re.compile(r"0*(\d+)(?:\.0+)?")
REPLACED = "\ufffd".encode()
# UTF-8 that was read as latin-1 or cp1252: a capital A with tilde or circumflex, or a euro sign, before what else was
# the rest of a letter.
TWICE = {
    b"\xc3\x83": re.compile(rb"\xc2[\x80-\xbf]|\xc5[\x92\x93\xa0\xa1\xb8\xbd\xbe]|\xe2[\x80\x82\x84]"),
    b"\xc3\xa2\xe2\x82\xac": re.compile(b""),
}


class Severity(IntEnum):
    """How much a finding matters; grave ones stop an import."""

    NOTE = 1
    DOUBT = 2
    GRAVE = 3


class Kind(StrEnum):
    """What a finding is about. `xmcbench_plugins.datasets.sentences` has a sentence for each."""

    # Of files and fields, from who reads them.
    MISSING_SHARD = "missing shard"
    MISSING_ROWS = "missing rows"  # fewer than the files say
    SWALLOWED_ROWS = "swallowed rows"  # by a quotation mark that opens a field
    QUOTED_FIELDS = "quoted fields"  # in a file that is read without quoting
    SEPARATOR = "separator"
    NUMBERS_FOR_NAMES = "numbers for names"  # another column has the names
    INDICATOR_COLUMNS = "indicator columns"  # of zeros and ones, one for each label
    CODES_FOR_NAMES = "codes for names"  # another column of the vocabulary has the names
    ENCODING = "encoding"
    UNREAD_LISTS = "unread lists"  # fields that are lists of another form than those that are read
    MIXED_FIELDS = "mixed fields"  # some are lists, others are not
    LINES_WITHOUT_TAB = "lines without a tab"
    UNKNOWN_LABELS = "unknown labels"  # pairs whose label the vocabulary lacks
    UNREAD_FILES = "unread files"
    UNREAD_SPLITS = "unread splits"
    OTHER_LANGUAGE = "other language"  # names in another language than the chosen one
    UNTAGGED = "untagged"  # names without a language
    SEVERAL_NAMES = "several names"  # of which one was taken
    UNNAMED = "unnamed"  # concepts that are left out as nothing names them
    DEPRECATED = "deprecated"
    LANGUAGES = "languages"
    HIDDEN_LABELS = "hidden labels"  # the class -1
    LISTS = "lists"  # fields that were parsed as lists
    CLASS_NAMES = "class names"
    DELIMITER = "delimiter"
    # Of the rows.
    ROW_PER_PAIR = "row per pair"
    REPEATED_TEXTS = "repeated texts"
    SHARED_TEXTS = "shared texts"
    UNSEEN_LABELS = "unseen labels"  # of test rows, which no training row has
    WITHOUT_LABEL = "without label"
    EMPTY_TEXTS = "empty texts"
    MISSING_TEXTS = "missing texts"  # "nan", "None"
    LIST_TEXTS = "list texts"
    LINE_BREAKS = "line breaks"
    REPLACED_CHARACTERS = "replaced characters"
    TWICE_ENCODED = "twice encoded"
    LONGEST = "longest"
    # Of both splits together.
    NEAR_DUPLICATES = "near duplicates"  # test rows whose words are nearly those of a training row
    WITHOUT_WORD = "without word"  # test rows without a word of the training rows
    MOST_FREQUENT = "most frequent"  # the label with most training rows
    CEILING = "ceiling"  # of P@5
    SMALLEST_DIFFERENCE = "smallest difference"  # that the test split can show
    # Of the label texts.
    LIST_PIECES = "list pieces"
    SAME_LABEL = "same label"
    NEARLY_SAME_LABEL = "nearly same label"
    NUMBER_LABELS = "number labels"
    CODE_LABELS = "code labels"
    URI_LABELS = "URI labels"
    BRACKET_LABELS = "bracket labels"
    QUOTED_LABELS = "quoted labels"
    MISSING_LABELS = "missing labels"  # "nan", "None"
    USED_ONCE = "used once"
    NEVER_USED = "never used"


OF_CONTENT = frozenset(list(Kind)[list(Kind).index(Kind.ROW_PER_PAIR) :])  # seen in texts and labels themselves


class Finding(BaseModel):
    """One fact: `count` of `total` things, an example with its place, and names, such as those of files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    severity: Severity
    count: int = 0
    total: int = 0
    example: str = ""
    place: str = ""
    names: tuple[str, ...] = ()


@dataclass
class Report:
    """Findings, in the order in which they were made.

    `within` has the lines within fields of a CSV file that could be rows, each with its place; who reads the labels can
    tell whether they are.
    """

    findings: list[Finding] = field(default_factory=list)
    within: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    one_label_a_row: bool = False  # no field of labels holds several
    of_import: bool = False  # whether a file is being imported, and options can mend what is found

    @property
    def names_by_language(self) -> bool:
        """Whether label texts were chosen by their language."""
        return any(finding.kind is Kind.LANGUAGES for finding in self.findings)

    def add(
        self,
        kind: Kind,
        severity: Severity,
        count: int = 0,
        total: int = 0,
        example: str = "",
        place: str = "",
        names: Sequence[str] = (),
    ) -> None:
        """Add a finding, unless it is there; its example is cut to `EXAMPLE` characters."""
        shown = example if len(example) <= EXAMPLE else f"{example[:EXAMPLE]}..."
        finding = Finding(
            kind=kind, severity=severity, count=count, total=total, example=shown, place=place, names=tuple(names)
        )
        if finding not in self.findings:
            self.findings.append(finding)

    def worst_first(self) -> list[Finding]:
        """The findings, grave ones first, in the order of their kinds within a severity."""
        order = {kind: place for place, kind in enumerate(Kind)}
        return sorted(self.findings, key=lambda finding: (-finding.severity, order[finding.kind]))

    def stored(self) -> list[dict[str, Any]]:
        """The findings that texts and labels do not show, as JSON holds them."""
        kept = [finding for finding in self.findings if finding.kind not in OF_CONTENT or finding.names == LEFT_OUT]
        return [finding.model_dump(mode="json", exclude_defaults=True) for finding in kept]

    def restore(self, stored: Iterable[Any]) -> None:
        """Add findings that were stored. Raises ValueError for what is none."""
        self.findings += [Finding.model_validate(each) for each in stored]

    @property
    def grave(self) -> list[Finding]:
        return [finding for finding in self.worst_first() if finding.severity is Severity.GRAVE]


@dataclass(frozen=True)
class Content:
    """What is looked at: `texts` of up to `LOOKED_AT` of the rows, label texts, and how often labels occur.

    `alike` tells whether both splits surely write the same label alike.
    """

    texts: PackedTexts
    longest: str  # of all rows
    label_texts: PackedTexts
    counts_SL: np.ndarray  # rows of each label in the training and in the test split
    sizes: Imported
    alike: bool = True

    @classmethod
    def of(
        cls,
        splits: Sequence[Sequence[str]],
        label_texts: Sequence[str],
        counts_SL: np.ndarray,
        sizes: Imported,
        alike: bool = True,
    ) -> Content:
        """The content of the rows of several splits."""
        step = max(1, -(-sum(map(len, splits)) // LOOKED_AT))
        chosen = [take(split, np.arange(0, len(split), step)) for split in splits]
        longest = max((_longest(split) for split in splits), key=len, default="")
        texts = _packed(text for part in chosen for text in part)
        return cls(texts, longest, _packed(label_texts), counts_SL, sizes, alike)


def _packed(texts: Iterable[str]) -> PackedTexts:
    """The texts, with `?` for half a surrogate pair, which is an error where a dataset is written."""
    if isinstance(texts, PackedTexts):
        return texts
    return PackedTexts.of_encoded(text.encode("utf-8", "replace") for text in texts)


def _longest(texts: Sequence[str]) -> str:
    if isinstance(texts, PackedTexts):
        return texts[int(np.argmax(texts.lengths))] if len(texts) else ""
    return max(texts, key=len, default="")


def inspect_dataset(dataset: Dataset, report: Report) -> None:
    """Add to `report` what the rows and label texts of a dataset show."""
    splits = (dataset.train, dataset.test)
    train, test, labels = (PackedTexts.of(texts) for texts in (*(split.texts for split in splits), dataset.label_texts))
    counts = [np.bincount(split.targets.indices, minlength=len(labels)) for split in splits]
    train_hashes, test_hashes = train.hashes(), test.hashes()
    different = np.unique(train_hashes)
    without = [int((np.diff(split.targets.indptr) == 0).sum()) for split in splits]
    empty = [int((texts.lengths == 0).sum()) for texts in (train, test, labels)]
    sizes = Imported(
        train=len(train),
        test=len(test),
        labels=len(labels),
        repeated=len(train) - len(different) + len(test) - len(np.unique(test_hashes)),
        shared=int(np.isin(test_hashes, different).sum()),
        unlabelled_train=without[0],
        unlabelled_test=without[1],
        empty_rows=empty[0] + empty[1],
        empty_labels=empty[2],
    )
    inspect(Content.of([train, test], labels, np.stack(counts), sizes), report)


def inspect(content: Content, report: Report) -> None:
    """Add to `report` what texts and label texts show."""
    _inspect_rows(content.sizes, report)
    _inspect_unseen(content, report)
    _inspect_texts(content, report)
    _inspect_repeated_labels(content.label_texts, report)
    _inspect_label_forms(content.label_texts, report)
    texts, total = content.label_texts, len(content.label_texts)
    counts_L = content.counts_SL.sum(axis=0)
    for kind, which in ((Kind.USED_ONCE, counts_L == 1), (Kind.NEVER_USED, counts_L == 0)):
        if len(found := np.flatnonzero(which)):
            report.add(kind, Severity.NOTE, len(found), total, texts[int(found[0])])


def _inspect_rows(sizes: Imported, report: Report) -> None:
    rows, severity = sizes.train + sizes.test, Severity.NOTE if sizes.removed else Severity.DOUBT
    done = LEFT_OUT if sizes.removed else KEPT if report.of_import else ()
    if sizes.repeated:
        pairs = report.one_label_a_row and not sizes.removed and sizes.repeated >= PAIRS * rows
        kind, worst = (Kind.ROW_PER_PAIR, Severity.GRAVE) if pairs else (Kind.REPEATED_TEXTS, severity)
        report.add(kind, worst, sizes.repeated, rows, names=done)
    if sizes.shared:
        report.add(Kind.SHARED_TEXTS, severity, sizes.shared, sizes.test, names=done)
    if without := sizes.unlabelled_train + sizes.unlabelled_test:
        names = (f"{sizes.unlabelled_train:,}", f"{sizes.unlabelled_test:,}")
        report.add(Kind.WITHOUT_LABEL, Severity.DOUBT, without, rows, names=names)
    if empty := sizes.empty_rows + sizes.empty_labels:
        names = (f"{sizes.empty_rows:,}", f"{sizes.empty_labels:,}")
        report.add(Kind.EMPTY_TEXTS, Severity.DOUBT, empty, rows, names=names)


def _inspect_unseen(content: Content, report: Report) -> None:
    """Labels of test rows that no training row has: nearly all of them where the splits write labels differently."""
    train_L, test_L = content.counts_SL
    unseen = np.flatnonzero((test_L > 0) & (train_L == 0))
    if not len(unseen):
        return
    count, total = int(test_L[unseen].sum()), int(test_L.sum())
    severity = Severity.DOUBT if count >= MANY * total else Severity.NOTE
    if report.of_import and not content.alike and count >= UNSEEN * total:
        severity = Severity.GRAVE
    report.add(Kind.UNSEEN_LABELS, severity, count, total, content.label_texts[int(unseen[0])])


def _inspect_texts(content: Content, report: Report) -> None:
    texts, total = content.texts, len(content.texts)
    report.add(Kind.LONGEST, Severity.NOTE, len(content.longest.split()), len(content.longest), content.longest)
    data = np.asarray(texts.data)
    if len(broken := _texts_at(texts, np.flatnonzero(BREAKS[data]))):
        report.add(Kind.LINE_BREAKS, Severity.NOTE, len(broken), total, texts[int(broken[0])])
    short = np.flatnonzero((texts.lengths > 1) & (texts.lengths <= 4))
    if missing := [int(row) for row in short if texts[int(row)].lower() in MISSING]:
        report.add(Kind.MISSING_TEXTS, Severity.DOUBT, len(missing), total, texts[missing[0]])
    starts = texts.offsets[:-1][texts.lengths > 0]
    bracketed = _texts_at(texts, starts[np.isin(data[starts], OPENING)])
    if 2 * len(bracketed) > total:
        lists = [int(row) for row in bracketed if PIECE.match(texts[int(row)])]
        if 2 * len(lists) > total:
            report.add(Kind.LIST_TEXTS, Severity.DOUBT, len(lists), total, texts[lists[0]])
    signs = data.tobytes()
    twice = [
        place
        for start, rest in TWICE.items()
        for place in _occurrences(signs, start)
        if rest.match(signs, place + len(start))
    ]
    for kind, places in ((Kind.REPLACED_CHARACTERS, list(_occurrences(signs, REPLACED))), (Kind.TWICE_ENCODED, twice)):
        if places:
            found = _texts_at(texts, np.array(places))
            start = max(int(texts.offsets[found[0]]), min(places) - EXAMPLE // 2)
            example = signs[start : start + EXAMPLE].decode("utf-8", "ignore")
            report.add(kind, Severity.DOUBT, len(found), total, example)


def _occurrences(content: bytes, sign: bytes) -> Iterator[int]:
    place = content.find(sign)
    while place >= 0:
        yield place
        place = content.find(sign, place + 1)


def _texts_at(texts: PackedTexts, positions: np.ndarray) -> np.ndarray:
    """The numbers of the texts that hold the bytes at `positions`, ascending, each once."""
    return np.unique(np.searchsorted(texts.offsets, positions, side="right") - 1)


def _inspect_repeated_labels(texts: PackedTexts, report: Report) -> None:
    """Labels whose text another one has, and labels that differ from another one in case, blanks or accents' form."""
    same = repeated(texts)
    if len(found := np.flatnonzero(same)):
        report.add(Kind.SAME_LABEL, Severity.DOUBT, len(found), len(texts), texts[int(found[0])])
    folded = PackedTexts.of(map(_folded, texts))
    nearly = repeated(folded) & ~same
    if len(found := np.flatnonzero(nearly)):
        alike = [int(label) for label in found if folded[int(label)] == folded[int(found[0])]]
        report.add(
            Kind.NEARLY_SAME_LABEL, Severity.DOUBT, len(found), len(texts), names=[texts[label] for label in alike[:2]]
        )


def _folded(text: str) -> str:
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if number := WHOLE.fullmatch(plain.strip()):
        return number[1]  # 007, 7 and 7.0
    return " ".join(plain.casefold().split())


def _inspect_label_forms(texts: PackedTexts, report: Report) -> None:
    for kind, which in _label_forms(texts):
        if len(found := np.flatnonzero(which)):
            severity = Severity.DOUBT if len(found) >= MANY * len(texts) else Severity.NOTE
            severity = Severity.GRAVE if kind is Kind.LIST_PIECES else severity
            report.add(kind, severity, len(found), len(texts), texts[int(found[0])])


def _label_forms(texts: PackedTexts) -> Iterator[tuple[Kind, np.ndarray]]:
    """Which label texts look like something else than a name, by kind, each a bool [L]."""
    data, offsets, lengths = np.asarray(texts.data), texts.offsets, texts.lengths

    def count(table: np.ndarray) -> np.ndarray:
        return np.diff(np.searchsorted(np.flatnonzero(table[data]), offsets))

    def matching(among: np.ndarray, pattern: re.Pattern[str]) -> np.ndarray:
        found = np.zeros(len(texts), bool)
        found[[int(label) for label in np.flatnonzero(among) if pattern.match(texts[int(label)])]] = True
        return found

    first = np.zeros(len(texts), np.uint8)
    first[lengths > 0] = data[offsets[:-1][lengths > 0]]
    brackets = np.isin(first, OPENING)
    pieces, unclosed = matching(brackets, PIECE), matching(brackets, UNCLOSED)
    if unclosed.sum() >= MANY * len(texts):
        pieces |= unclosed
    quoted = np.isin(first, QUOTES) & (lengths > 1)
    uris = matching(np.isin(first, URI_STARTS), URI)
    digits, lower, upper = count(DIGITS), count(LOWER), count(UPPER)
    numbers = (digits > 0) & (count(NUMBERS) == lengths)
    few_letters = (lower == 0) | (lower + upper <= np.minimum(4, digits))
    codes = (digits > 0) & few_letters & (lower + upper > 0) & (count(BLANKS) == 0) & ~(uris | brackets | quoted)
    missing = np.zeros(len(texts), bool)
    short = np.flatnonzero((lengths > 1) & (lengths <= 4))
    missing[[int(label) for label in short if texts[int(label)].lower() in MISSING]] = True
    yield Kind.LIST_PIECES, pieces
    yield Kind.BRACKET_LABELS, brackets & ~pieces
    yield Kind.QUOTED_LABELS, quoted
    yield Kind.URI_LABELS, uris
    yield Kind.NUMBER_LABELS, numbers
    yield Kind.CODE_LABELS, codes
    yield Kind.MISSING_LABELS, missing
