"""Results that papers print, and users' own in the same form: YAML files read into flat rows.

A file holds the tables of one paper. A fact at the top of the file holds for all tables, a fact in a table for all its
rows; the innermost fact wins. The documentation prints the descriptions of the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator

from xmcbench.errors import XMCBenchError
from xmcbench.files.yaml_lines import KeyPath, Problems, YamlDocument
from xmcbench.reporting.curated import Written, read_checked

# `leaderboard` beside this file is in a clone a symbolic link to leaderboard/, in a wheel a copy of a part of it.
SHIPPED = Path(__file__).parent / "leaderboard" / "published"
ACCEPTED = Path(__file__).parent / "leaderboard" / "measured"  # a store of submissions (`xmcbench submit`)
VERIFIED = ACCEPTED.with_name("verified.yaml")  # what the maintainers trained again
COSTS = ("training_hours", "inference_hours", "memory_gb", "batch_seconds", "epoch_hours")


def _as_number(value: Any) -> Any:
    """Decimal numbers come from the reader as they are written: metrics keep their zeros, costs need none."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+\.\d*", value) else value


def _like(pattern: str, example: str) -> AfterValidator:
    """A validator: the whole text matches `pattern`; `example` explains the pattern in the error."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected something like {example}")
        return text

    return AfterValidator(check)


Figure = Annotated[Decimal, Field(ge=0, le=100)]
Cost = Annotated[float, Field(gt=0), BeforeValidator(_as_number)]
Devices = Annotated[str, _like(r"\d+ x [^+]+( \+ \d+ x [^+]+)*", "'4 x A100' or '1 x A100 + 2 x V100'")]
Metric = Annotated[str, _like(r"[A-Za-z]+(@[1-9]\d*|-[1-9L])?", "'P@1' or 'ROUGE-L'")]
Key = Annotated[str, _like(r"[a-z0-9][a-z0-9.-]*", "'dexml' or 'lee-2027'")]
Misprint = Annotated[str, Field(min_length=1)]


KINDS = {"encoder": "encoder", "classifier": "classifier", "encoder + classifier": "both"}  # that a variant may name


class RowFacts(Written):
    """The facts of a row beside its metrics. None and the empty string mean that the paper does not say."""

    model_config = ConfigDict(str_strip_whitespace=True)

    dataset: str = Field("", min_length=1, description="name of the dataset, one for each split; required")
    track: Literal["supervised", "zero-shot"] = Field("supervised", description="zero-shot: trained on no true pair")
    protocol: str = Field("", description="how evaluation differs from others; such rows are compared among themselves")
    method: str = Field("", min_length=1, description="the method's name, the same in every paper; required")
    variant: str = Field("", description="what distinguishes the row from the method's other rows in its table")
    as_printed: str = Field("", description="the paper's name of the row, where it differs")
    kind: Literal["encoder", "classifier", "both", ""] = Field(
        "", description="what predicts; if absent, from a `variant` encoder, classifier or encoder + classifier"
    )
    role: Literal["main", "ablation", "cost"] = Field("main", description="ablations and costs fold into the main row")
    quoted_from: Key | Literal[""] = Field(
        "", description="the paper that measured the result; original: the method's own paper or repository"
    )
    misprint: dict[Metric, Misprint] = Field(
        {}, description="metric: what is wrong with its value, which is not ranked"
    )
    split: str = Field("", description="how the test split differs; such rows are shown unranked")
    label_text: bool | None = Field(None, description="whether label texts are read")
    classifier: bool | None = Field(None, description="whether prediction uses a weight vector for each label")
    ensemble: int | None = Field(None, ge=1, description="learners whose predictions are combined")
    extra_metadata: bool | None = Field(None, description="whether data beside texts and targets is used")
    encoder: str | None = Field(None, description="the pretrained encoder")
    dimension: int | None = Field(None, ge=1, description="dimension of the embeddings that are searched")
    loss: str | None = Field(None, description="the loss that is minimised")
    batch_size: int | None = Field(None, ge=1, description="queries per step")
    negatives: str | None = Field(None, description="as `in-batch`, `in-batch + 5 hard per query`, `all labels`")
    negative_pool: int | None = Field(None, ge=0, description="labels that a query is scored against in a step")
    epochs: int | None = Field(None, ge=0, description="passes over the training queries")
    hardware: Devices | None = Field(None, description="`4 x A100`; kinds are joined by ` + `")
    training_hours: Cost | None = Field(None, description="wall clock of training")
    inference_hours: Cost | None = Field(None, description="wall clock of predicting the test split")
    memory_gb: Cost | None = Field(None, description="peak memory of the largest device")
    batch_seconds: Cost | None = Field(None, description="wall clock of one step")
    epoch_hours: Cost | None = Field(None, description="wall clock of one epoch")
    settings: dict[str, str | int | bool] = Field({}, description="anything else, as `{beta: 3}`; they add up")
    note: str = Field("", description="remarks on the row")

    @property
    def predictor(self) -> str:
        """What predicts: "encoder", "classifier" or "both"; empty where the paper does not say."""
        return self.kind or KINDS.get(self.variant) or ("encoder" if self.classifier is False else "")


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


class PublishedRow(RowFacts):
    """One result that a paper prints, with all that the paper states about it."""

    paper: str
    table: str  # "Table 3"
    citation: str
    url: str
    bibtex: str = ""
    introduced: bool = False  # the paper introduces the method
    metrics: dict[str, float]  # fractions, as in a record; empty where only costs are printed
    intervals: dict[str, float]  # half widths of 95 % confidence intervals, fractions
    printed: dict[str, str]  # the metrics in the paper's own digits
    printed_costs: dict[str, str] = Field({})  # the costs, likewise
    place: str  # file and line

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """No two rows share it."""
        return self.paper, self.table, self.dataset, self.method, self.variant

    @property
    def source(self) -> str:
        """Paper and table: ``dexml Table 3``."""
        return f"{self.paper} {self.table}"

    @property
    def label(self) -> str:
        """The name to show: method and variant."""
        return f"{self.method} ({self.variant})" if self.variant else self.method


def published_rows(*others: Path) -> tuple[PublishedRow, ...]:
    """The rows that come with xmcbench, then those of `others`: files, or folders of `.yaml` files.

    Raises `XMCBenchError` with a line for each mistake in a file, and where two files hold the same row.
    """
    rows: dict[tuple[str, ...], PublishedRow] = {}
    for path in (SHIPPED, *others):
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not files:
            raise XMCBenchError(f"{path}: found no .yaml file, expected published rows")
        for row in (row for file in files for row in read_published(file)):
            if (same := rows.setdefault(row.key, row)) is not row:
                name = f"{row.source}, {row.dataset}, {row.label}"
                raise XMCBenchError(f"{row.place}: {name}: this row is at {same.place} already")
    return tuple(rows.values())


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
