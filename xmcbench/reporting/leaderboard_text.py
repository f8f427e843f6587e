"""A leaderboard as text: for a terminal, a README, a paper, a spreadsheet, a program."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from xmcbench.files.csv_text import csv_text
from xmcbench.reporting.answer import closing, main_tables, what_else
from xmcbench.reporting.notes import LOWER, legend, notes_of, of_claims, of_interval, of_name, of_value
from xmcbench.reporting.paper_rows import Claim, PublishedRow
from xmcbench.reporting.rows import About, Group, Leaderboard, Note, Row, budget_text, cell, heading, short_budget
from xmcbench.reporting.text_table import (
    REQUIRED,
    TABLE_FORMATS,
    Cell,
    Heading,
    Mark,
    TextTable,
    escape_latex,
    printable,
    render_notes,
    render_tables,
)
from xmcbench.reporting.words import number
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.record import SCORED, Status

FORMATS = (*TABLE_FORMATS, "json")
WITHOUT_BUDGET = {"published": "published", "imported": "imported, budget unknown"}  # of groups without a budget
OF_GROUP = ("source", "dataset", "dataset_hash", "track", "protocol")  # columns of CSV
OF_ROW = ("rank", "method", "variant", "kind", "status")
SPREAD = ("low", "high", "std", "against")  # columns of CSV for each metric: interval, deviation, difference
IMPORTANT = {"kind": 80, "paper": 33, "variants": 2}  # of columns that a narrow terminal shows longest
SHORTEST = {"paper": 14, "kind": 10, "variants": 4}  # characters of cells in a narrow terminal
Column = tuple[Heading, list[Cell]]


def render(board: Leaderboard, format: str = "table", width: int | None = None) -> str:
    """The leaderboard as `format`, one of `FORMATS`. Text formats round; csv and json carry every digit.

    `width` is that of the terminal, to which a table is fitted. Raises `UnknownNameError` for another format.
    """
    if format == "json":
        return _json(board)
    if format == "csv":
        return _csv(board)
    hashes = {(group.dataset, group.dataset_hash) for group in board.groups if group.dataset_hash}
    ambiguous = len(hashes) > len({dataset for dataset, _ in hashes})
    if format == "latex":
        return render_tables([_paper_table(group, ambiguous) for group in board.groups], format)
    groups = [_named(group) for group in board.groups]
    tables = [group_table(group, ambiguous) for group in groups]
    return "\n\n".join([render_tables(tables, format, width), _notes(notes_of(groups), format, width)])


def _notes(notes: Iterable[Note], format: str, width: int | None) -> str:
    return render_notes([printable(note.text) for note in notes], format, width)


NEWS = frozenset({About.ROW})  # notes that no reader has to ask for


def answer(
    board: Leaderboard,
    width: int | None = None,
    *,
    every: bool = False,
    below: Collection[About] = (),
    closing_first: bool = False,
) -> str:
    """The main tables, or `every` table, each with a sentence on who leads; then what else there is to see.

    `below` are the subjects of the notes that are asked for; those on what happened to the user's rows always stand.
    With `closing_first` the sentences of all tables come before the first of them.
    """
    groups = [_named(group) for group in board.groups]
    shown = groups if every else main_tables(groups)
    hashes = {(group.dataset, group.dataset_hash) for group in shown if group.dataset_hash}
    ambiguous = len(hashes) > len({dataset for dataset, _ in hashes})
    several = closing_first and len(shown) > 1
    sentences = [f"{title(group, ambiguous)}: {closing(group)}" if several else closing(group) for group in shown]
    texts = [render_notes([printable(sentence)], "table", width) for sentence in sentences]
    tables = [render_tables([group_table(group, ambiguous)], "table", width) for group in shown]
    pairs = zip(tables, texts, strict=True)
    parts = ["\n".join(texts), *tables] if closing_first else ["\n\n".join(pair) for pair in pairs]
    printed = NEWS | {*below}
    marks = "" if About.READING in printed else legend(shown)
    notes = [note for note in notes_of(shown) if note.about in printed]
    whole = replace(board, groups=tuple(groups), noted=notes_of(shown))
    rest = [f"{marks}." if marks else "", what_else(whole, shown, printed)]
    last = [_notes(notes, "table", width), render_notes([note for note in rest if note], "table", width)]
    return "\n\n".join(filter(None, [*parts, *last]))


def tables_to_show(
    board: Leaderboard, *, lines: bool = False, every: bool = False, below: Collection[About] = ()
) -> list[TextTable]:
    """What `answer` says, or with `lines` what `summary` does, as tables with notes."""
    if lines:
        return [_summary(board)]
    groups = [_named(group) for group in board.groups]
    shown, noted = groups if every else main_tables(groups), NEWS | {*below}
    *others, last = [replace(group_table(group), notes=(closing(group),)) for group in shown]
    marks = "" if About.READING in noted else legend(shown)
    notes = [printable(note.text) for note in notes_of(shown) if note.about in noted]
    rest = what_else(replace(board, groups=tuple(groups), noted=notes_of(shown)), shown, noted)
    return [*others, replace(last, notes=[note for note in (*last.notes, *notes, marks, rest) if note])]


def summary(board: Leaderboard, width: int | None = None) -> str:
    """A line for each dataset and source: its main table, its best row, and how many other tables there are."""
    return render_tables([_summary(board)], "table", width)


def _summary(board: Leaderboard) -> TextTable:
    headings = (
        Heading("dataset", left=True, shortest=32),
        Heading("table", left=True, shortest=14),
        Heading("rows"),
        Heading("best", left=True, importance=50, shortest=12),
        Heading("", importance=50),
        Heading("also", left=True, importance=40, shortest=9),
    )
    lines, groups = [], list(map(_named, board.groups))
    bases = {(group.dataset, group.source) for group in groups}
    others = Counter((group.dataset, group.source) for group in groups)
    derived: dict[tuple[str, str], set[str]] = defaultdict(set)  # datasets that a rule makes of another one
    for group in groups:
        base = group.dataset.partition("+")[0]
        if base != group.dataset and (base, group.source) in bases:
            derived[base, group.source].add(group.dataset)
    folded = set().union(*derived.values())
    for group in main_tables([group for group in groups if group.dataset not in folded]):
        best = next((row for row in group.rows if row.rank == 1), None)
        budget = f"budget: {budget_text(group.budget)}"
        about = title(group).removeprefix(f"{group.dataset}, ").replace(budget, short_budget(group.budget))
        best_cells = (printable(best.label), f"{group.sort} {cell(best, group.sort)}") if best else ("-", "-")
        which = (group.dataset, group.source)
        counts = ((others[which] - 1, "table"), (len(derived[which]), "variant"))
        also = ", ".join(number(count, noun) for count, noun in counts if count)
        lines.append((group.dataset, about, str(len(group.rows)), *best_cells, also))
    notes = ["`xmcbench leaderboard --dataset NAME` shows the main table of a dataset, and how to see its other ones."]
    if folded:
        notes.append(f"Other datasets are made of these by a rule, as {min(folded)}.")
    return TextTable("", headings, lines, tuple(notes))


def group_table(group: Group, show_hash: bool = False) -> TextTable:
    """The rows of a group as a table to read."""
    headings, cells = zip(*_columns(group), strict=True)
    return TextTable(title(group, show_hash), headings, list(zip(*cells, strict=True)))


def _paper_table(group: Group, show_hash: bool) -> TextTable:
    """The table of a group without the column of ranks, methods by their names in papers, its notes below it."""
    group = _named(group, everyone=True)
    table = group_table(group, show_hash)
    rows = [row[1:] for row in table.rows]
    return TextTable(table.title, table.headings[1:], rows, [printable(note.text) for note in notes_of([group])])


def _named(group: Group, *, everyone: bool = False) -> Group:
    """The group with methods by their names in papers: of accepted rows, or also of the user's."""
    ours = [row.accepted or (everyone and row.source != "published") for row in group.rows]
    rows = zip(group.rows, ours, strict=True)
    return replace(
        group, rows=tuple(replace(row, method=row.called, variant="") if by_paper else row for row, by_paper in rows)
    )


