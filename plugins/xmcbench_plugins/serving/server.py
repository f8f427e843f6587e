"""A server that ranks labels for texts over HTTP, and the project with which Annif asks it (its backend `http`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

from xmcbench.data import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.record import Record

Rank = Callable[[str, int], list[dict[str, Any]]]  # a text and the number of labels: uri, label and score of each

LOOPBACK = "127.0.0.1"
LARGEST = 10_000_000  # bytes of a request
PATIENCE = 60  # seconds for a client to send its request


def server(port: int, answer: Rank, k: int) -> ThreadingHTTPServer:
    """A server on this machine's loopback address that answers one request at a time.

    Raises `XMCBenchError` if the port is taken.
    """
    try:
        return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, answer, k, Lock()))
    except OSError as problem:
        raise XMCBenchError(f"port {port}: {problem.strerror or problem}: expected a free one (--port)") from None


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE

    def __init__(self, answer: Rank, k: int, lock: Lock, *arguments: Any) -> None:
        self._answer, self._k, self._lock = answer, k, lock
        super().__init__(*arguments)

    def do_POST(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in (LOOPBACK, "localhost"):
            self._send(403, {"error": f"expected the host {LOOPBACK} or localhost"})  # a web page's own name for it
            return
        if self.path.partition("?")[0] != "/suggest":
            self._send(404, {"error": f"found {self.path[:100]!r}, expected /suggest"})
            return
        try:
            text, k = self._asked()
        except ValueError as problem:
            self._send(400, {"error": str(problem)})
            return
        with self._lock:
            found = self._answer(text, k)
        self._send(200, {"results": found})

    def do_GET(self) -> None:
        self._send(405, {"error": "expected POST with a form that has `text`"})

    def _asked(self) -> tuple[str, int]:
        """Text and number of labels of the request's form. Raises ValueError in plain words."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST:
            raise ValueError(f"found a body of {length[:20] or 'no stated'} bytes, expected at most {LARGEST:,}")
        try:
            form = parse_qs(self.rfile.read(int(length)).decode(), keep_blank_values=True, max_num_fields=10)
        except ValueError:
            raise ValueError("found a body that is no form in UTF-8") from None
        if "text" not in form:
            raise ValueError("found no `text` in the form")
        limit = form.get("limit", [str(self._k)])[0]
        if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= 10_000):
            raise ValueError(f"limit: found {limit[:20]!r}, expected a number from 1 to 10,000")
        return form["text"][0], int(limit)

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Requests hold texts of people: they are not logged."""


def write_project(
    folder: Path, record: Record, uris: Sequence[str], labels: Texts, endpoint: str, k: int
) -> tuple[Path, Path]:
    """Write Annif's `projects.cfg` and `vocabulary.tsv` into a folder; the files."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in record.trial.dataset).strip("-") or "dataset"
    project, vocabulary = folder / "projects.cfg", folder / "vocabulary.tsv"
    settings = {
        "name": " ".join(f"{record.trial.dataset} {record.trial.label}".split()).replace("%", "%%"),
        "language": "en",
        "backend": "http",
        "vocab": name,
        "endpoint": endpoint,
        "limit": str(k),
    }
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    rows = (f"<{uri}>\t{' '.join(labels[at].split())}\n" for at, uri in enumerate(uris))
    for path, content in ((project, f"[xmcbench-{name}]\n{lines}"), (vocabulary, "".join(rows))):
        with atomic_write(path) as file:
            file.write(content.encode())
    return project, vocabulary
