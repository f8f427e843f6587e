"""The files of the page. Templates escape every value, and the content security policy allows no other script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from xmcbench.evaluation.analysis import Analysis
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.extras import import_extra
from xmcbench.plugins.registry import own_version
from xmcbench.reporting.describe import describe
from xmcbench.reporting.page.payload import payload
from xmcbench.reporting.rows import Leaderboard
from xmcbench.trial.record import Record

NOTHING = "'none'"
READABLE = 0o644  # a page is for others to read
PARTS = files("xmcbench.reporting.page")
SCRIPTS = ("table.js", "charts.js", "page.js")


def write_page(
    table: Leaderboard, records: Mapping[str, Record], out: Path, analyses: Mapping[str, Analysis] | None = None
) -> list[Path]:
    """Write `index.html` and a file for each record that the table shows into the folder `out`; the paths.

    `records` and `analyses` are by key; a trial with an analysis has its deciles drawn.
    """
    shown = {key: records[key] for group in table.groups for row in group.rows for key in row.keys if key in records}
    pages = {out / "index.html": _index(payload(table, shown, analyses or {}))}
    pages |= {out / "records" / f"{key}.html": _record(record) for key, record in shown.items()}
    for path, content in pages.items():
        with atomic_write(path) as file:
            file.write(content.encode())
        path.chmod(READABLE)
    return list(pages)


def _index(data: dict[str, Any]) -> str:
    style, script = _part("page.css"), "\n".join(_part(name) for name in SCRIPTS)
    plotly = import_extra("plotly.offline", "page", "writing the page")
    charts = plotly.get_plotlyjs()
    return _template("index.html").render(
        policy=_policy("'unsafe-inline'", script, charts),  # Plotly adds styles of its own
        style=style,
        script=script,
        charts=charts,
        data=_json(data),
        footer=f"Made by xmcbench {own_version()}, charts by Plotly (MIT licence).",
    )


def _record(record: Record) -> str:
    """The page of a record: everything in the record, without scripts."""
    style = _part("page.css")
    return _template("record.html").render(
        policy=_policy(_hash(style)),
        style=style,
        title=f"{record.trial.dataset}/{record.trial.label}",
        key=record.key,
        sections=describe(record),
    )


def _template(name: str) -> Template:
    """A template in which every value is escaped unless the template marks it as safe."""
    loader = PackageLoader("xmcbench.reporting", "page")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(name)


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