def title(group: Group, show_hash: bool = False) -> str:
    """What the rows of a group have in common, in words."""
    content = f" ({group.dataset_hash[:12]})" if show_hash and group.dataset_hash else ""
    parts = [
        f"{group.dataset}{content}",
        group.track if group.track != "supervised" else "",
        WITHOUT_BUDGET.get(group.source, f"budget: {budget_text(group.budget)}"),
        f"protocol: {group.protocol}" if group.protocol else "",
        *(f"{heading(name)}: {value or 'not stated'}" for name, value in group.by.items()),
    ]
    return ", ".join(filter(None, parts))


def _columns(group: Group) -> list[Column]:
    rows = group.rows
    over = {Status.OVER_BUDGET: f" ({Status.OVER_BUDGET})"}
    names = [Cell(printable(row.label) + over.get(row.status, ""), symbols=of_name(row)) for row in rows]
    columns: list[Column] = [
        (Heading("#"), [Cell("-" if row.rank is None else str(row.rank)) for row in rows]),
        (Heading("method", left=True, shortest=22), names),
    ]
    if "kind" in group.columns:
        columns.append(_fact_column(group, "kind", IMPORTANT["kind"]))
    for position, name in enumerate(group.metrics):
        known = sum(name in row.metrics for row in rows) / max(1, len(rows))
        importance = REQUIRED if name == group.sort else 40 + round(20 * known) - position
        title = f"{name}{LOWER}" if name in group.lower_is_better else name
        columns.append((Heading(title, importance=importance), _metric_cells(group, name)))
        if name == group.sort:
            columns += _uncertainty_columns(rows, name)
    for position, name in enumerate(group.columns):
        if name != "kind":
            columns.append(_fact_column(group, name, IMPORTANT.get(name, 30 - position)))
    if any(group.sort in row.against for row in rows):
        head = Heading("against", left=True, importance=50)
        pairs = [(row.against.get(group.sort), row.against_source) for row in rows]
        columns.append(
            (
                head,
                [
                    Cell("-" if difference is None else f"{100 * difference:+.2f} ({source})")
                    for difference, source in pairs
                ],
            )
        )
    numeric = [cells for head, cells in columns[2:] if not head.left]
    for at, row in enumerate(rows):  # one without metrics shows its status in the first of these, nothing in the others
        if row.status not in SCORED:
            for cells in numeric:
                cells[at] = Cell("") if cells[at].text == "-" else cells[at]
            numeric[0][at] = Cell(str(row.status))
    return columns


