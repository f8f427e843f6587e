"""Results that papers print, and users' own in the same form: YAML files read into flat rows.

A file holds the tables of one paper. A fact at the top of the file holds for all tables, a fact in a table for all its
rows; the innermost fact wins. The documentation prints the descriptions of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from xmcbench.errors import XMCBenchError
from xmcbench.files.yaml_lines import KeyPath, Problems, YamlDocument, read_checked
from xmcbench.reporting.paper_rows import COSTS, Key, Metric, PublishedRow, RowFacts

Figure = Annotated[Decimal, Field(ge=0, le=100)]


class TableRow(RowFacts):
    """A row as it stands in a file."""

    figures: list[Figure | None] = Field(
        [], description="a value for each of `metrics`, as printed; null where there is none"
    )
    intervals: list[Figure | None] = Field([], description="half widths of 95 % confidence intervals, likewise")


class PublishedTable(RowFacts):
    """A table as it stands in a file, or the part of one that is about one dataset."""

    table: int | str = Field(description="its number, or another place, as `Figure 3`")
    metrics: list[Metric] = Field([], description="the columns of `figures`, as `P@1`, `nDCG@5`")
    unit: Literal["per cent", "fraction"] = Field("per cent", description="the unit that the values are printed in")
    rows: list[TableRow] = Field(min_length=1, description="a mapping each")

    @field_validator("metrics")
    @classmethod
    def _once(cls, metrics: list[str]) -> list[str]:
        if repeated := {name for name in metrics if metrics.count(name) > 1}:
            raise ValueError(f"expected each metric once, not {', '.join(sorted(repeated))} again")
        return metrics


class PublishedFile(RowFacts):
    """A file."""

    paper: Key = Field(description="a short name: lower-case letters, digits, `.` and `-`")
    citation: str = Field(min_length=1, description="authors, title, venue, year")
    url: str = Field("", description="its address")
    bibtex: str = Field("", description="its BibTeX entry, with `paper` as key; if absent, made from the citation")
    introduces: list[str] = Field([], description="methods that the paper introduces: its rows of them come first")
    tables: list[PublishedTable] = Field(min_length=1, description="a mapping each")


def read_rows(path: Path) -> tuple[PublishedRow, ...]:
    """The rows of a file, or of the `.yaml` files in a folder.

    Raises `XMCBenchError` with a line for each mistake in a file, and for a folder without such files.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise XMCBenchError(f"{path}: found no .yaml file, expected published rows")
    return tuple(row for file in files for row in read_published(file))


def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """The rows of one file, in its order."""
    file, document, problems = read_checked(PublishedFile, path, exact=True)
    rows = tuple(_rows(file, document, problems))
    problems.check()
    return rows


def _rows(file: PublishedFile, document: YamlDocument, problems: Problems) -> Iterator[PublishedRow]:
    places: dict[tuple[str, ...], str] = {}
    for i, table in enumerate(file.tables):
        scale = 100 if table.unit == "per cent" else 1
        for j, row in enumerate(table.rows):
            steps: KeyPath = ("tables", i, "rows", j)
            facts = _merged(file, table, row)
            if not _complete(facts, table, row, steps, problems):
                continue
            figures, intervals = (
                {name: cell for name, cell in zip(table.metrics, cells, strict=False) if cell is not None}
                for cells in (row.figures, row.intervals)
            )
            written = document.data, document.data["tables"][i], document.data["tables"][i]["rows"][j]
            published = PublishedRow(
                **facts,
                paper=file.paper,
                table=f"Table {table.table}" if isinstance(table.table, int) else table.table,
                citation=file.citation,
                url=file.url,
                bibtex=file.bibtex,
                introduced=facts["method"] in file.introduces,
                metrics={name: float(value / scale) for name, value in figures.items()},
                intervals={name: float(value / scale) for name, value in intervals.items()},
                printed={name: str(value) for name, value in figures.items()},
                printed_costs={name: str(of[name]) for of in written for name in COSTS if of.get(name) is not None},
                place=document.where(steps),
            )
            if (place := places.get(published.key)) is not None:
                same = f"the same paper, table, dataset, method and variant as {place}"
                problems.add(steps, f"{same}; expected a variant that tells them apart")
            places[published.key] = published.place
            yield published


def _merged(*levels: RowFacts) -> dict[str, Any]:
    """The facts of a row: its own before its table's before its file's."""
    known = RowFacts.model_fields.keys()
    merged = {name: getattr(level, name) for level in levels for name in level.model_fields_set & known}
    return merged | {"settings": {name: value for level in levels for name, value in level.settings.items()}}


def _complete(facts: dict[str, Any], table: PublishedTable, row: TableRow, steps: KeyPath, problems: Problems) -> bool:
    """Whether a row can be made; otherwise the problems are noted."""
    before, columns = len(problems), len(table.metrics)
    for name in ("dataset", "method"):
        if name not in facts:
            problems.add(steps, f"missing key {name!r}: neither here nor in the table nor at the top")
    for name, cells in (("figures", row.figures), ("intervals", row.intervals)):
        if len(cells) != columns and (name == "figures" or cells):
            problems.add((*steps, name), f"found {len(cells)} cells, expected {columns}, one of each metric")
        for k, cell in enumerate(cells):
            if table.unit == "fraction" and cell is not None and cell > 1:
                problems.add((*steps, name, k), f"found {cell}, expected a fraction of at most 1")
    stated = any(cell is not None for cell in row.figures) or any(facts.get(cost) for cost in COSTS)
    if not stated and len(problems) == before:
        problems.add(steps, f"found neither a metric nor a cost, expected one (costs are {', '.join(COSTS)})")
    return len(problems) == before
