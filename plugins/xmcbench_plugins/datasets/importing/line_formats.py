"""Text files with a row a line that other programs train on: PECOS, fastText and LibMultiLabel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xmcbench.data.importer import Row
from xmcbench.errors import XMCBenchError, shown
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import lines_of, tab_separated
from xmcbench_plugins.datasets.inspection import Report

FASTTEXT_LABEL = "__label__"


def read_pecos(path: Path, options: Options, report: Report) -> Iterator[Row]:
    """A PECOS text file: label numbers separated by commas, a tab, and the text."""
    for where, (labels, text) in tab_separated(path, options, report):
        if text is None:
            raise XMCBenchError(f"{where}: found no tab, expected numbers with commas, a tab, a text")
        keys = [label for label in labels.split(",") if label]
        if wrong := [key for key in keys if not (key.isascii() and key.isdigit())]:
            raise XMCBenchError(
                f"{where}: found the label {shown(wrong[0])}, expected numbers with commas, a tab, a text"
            )
        yield Row(text, keys, where)


def read_fasttext(path: Path, options: Options, report: Report) -> Iterator[Row]:
    """A fastText file: words that begin with `__label__` are labels, the others are the text."""
    rows = labelled = 0
    for where, line in lines_of(path, options, report):
        words = line.split()
        labels = [word.removeprefix(FASTTEXT_LABEL) for word in words if word.startswith(FASTTEXT_LABEL)]
        if wrong := [label for label in labels if not label or label[-1] in ",;|"]:
            raise XMCBenchError(
                f"{where}: found {shown(FASTTEXT_LABEL + wrong[0])}, expected labels and text with blanks between them"
            )
        rows, labelled = rows + 1, labelled + bool(labels)
        yield Row(" ".join(word for word in words if not word.startswith(FASTTEXT_LABEL)).strip(), labels, where)
    if rows and not labelled:
        raise XMCBenchError(f"{path}: found no label, expected words that begin with {FASTTEXT_LABEL}")


def read_libmultilabel(path: Path, options: Options, report: Report) -> Iterator[Row]:
    """A LibMultiLabel text file: an identifier if there is one, labels with blanks between them, the text, by tabs."""
    widths: set[int] = set()
    for where, line in lines_of(path, options, report):
        fields = line.split("\t")
        widths.add(len(fields))
        if not 2 <= len(fields) <= 3 or len(widths) > 1:
            raise XMCBenchError(
                f"{where}: found {len(fields)} fields, expected labels, a tab, a text, or an identifier before them, "
                "in every line alike"
            )
        yield Row(fields[-1], fields[-2].split(), where)