def _fact_column(group: Group, name: str, importance: int) -> Column:
    text = COLUMNS[name].kind == "text"
    head = Heading(heading(name), left=text, importance=importance, shortest=SHORTEST.get(name, 8))
    return head, [
        Cell(
            cell(row, name) or "-",
            symbols=of_claims(row.folded_claims) if name == "variants" else "",
            cite=row.papers[:1] if name == "paper" else (),
        )
        for row in group.rows
    ]


def _metric_cells(group: Group, metric: str) -> list[Cell]:
    """The values of a metric with their marks; the best and the second best of the ranked rows stand out."""
    stand_out: dict[float, Mark] = dict(zip(group.best.get(metric, ()), ("best", "second"), strict=False))
    marks = [of_value(row, metric) for row in group.rows]
    width = max(map(len, marks), default=0)
    return [
        Cell(cell(row, metric) or "-", stand_out.get(row.metrics.get(metric, -1.0), "") if row.rank else "", mark)
        for row, mark in zip(group.rows, (mark.ljust(width) for mark in marks), strict=True)
    ]


def _uncertainty_columns(rows: Sequence[Row], metric: str) -> list[Column]:
    """How uncertain the values of a metric are: over test queries and seeds, and over seeds alone."""
    columns: list[Column] = []
    if any(metric in row.intervals for row in rows):
        known = [row.intervals.get(metric) for row in rows]
        halves = [f"±{50 * (ends[1] - ends[0]):.1f}" if ends else "-" for ends in known]
        marks = [of_interval(row) if ends else "" for row, ends in zip(rows, known, strict=True)]
        width = max(map(len, marks))
        cells = [Cell(text, symbols=mark.ljust(width)) for text, mark in zip(halves, marks, strict=True)]
        columns.append((Heading("95 %", importance=65), cells))
    if any(row.std for row in rows):
        deviations = [f"{100 * row.std[metric]:.2f} ×{len(row.seeds)}" if metric in row.std else "-" for row in rows]
        columns.append((Heading("sd", importance=1), [Cell(text) for text in deviations]))
    return columns


