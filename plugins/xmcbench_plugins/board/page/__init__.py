"""The leaderboard as a static page: one file that needs no network, and a page for each record beside it.

Templates escape every value, and the content security policy allows no other script. What pages show without scripts
is made here: the intervals of claims, the cards of datasets. Coordinates are numbers alone.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import asinh, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from xmcbench.data import find_source
from xmcbench.data.source import Source
from xmcbench.data.tracks import DerivedSource
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.analysis import Analysis
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.registry import own_version
from xmcbench.reporting.compared_rows import Resampled
from xmcbench.reporting.describe import describe, for_people, metric_rows, reproducing_suite, summary
from xmcbench.reporting.notes import CHECKED
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.rows import Leaderboard
from xmcbench.reporting.text_table import printable
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Record
from xmcbench_plugins.board.claims import FINDINGS, ClaimFile, Regime
from xmcbench_plugins.board.curated import dataset_facts, findings, title_of
from xmcbench_plugins.board.page.about import Example, Fact, facts
from xmcbench_plugins.board.page.payload import payload

NOTHING = "'none'"
PARTS = files("xmcbench_plugins.board.page")
SCRIPTS = ("copy.js", "tooltip.js", "table.js", "charts.js", "overview.js", "page.js")
FEED_ENTRIES = 50
OWN_MARKS = (b'<meta name="generator" content="xmcbench">', b"<title>xmcbench leaderboard</title>")
BEGINNING = 1_000_000  # bytes of a page that hold its head, whose style is long
CHARTS = (
    ("cost", "Quality and cost", (("y", "Metric"), ("x", "Cost"))),
    ("curve", "Quality along the budget", (("y", "Metric"), ("x", "Spent"))),
    ("deciles", "From frequent labels to rare ones", (("y", "Value"),)),
)


def write_page(
    board: Leaderboard,
    records: Mapping[str, Record],
    out: Path,
    analyses: Mapping[str, Analysis] | None = None,
    claims: ClaimFile | None = None,
    bibtex: Mapping[str, str] | None = None,
    resampled: Resampled = lambda key, metrics: {},  # noqa: ARG005
    examples: Mapping[str, Sequence[Example]] = MappingProxyType({}),
    published: Sequence[PublishedRow] = (),
) -> list[Path]:
    """Write `index.html`, `claims.html`, `feed.xml` and a page for each record shown into `out`; returns the paths.

    `records` and `analyses` are by key; trials with an analysis get a chart of deciles. `bibtex` has entries by paper.
    Rows whose metrics are `resampled` can be compared on the page. `examples` are predictions by key; the papers of the
    `published` rows are linked from records of their methods. Pages of records that are no longer shown are
    removed. Raises XMCBenchError where a page of others would be replaced.
    """
    check_folder(out)
    shown = {key: records[key] for group in board.groups for row in group.rows for key in row.keys if key in records}
    found = findings()
    data = {**payload(board, shown, analyses or {}, resampled, published), "bibtex": dict(bibtex or {})}
    index = _page(
        "index.html",
        SCRIPTS,
        data=_json(data),
        sentences=found.sentences if data["standings"] else (),
        cards=cards(board),
        claims=bool(claims),
        charts=CHARTS,
        citation=_citation(shown),
        footer=_footer(shown),
    )
    pages = {out / "index.html": index}
    if claims:
        pages[out / "claims.html"] = _claims(claims, shown)
    pages[out / "feed.xml"] = _feed(shown)
    rows = {key: row for group in board.groups for row in group.rows for key in row.keys}
    for key, record in shown.items():
        known = facts(record, rows.get(key), published)
        pages[out / "records" / f"{key}.html"] = _record(record, known, examples.get(key, ()))
    for path, content in pages.items():
        with atomic_write(path) as file:
            file.write(content.encode())
    for path in (out / "records").glob("*.html"):
        if path not in pages and _is_own(path):
            path.unlink()
    return list(pages)


def check_folder(out: Path) -> None:
    """Raise XMCBenchError if the page in the folder `out` is not of xmcbench."""
    if (out / "index.html").exists() and not _is_own(out / "index.html"):
        raise XMCBenchError(f"{out / 'index.html'}: a page that xmcbench did not write: expected an empty folder")


def _is_own(page: Path) -> bool:
    """Whether xmcbench wrote a page: it says so at its beginning, as the title of earlier ones does."""
    if not page.is_file():  # a pipe would block the reader
        return False
    with page.open("rb") as file:
        beginning = file.read(BEGINNING)
    return any(mark in beginning for mark in OWN_MARKS)


def _claims(claims: ClaimFile, records: Mapping[str, Record]) -> str:
    """The page of the claims, without scripts."""
    return _page(
        "claims.html",
        claims=claims,
        records=records,
        findings=_counts(regime for claim in claims.claims for regime in claim.regimes),
        answers=_counts(question.regime for question in claims.questions),
        forest=[
            (claim, [(own, column) for own in claim.regimes if own.scale and (column := own.column(claim.shown))])
            for claim in claims.claims
        ],
        ticks=TICKS,
        width=FOREST,
        row=ROW,
        footer=_footer(records),
    )


def _page(name: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """A page with its style, its scripts, and a content security policy: no others, and no request to anywhere."""
    style, script = _part("page.css"), "\n".join(map(_part, scripts))
    allowed = f"style-src {_hash(style)}; script-src {_hash(script) if script else NOTHING}"
    policy = f"default-src {NOTHING}; {allowed}; base-uri {NOTHING}; form-action {NOTHING}"
    return _template(name).render(policy=policy, style=style, script=script, **values)


def _counts(regimes: Iterable[Regime]) -> dict[str, int]:
    """How often each finding occurs, in the order of `FINDINGS`."""
    found = Counter(regime.finding for regime in regimes)
    return {name: found[name] for name in FINDINGS if found[name]}


def _footer(records: Mapping[str, Record]) -> str:
    """Version and commit of the code, and the date of the newest result."""
    commit = (provenance().get("git") or {}).get("commit", "")
    newest = _newest(records)
    parts = [f"commit {commit[:12]}" if commit else "", f"newest result of {newest}" if newest else ""]
    return ", ".join(filter(None, [f"Made by xmcbench {own_version()}", *parts])) + "."


def _newest(records: Mapping[str, Record]) -> str:
    """The day of the newest result; empty where there is none."""
    return max((record.ended for record in records.values()), default="")[:10]


def _citation(records: Mapping[str, Record]) -> str:
    """A BibTeX entry of the leaderboard as it is now; the page adds the address at which it is read."""
    newest = _newest(records)
    year = f"  year   = {{{newest[:4]}}},\n" if newest else ""
    note = f"version {own_version()}" + (f", results until {newest}" if newest else "")
    return (
        "@misc{xmcbench,\n  title  = {xmcbench: extreme multi-label classification under equal budgets},\n"
        f"  author = {{{{The xmcbench authors}}}},\n{year}  note   = {{{note}}}\n}}\n"
    )


def _feed(records: Mapping[str, Record]) -> str:
    """The newest results as an Atom feed."""
    newest = sorted((r for r in records.values() if r.ended), key=lambda r: (r.ended, r.key), reverse=True)
    updated = newest[0].ended if newest else "1970-01-01T00:00:00+00:00"
    return _template("feed.xml").render(records=newest[:FEED_ENTRIES], updated=updated)


def _record(record: Record, known: Sequence[Fact], examples: Sequence[Example]) -> str:
    """The page of a record: what people ask first, and everything else folded."""
    return _page(
        "record.html",
        ("copy.js",),
        title=f"{record.trial.dataset}/{record.trial.label}",
        key=record.key,
        dataset=record.trial.dataset,
        summary=summary(record),
        named=title_of(record.trial.dataset),
        facts=known,
        examples=examples,
        sections=for_people(record),
        metrics=metric_rows(record.metrics, record.intervals),
        raw=describe(record),
        checked=CHECKED,
        suite="" if isinstance(record.trial.budget, UnknownBudget) else reproducing_suite(record),
    )


@cache
def _template(name: str) -> Template:
    """A template in which every value is escaped unless the template marks it as safe."""
    loader = PackageLoader("xmcbench_plugins.board", "page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["printable"] = printable  # XML has no control characters, not even escaped
    environment.filters["place"] = place
    environment.filters["made"] = lambda scale: dataset_facts(scale.dataset).made
    return environment.get_template(name)


@cache
def _part(name: str) -> str:
    return PARTS.joinpath(name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


FOREST, ROW = 420, 18  # pixels of the plot of claims and of an interval in it
FAR = 50.0  # points at the ends of the axis of claims; it is linear near 0 and logarithmic beyond
TICKS = (-50, -20, -5, -2, 0, 2, 5, 20, 50)


def place(points: float | str) -> float:
    """The place of a difference on the axis of claims, in pixels."""
    return FOREST / 2 * (1 + asinh(max(-FAR, min(FAR, float(points)))) / asinh(FAR) * 0.94)


SPREAD = 0.5  # standard deviation over queries of a paired difference in P@1: docs/datasheets.md
POWER = 2.8  # 95 % confidence and 80 % power, in standard errors


@dataclass(frozen=True)
class Card:
    """Names and values, as text."""

    name: str
    title: str  # for people; empty where it has none
    made: bool
    folded: bool  # papers alone have results on it
    rows: tuple[tuple[str, str], ...]


def cards(board: Leaderboard) -> list[Card]:
    """A card for each dataset of the board: those with measured rows first, real ones before made ones."""
    own = {(_without_track(group.dataset), group.source) for group in board.groups}
    measured = {name for name, source in own if source == "measured"}
    names = sorted({name for name, _ in own})
    found = [
        Card(name, title_of(name), dataset_facts(name).made, name not in measured, _rows(name, board)) for name in names
    ]
    return sorted(found, key=lambda card: (card.folded, card.made, card.name))


def _source(name: str) -> Source | None:
    """The source of a dataset; None where it is unknown here."""
    try:
        return find_source(name)
    except XMCBenchError:
        return None


def _without_track(name: str) -> str:
    """The dataset that a track made this one of, whose card it shares; `name` itself where none did."""
    source = _source(name)
    while isinstance(source, DerivedSource):
        source = source.base
    return source.name if source else name


def _rows(name: str, board: Leaderboard) -> tuple[tuple[str, str], ...]:
    facts, source = dataset_facts(name), _source(name)
    draft = source and source.draft
    train, test, labels = (
        getattr(facts, size) or getattr(draft, size, None) for size in ("num_train", "num_test", "num_labels")
    )
    per_text = facts.labels_per_text or (draft and draft.labels_per_query)
    facts_of = (row.facts for group in board.groups if group.dataset == name for row in group.rows)
    shared = max((own for one in facts_of if isinstance(own := one.get("shared_texts"), int)), default=0)
    rows = {
        "queries": " and ".join(f"{n:,} {part}" for n, part in ((train, "training"), (test, "test")) if n),
        "labels": labels and f"{labels:,}",
        "labels per text": per_text and f"{per_text:g}",
        "texts": facts.texts,
        "data": "made by a rule" if facts.made else "real",
        "smallest visible difference": test and f"{100 * POWER * SPREAD / sqrt(test):.1f} points of P@1, one seed",
        "leakage": facts.leakage or (shared and f"{shared:,} test texts are also in training"),
        "licence": draft and draft.licence,
        "source": draft and draft.source,
    }
    return tuple((fact, str(text)) for fact, text in rows.items() if text)
