"""The files of the page. Whatever comes from a record is escaped here, and the page's own policy runs nothing else."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from xmcbench.evaluation.analysis import Analysis
from xmcbench.files.atomic import atomic_write
from xmcbench.plugins.extras import import_extra
from xmcbench.plugins.registry import own_version
from xmcbench.reporting.describe import describe
from xmcbench.reporting.page.payload import payload
from xmcbench.reporting.rows import Table
from xmcbench.trial.record import Record

NOTHING = "'none'"
READABLE = 0o644  # a page is for others to read
PARTS = files("xmcbench.reporting.page")
SCRIPTS = ("table.js", "charts.js", "page.js")


def write_page(
    table: Table, records: Mapping[str, Record], out: Path, analyses: Mapping[str, Analysis] | None = None
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
    return _filled(
        _part("page.html"),
        policy=_policy("'unsafe-inline'", script, charts),  # Plotly adds styles of its own
        style=style,
        script=script,
        charts=charts,
        data=_json(data),
        footer=f"Made by xmcbench {escape(own_version())}, charts by Plotly (MIT licence).",
    )


def _record(record: Record) -> str:
    """A record to read: everything in it, nothing that runs."""
    style = _part("page.css")
    sections = "".join(
        f"<h2>{escape(section.title)}</h2>\n<dl>{''.join(_line(name, text) for name, text in section.rows)}</dl>\n"
        for section in describe(record)
    )
    title = escape(f"{record.trial.dataset}/{record.trial.label}")
    return _filled(
        _part("record.html"), policy=_policy(_hash(style)), style=style, title=title, sections=sections, key=record.key
    )


def _line(name: str, text: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"


def _part(name: str) -> str:
    return PARTS.joinpath(name).read_text(encoding="utf-8")


def _filled(template: str, **parts: str) -> str:
    """The template with each `{{name}}` replaced; what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _json(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, *scripts: str) -> str:
    """A content security policy: this style, these scripts by their hashes, and no request to anywhere."""
    allowed = [f"style-src {style}", f"script-src {' '.join(map(_hash, scripts)) or NOTHING}"]
    return escape(
        "; ".join([f"default-src {NOTHING}", *allowed, f"base-uri {NOTHING}", f"form-action {NOTHING}"]), False
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
