"""Labels over HTTP as a client of Annif asks for them. The fake method ranks labels by how often they were seen."""

from __future__ import annotations

import configparser
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from commands import told
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.runs.saved_model import load_saved_model
from xmcbench_plugins.serving.commands import ranking
from xmcbench_plugins.serving.server import server, write_project

URIS = [f"https://example.org/{label}" for label in range(20)]
LABELS = [f"label {label}" for label in range(20)]


@pytest.fixture
def port(bench: Bench) -> Iterator[int]:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    answer = ranking(load_saved_model(bench.store, record), URIS, LABELS)
    with server(0, answer, 3) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield int(served.server_address[1])
        served.shutdown()
        thread.join()


def ask(port: int, body: str | bytes, path: str = "/suggest", method: str = "POST", **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_the_answer_is_what_annif_reads(port: int) -> None:
    status, answer = ask(port, urlencode({"text": "a chair", "project": "any"}))
    assert status == 200
    assert [(hit["uri"], hit["label"]) for hit in answer["results"]] == list(zip(URIS, LABELS, strict=True))[:3]
    scores = [hit["score"] for hit in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)


def test_a_request_says_how_many_labels(port: int) -> None:
    assert len(ask(port, urlencode({"text": "", "limit": "7"}))[1]["results"]) == 7
    assert len(ask(port, urlencode({"text": "", "limit": "1000"}))[1]["results"]) <= 20


@pytest.mark.parametrize(
    ("body", "asked", "said"),
    [
        ("", {}, "no `text`"),
        (b"text=%ff%fe", {}, None),
        (b"\xff\xfe=1", {}, "no form in UTF-8"),
        ("text=a&limit=-1", {}, "limit: found '-1'"),
        ("text=a&limit=²", {}, "limit: found"),
        ("&".join(f"a{i}=1" for i in range(20)), {}, "no form in UTF-8"),
        ("text=a", {"path": "/other"}, "expected /suggest"),
        ("", {"method": "GET"}, "expected POST"),
        ("text=a", {"Host": "rebound.example:80"}, "expected the host 127.0.0.1"),
        ("text=a", {"Content-Length": "99999999999"}, "found a body of 99999999999 bytes"),
        ("text=a", {"Content-Length": "-1"}, "found a body of -1 bytes"),
    ],
)
def test_a_bad_request_gets_one_line_and_the_next_an_answer(port: int, body: Any, asked: Any, said: str | None) -> None:
    body = body.encode() if isinstance(body, str) else body
    status, answer = ask(port, body, **asked)
    if said is not None:
        assert 400 <= status < 500
        assert said in answer["error"]
    assert ask(port, "text=a")[0] == 200


def test_a_taken_port_is_one_line(port: int) -> None:
    with pytest.raises(XMCBenchError, match=rf"^port {port}: .*expected a free one"):
        server(port, lambda *_: [], 1)


def test_a_project_of_annif_has_every_label(bench: Bench, tmp_path: Path) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    project, vocabulary = write_project(tmp_path / "annif", record, URIS, LABELS, "http://127.0.0.1:1/suggest", 5)
    read = configparser.ConfigParser()
    read.read(project)
    (section,) = read.sections()
    assert dict(read[section]) | {"name": "", "vocab": ""} == {
        "name": "",
        "vocab": "",
        "language": "en",
        "backend": "http",
        "endpoint": "http://127.0.0.1:1/suggest",
        "limit": "5",
    }
    rows = [line.split("\t") for line in vocabulary.read_text().splitlines()]
    assert rows == [[f"<{uri}>", label] for uri, label in zip(URIS, LABELS, strict=True)]


def test_uris_that_do_not_fit_are_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    file = bench.root / "uris.txt"
    for content, said in (
        ("a\nb\n", "found 2 URIs, expected one for each of 20 labels"),
        ("a b\n" * 20, "uris.txt:1:"),
    ):
        file.write_text(content)
        assert said in told(capsys, "serve", record.key, "--uris", file, *bench.places)[2]