# For programs -----------------------------------------------------------------------------------------------------


def _csv(board: Leaderboard) -> str:
    """One line per row with all its values; `keys` and `seeds` are separated by spaces."""
    metrics = list(dict.fromkeys(name for group in board.groups for name in group.every_metric))
    facts = list(dict.fromkeys(name for group in board.groups for name in group.every_column if name != "kind"))
    lines = [_values(group, row, metrics, facts) for group in board.groups for row in group.rows]
    used = [name for name in lines[0] if any(line[name] not in (None, "") for line in lines)]
    return csv_text([used, *([line[name] for name in used] for line in lines)]).rstrip("\n")


def _values(group: Group, row: Row, metrics: Sequence[str], facts: Sequence[str]) -> dict[str, Any]:
    spreads = {name: (*row.intervals.get(name, (None, None)), row.std.get(name)) for name in metrics}
    return {
        **{name: getattr(group, name) for name in OF_GROUP},
        "budget": " ".join(f"{name}={limit!r}" for name, limit in group.budget.items()),
        **{name: getattr(row, name) for name in OF_ROW},
        **{name: row.metrics.get(name) for name in metrics},
        **{
            f"{name} {part}": value
            for name, spread in spreads.items()
            for part, value in zip(SPREAD, (*spread, row.against.get(name)), strict=True)
        },
        **{name: row.facts.get(name) for name in facts},
        "against_source": row.against_source,
        "claims": "; ".join(f"{claim.id}: {regime}" for claim in row.claims for regime in claim.regimes),
        "older": row.older,
        "codes": row.codes or None,
        "redefined": " ".join(row.redefined),
        "below_popular": row.below_popular or None,
        "never_ran": "; ".join(row.idle),
        "unlimited": row.unlimited or None,
        "unbounded": row.unbounded or None,
        "stated": row.stated or None,
        "reproduced": row.reproduced,
        "tied": " ".join(sorted(row.tied)),
        "seeds": " ".join(map(str, row.seeds)),
        "keys": " ".join(row.keys),
        "metric_version": row.metric_version or None,
        "url": row.url,
        "problem": row.problem,
    }


def _json(board: Leaderboard) -> str:
    """The groups with their rows, without fields that are empty in every row."""

    def plain(value: frozenset[str] | Claim) -> Any:
        if isinstance(value, frozenset):
            return sorted(value)
        return {"id": value.id, "claim": value.claim, "regimes": [str(regime) for regime in value.regimes]}

    content = {**asdict(board), "notes": board.notes}
    del content["noted"]
    rows = [row for group in content["groups"] for row in group["rows"]]
    used = {"metrics", *(name for row in rows for name, value in row.items() if value)}
    for group in content["groups"]:
        group["rows"] = [{name: value for name, value in row.items() if name in used} for row in group["rows"]]
    return json.dumps(content, default=plain, indent=1, allow_nan=False, ensure_ascii=False)


def bibliography(board: Leaderboard, published: Iterable[PublishedRow]) -> str:
    """An entry for each paper of the rows shown: that of its file, or one that holds its citation and address."""
    shown = dict.fromkeys(paper for group in board.groups for row in group.rows for paper in row.papers)
    rows = {row.paper: row for row in published}
    return "\n".join(bibtex_entry(rows[paper]) for paper in shown)


def bibtex_entry(row: PublishedRow) -> str:
    """The BibTeX entry of the row's paper, ending with a line break."""
    if row.bibtex:
        return row.bibtex.strip() + "\n"
    address = f",\n  url  = {{{row.url}}}" if row.url else ""
    return f"@misc{{{row.paper},\n  note = {{{escape_latex(row.citation)}}}{address}\n}}\n"
