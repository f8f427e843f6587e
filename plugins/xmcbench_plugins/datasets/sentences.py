"""What is suspicious about a dataset, as sentences: after an import, on its datasheet and in `datasets show`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xmcbench.reporting.text_table import escape_markdown
from xmcbench_plugins.datasets.inspection import INDICATORS_MEND, Finding, Kind, Report, Severity

WORDS = {Severity.GRAVE: "grave", Severity.DOUBT: "doubtful", Severity.NOTE: "note"}
NAMED = 5  # names in a sentence
NAME_LABELS = "--label-texts gives labels their names"

# A sentence for each kind, and what to do about it; a remedy may be empty.
Sentence = Callable[[Finding], str]
SENTENCES: dict[Kind, tuple[Sentence, Sentence]] = {}


def _sentence(kind: Kind, sentence: Sentence, remedy: str | Sentence = "") -> None:
    SENTENCES[kind] = sentence, remedy if callable(remedy) else (lambda _: remedy)


def report_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding, in the order that is given: how much it matters, what it is, what to do about it."""
    for finding in findings:
        yield f"{WORDS[finding.severity]}: {finding_text(finding)}"


def finding_text(finding: Finding) -> str:
    """A finding as a sentence, with its place before it and the remedy after it."""
    sentence, remedy = SENTENCES[finding.kind]
    place = f"{finding.place}: " if finding.place else ""
    advice = remedy(finding)
    return f"{place}{sentence(finding)}{f': {advice}' if advice else ''}"


def why_stopped(report: Report) -> str:
    """The grave findings of a report, in one line: why an import stopped, and how to go on."""
    first, *others = report.grave
    more = f" (and {len(others)} more above)" if others else ""
    return f"{finding_text(first)}{more}; nothing was written, --yes imports it all the same"


