"""The files of the page. Templates escape every value, and the content security policy allows no other script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from xmcbench.evaluation.analysis import Analysis
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.registry import own_version
from xmcbench.reporting.claims import FINDINGS, ClaimFile, Regime
from xmcbench.reporting.describe import describe, reproducing_suite
from xmcbench.reporting.numbers import printable
from xmcbench.reporting.page.overview import overviews
from xmcbench.reporting.page.payload import payload
from xmcbench.reporting.rows import Leaderboard
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.provenance import provenance
from xmcbench.trial.record import Record

NOTHING = "'none'"
PARTS = files("xmcbench.reporting.page")
SCRIPTS = ("table.js", "charts.js", "page.js")
FEED_ENTRIES = 50
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
) -> list[Path]:
    """Write `index.html`, `feed.xml` and a page for each record shown into the folder `out`; returns the paths.

    `records` and `analyses` are by key; trials with an analysis get a chart of deciles. `bibtex` has entries by paper.
    """
    shown = {key: records[key] for group in board.groups for row in group.rows for key in row.keys if key in records}
    pages = {out / "index.html": _index(board, shown, analyses or {}, claims or ClaimFile(claims=()), bibtex or {})}
    pages[out / "feed.xml"] = _feed(shown)
    pages |= {out / "records" / f"{key}.html": _record(record) for key, record in shown.items()}
    for path, content in pages.items():
        with atomic_write(path) as file:
            file.write(content.encode())
    return list(pages)


def _index(
    board: Leaderboard,
    records: Mapping[str, Record],
    analyses: Mapping[str, Analysis],
    claims: ClaimFile,
    bibtex: Mapping[str, str],
) -> str:
    style, script = _part("page.css"), "\n".join(_part(name) for name in SCRIPTS)
    data = {**payload(board, records, analyses, own_version()), "bibtex": dict(bibtex)}
    return _template("index.html").render(
        policy=_policy(_hash(style), script),
        style=style,
        script=script,
        data=_json(data),
        overviews=overviews(board.groups),
        claims=claims,
        records=records,
        findings=_counts(regime for claim in claims.claims for regime in claim.regimes),
        answers=_counts(question.regime for question in claims.questions),
        charts=CHARTS,
        footer=_footer(records),
    )


def _counts(regimes: Iterable[Regime]) -> dict[str, int]:
    """How often each finding occurs, in the order of `FINDINGS`."""
    found = Counter(regime.finding for regime in regimes)
    return {name: found[name] for name in FINDINGS if found[name]}


def _footer(records: Mapping[str, Record]) -> str:
    """Version and commit of the code, and the date of the newest result."""
    commit = (provenance().get("git") or {}).get("commit", "")
    parts = [f"Made by xmcbench {own_version()}", *([f"commit {commit[:12]}"] if commit else [])]
    newest = max((record.ended for record in records.values()), default="")
    return ", ".join([*parts, *([f"newest result of {newest[:10]}"] if newest else [])]) + "."


def _feed(records: Mapping[str, Record]) -> str:
    """The newest results as an Atom feed."""
    newest = sorted((r for r in records.values() if r.ended), key=lambda r: (r.ended, r.key), reverse=True)[
        :FEED_ENTRIES
    ]
    updated = newest[0].ended if newest else "1970-01-01T00:00:00+00:00"
    return _template("feed.xml").render(records=newest, updated=updated)


def _record(record: Record) -> str:
    """The page of a record: everything in the record, without scripts."""
    style = _part("page.css")
    return _template("record.html").render(
        policy=_policy(_hash(style)),
        style=style,
        title=f"{record.trial.dataset}/{record.trial.label}",
        key=record.key,
        dataset=record.trial.dataset,
        sections=describe(record),
        suite="" if isinstance(record.trial.budget, UnknownBudget) else reproducing_suite(record),
    )


def _template(name: str) -> Template:
    """A template in which every value is escaped unless the template marks it as safe."""
    loader = PackageLoader("xmcbench.reporting", "page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["printable"] = printable  # XML has no control characters, not even escaped
    return environment.get_template(name)


def _part(name: str) -> str:
    return PARTS.joinpath(name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, *scripts: str) -> str:
    """A content security policy: this style, these scripts by their hashes, and no request to anywhere."""
    allowed = [f"style-src {style}", f"script-src {' '.join(map(_hash, scripts)) or NOTHING}"]
    return "; ".join([f"default-src {NOTHING}", *allowed, f"base-uri {NOTHING}", f"form-action {NOTHING}"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