def datasheet(name: str, facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The datasheet of an imported dataset in Markdown: how it was made, and what was found on the way."""
    rows = [f"| {key} | {_one_line(value)} |" for key, value in facts.items()]
    lines = [f"- {_one_line(line)}" for line in report_lines(findings)]
    return "\n".join(
        [
            f"# {_one_line(name)}",
            "",
            "| fact | value |",
            "| --- | --- |",
            *rows,
            "",
            "## Found at the import",
            "",
            *lines,
            "",
        ]
    )


def _one_line(value: Any) -> str:
    """A value on one line of a Markdown document."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape_markdown(" ".join(text.split()))


def _example(finding: Finding) -> str:
    return f", such as {finding.example!r}" if finding.example else ""


def _share(finding: Finding, things: str) -> str:
    return f"{finding.count:,} of {finding.total:,} {things}"


def _names(finding: Finding) -> str:
    more = f" and {finding.count - NAMED:,} more" if finding.count > NAMED else ""
    return ", ".join(finding.names[:NAMED]) + more


def _done(finding: Finding) -> str:
    """What an import did with the rows; nothing where none was made."""
    return f": {finding.names[0]}" if finding.names else ""


def _labels(finding: Finding, are: str) -> str:
    return f"{_share(finding, 'labels')} {are}{_example(finding)}"


_sentence(
    Kind.MISSING_SHARD,
    lambda f: f"{f.count:,} of {f.total:,} files of the split are missing: {_names(f)}",
    "expected all of them, as their names count them",
)
_sentence(
    Kind.MISSING_ROWS,
    lambda f: (
        f"the {f.names[0]} split has {f.count:,} rows, and its description says {f.total:,}"
        if f.total
        else f"the {f.names[0]} split is part of a larger one (a folder `partial-`)"
    ),
    lambda f: "expected as many" if f.total else "expected the whole split",
)
_sentence(
    Kind.SWALLOWED_ROWS,
    lambda f: f"a quotation mark opens a field that holds {f.count:,} further rows, such as {f.example!r}",
    "--quoting none reads quotation marks as text",
)
_sentence(
    Kind.QUOTED_FIELDS,
    lambda f: f"{f.count:,} fields are enclosed in quotation marks{_example(f)}, which are read as text",
    "--quoting double reads what they enclose, --quoting none keeps them",
)
_sentence(
    Kind.SEPARATOR,
    lambda f: (
        f"{f.names[2]} of the rows have one label, and {f.count / f.total:.0%} have a label with {f.names[0]!r} in it"
        f"{_example(f)}"
    ),
    lambda f: f"expected --separator {f.names[0]!r}, or --separator {f.names[1]!r} if that is one label",
)
_sentence(
    Kind.LIST_PIECES,
    lambda f: _labels(f, "begin as a list does"),
    "without --separator lists of texts and of numbers are read as lists, other lists have to be converted",
)
_sentence(
    Kind.NUMBERS_FOR_NAMES,
    lambda f: f"the labels are numbers, which the column {' or '.join(map(repr, f.names))} names",
    lambda f: f"--labels {f.names[0]} takes the names",
)
_sentence(
    Kind.INDICATOR_COLUMNS,
    lambda f: (
        f"{f.count:,} columns hold zeros and ones, such as {f.names[0]!r} and {f.names[1]!r}: it seems, one for each "
        "label"
    ),
    INDICATORS_MEND,
)
_sentence(
    Kind.CODES_FOR_NAMES,
    lambda f: f"the label texts are codes{_example(f)}, and names such as {f.names[0]!r} are beside them",
    "expected key, name and code in this order",
)
_sentence(
    Kind.ROW_PER_PAIR,
    lambda f: (
        f"{_share(f, 'rows')} repeat a text, and no row has two labels: each row seems to be one of a text's labels"
    ),
    "--group-by COLUMN makes one row of those with the same value, such as the text",
)
_sentence(
    Kind.ENCODING,
    lambda f: f"read as {f.names[0]}, which was guessed, as in {f.example!r}",
    "--encoding says otherwise",
)
_sentence(
    Kind.UNREAD_LISTS,
    lambda f: f"{_share(f, 'labels')} seem to be lists{_example(f)}",
    "expected lists of texts within quotation marks, as json.dumps writes them, or labels with a separator between "
    "them",
)
_sentence(
    Kind.MIXED_FIELDS,
    lambda f: (
        f"{f.count:,} of the first {f.total:,} fields of labels are written lists{_example(f)}, the others are not"
    ),
    "expected lists alone, or none; --separator ';' reads all as text",
)
_sentence(
    Kind.LINES_WITHOUT_TAB,
    lambda f: f"{_share(f, 'lines')} have no tab and were skipped{_example(f)}",
    "--strict refuses them",
)
_sentence(
    Kind.UNKNOWN_LABELS,
    lambda f: f"{_share(f, 'pairs')} have a label that the vocabulary lacks and were skipped{_example(f)}",
    "--strict refuses them",
)
_sentence(Kind.UNREAD_FILES, lambda f: f"{f.count:,} files were not read: {_names(f)}")
_sentence(
    Kind.UNREAD_SPLITS,
    lambda f: f"these splits were not read: {', '.join(f.names)}",
)
_sentence(
    Kind.OTHER_LANGUAGE,
    lambda f: f"{_share(f, 'labels')} have no name in {f.names[0]!r} and got one in another language{_example(f)}",
    "--language chooses another one",
)
_sentence(
    Kind.UNTAGGED,
    lambda f: f"{_share(f, 'labels')} have no name in {f.names[0]!r} and got one without a language{_example(f)}",
)
_sentence(
    Kind.SEVERAL_NAMES,
    lambda f: f"{_share(f, 'labels')} have several names in their language, of which the first was taken{_example(f)}",
)
_sentence(Kind.UNNAMED, lambda f: f"{_share(f, 'concepts')} have no name and were left out")
_sentence(Kind.DEPRECATED, lambda f: f"{_share(f, 'concepts')} are deprecated and were left out")
_sentence(
    Kind.LANGUAGES,
    lambda f: (
        f"names are in {', '.join(f.names[1 : NAMED + 1])}{', ...' * (len(f.names) > NAMED + 1)}; those in "
        f"{f.names[0]!r} were chosen"
    ),
)
_sentence(
    Kind.HIDDEN_LABELS,
    lambda f: f"{_share(f, f'rows of the {f.names[0]} split')} have the class -1, which is no label",
)
_sentence(Kind.LISTS, lambda f: f"fields of labels were read as written lists, such as {f.example!r}")
_sentence(Kind.CLASS_NAMES, lambda f: f"{f.count:,} label texts are the class names of the files{_example(f)}")
_sentence(Kind.DELIMITER, lambda f: f"read with the delimiter {f.example!r}, which was detected")
_sentence(
    Kind.REPEATED_TEXTS,
    lambda f: f"{f.count:,} rows repeat a text of their split{_done(f)}",
    lambda f: "--deduplicate joins their labels" if f.names == ("kept",) else "",
)
_sentence(
    Kind.SHARED_TEXTS,
    lambda f: f"{f.count:,} test rows have a text of the training split{_done(f)}",
    lambda f: "--deduplicate leaves them out" if f.names == ("kept",) else "",
)
_sentence(
    Kind.UNSEEN_LABELS,
    lambda f: f"{_share(f, 'labels of test rows')} are labels of no training row{_example(f)}",
    lambda f: (
        "expected them written alike in both splits"
        if f.severity is Severity.GRAVE
        else "only a method that reads label texts can predict them"
    ),
)
_sentence(
    Kind.WITHOUT_LABEL,
    lambda f: (
        f"{f.names[0]} training rows and {f.names[1]} test rows have no label: the former train nothing, the latter "
        "count as misses"
    ),
)
_sentence(Kind.EMPTY_TEXTS, lambda f: f"{f.names[0]} rows and {f.names[1]} labels have an empty text: kept")
_sentence(Kind.MISSING_TEXTS, lambda f: f"{_share(f, 'texts')} look like a missing value{_example(f)}")
_sentence(Kind.LIST_TEXTS, lambda f: f"{_share(f, 'texts')} begin as a list does{_example(f)}")
_sentence(Kind.LINE_BREAKS, lambda f: f"{_share(f, 'texts')} hold a tab or a line break{_example(f)}")
_sentence(
    Kind.REPLACED_CHARACTERS,
    lambda f: f"{_share(f, 'texts')} hold the sign for a character that was lost (U+FFFD){_example(f)}",
    "expected the file before it was converted",
)
_sentence(
    Kind.TWICE_ENCODED,
    lambda f: f"{_share(f, 'texts')} seem to be UTF-8 that was read as another encoding{_example(f)}",
    "--encoding utf-8, or the file before it was converted",
)
_sentence(Kind.LONGEST, lambda f: f"the longest text has {f.count:,} words and {f.total:,} characters: {f.example!r}")
_sentence(
    Kind.NEAR_DUPLICATES,
    lambda f: (
        f"{_share(f, 'test rows')} have nearly the words of a training row (cosine over 0.8){_example(f)}: methods "
        "that look up neighbours score higher on them than on new texts"
    ),
    "`xmcbench analyse RUN` has scores with and without them; a split by time, source or group keeps them together",
)
_sentence(
    Kind.WITHOUT_WORD,
    lambda f: f"{_share(f, 'test rows')} have no word that a training row has{_example(f)}",
    "methods that compare words answer them alike; an encoder, or `characters: [3, 5]`, may read them",
)
_sentence(
    Kind.MOST_FREQUENT,
    lambda f: f"the most frequent label, {f.example!r}, is right for {f.count / f.total:.0%} of the training rows",
    lambda f: (
        "compare with `popular`, and read PSP@k and metrics of rare labels beside P@1"
        if f.severity is Severity.DOUBT
        else ""
    ),
)
_sentence(
    Kind.CEILING,
    lambda f: f"test rows have {f.names[0]} labels on average and at most {f.count:,}: P@5 cannot exceed {f.names[1]}",
    "read R@k or nDCG@k",
)
_sentence(
    Kind.SMALLEST_DIFFERENCE,
    lambda f: (
        f"{f.total:,} test rows show differences in P@1 from about {f.names[0]} points on (80 % power, methods that "
        "differ on three rows of ten)"
    ),
    lambda f: "a larger test split shows smaller ones" if f.severity is Severity.DOUBT else "",
)
_sentence(
    Kind.SAME_LABEL,
    lambda f: (
        f"{_share(f, 'labels')} share their text with another one{_example(f)}: a method that reads label texts cannot "
        "tell them apart"
    ),
    "give each a text of its own, or join them before the import",
)
_sentence(
    Kind.NEARLY_SAME_LABEL,
    lambda f: (
        f"{_share(f, 'labels')} differ from another one in case, blanks, form of accents or of a number alone, such "
        f"as {' and '.join(map(repr, f.names))}"
    ),
    "where they mean the same, join them before the import",
)
_sentence(Kind.NUMBER_LABELS, lambda f: _labels(f, "are numbers"), NAME_LABELS)
_sentence(Kind.CODE_LABELS, lambda f: _labels(f, "look like codes"), NAME_LABELS)
_sentence(Kind.URI_LABELS, lambda f: _labels(f, "are URIs"), NAME_LABELS)
_sentence(Kind.BRACKET_LABELS, lambda f: _labels(f, "begin with a bracket"))
_sentence(Kind.QUOTED_LABELS, lambda f: _labels(f, "begin with a quotation mark"))
_sentence(Kind.MISSING_LABELS, lambda f: _labels(f, "look like a missing value"))
_sentence(Kind.USED_ONCE, lambda f: _labels(f, "are used once"))
_sentence(Kind.NEVER_USED, lambda f: _labels(f, "are never used"))
