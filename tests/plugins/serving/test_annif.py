"""What Annif 1.4.3 asks a server through its backend `http`, and the project that it is given for that.

The stub sends what Annif's commands send: `suggest` and `index` a document each, `eval` many, all of them ask for the
state of the project before; metadata columns of a document become fields of the form.
"""

from __future__ import annotations

import configparser
import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from commands import told
from fakes.bench import Bench
from reporting.made import record

from plugins.serving.running import served
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.serving.annif import write_project
from xmcbench_plugins.serving.commands import about, ranking
from xmcbench_plugins.serving.predict import trained

URIS = [f"https://example.org/{label}" for label in range(20)]
LABELS = [f"label {label}" for label in range(20)]


@dataclass
class Annif:
    """The requests of a project with the backend `http`."""

    settings: Mapping[str, str]
    known: Mapping[str, str]  # labels of the vocabulary by URI

    def _send(self, method: str, url: str, fields: Mapping[str, str] | None = None) -> Any:
        place = urlsplit(url)
        headers = {"User-Agent": "Annif/1.4.3", "Accept": "*/*", "Content-Type": "application/x-www-form-urlencoded"}
        with closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)) as connection:
            connection.request(method, place.path or "/", urlencode(fields or {}), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            return json.loads(answer.read())

    def state(self) -> Any:
        return self._send("GET", self.settings["endpoint"].replace("/suggest", ""))

    def suggest(self, text: str, metadata: Mapping[str, str] | None = None) -> dict[str, float]:
        """Scores by label; a hit with the score 0 is no suggestion."""
        columns = {f"metadata_{name}": value for name, value in (metadata or {}).items()}
        fields = {"text": text, **columns, "project": "any", "limit": self.settings["limit"]}
        hits = self._send("POST", self.settings["endpoint"], fields)["results"]
        return {self.known[hit["uri"]]: hit["score"] for hit in hits if hit["score"] > 0}


def test_suggest_eval_and_index_are_answered(bench: Bench, tmp_path: Path) -> None:
    own = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    model = trained(own.key, None, bench.store.root, bench.root / "data")
    with served(ranking(model, URIS), k=3) as port:
        written = write_project(tmp_path, own, URIS, LABELS, "fi", f"http://127.0.0.1:{port}/suggest", 5)
        settings, known = project(tmp_path)
        annif = Annif(settings, known)
        assert annif.state()["is_trained"] is True
        suggested = annif.suggest("a label")
        assert list(suggested) == LABELS[:5]
        columns = {f"column {at}": "ä" * at for at in range(40)}
        assert annif.suggest("a label", columns) == suggested
        documents = [f"label {at}" for at in range(30)]
        assert all(len(annif.suggest(text)) == 5 for text in documents)
    assert written[0] == "annif load-vocab --language fi xmcbench-fake-20 projects.d/xmcbench-fake-20-ok.tsv"
    assert written[1] == "annif suggest xmcbench-fake-20-ok DOCUMENT.txt"
    assert datetime.fromisoformat(about(model)["modification_time"]).tzinfo is not None


def project(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The settings and the vocabulary that Annif reads in a folder."""
    read = configparser.ConfigParser()
    (config,) = (folder / "projects.d").glob("*.cfg")
    read.read(config)
    (section,) = read.sections()
    assert section == config.stem
    rows = [line.split("\t") for line in config.with_suffix(".tsv").read_text().splitlines()]
    return dict(read[section]), {uri[1:-1]: label for uri, label in rows}


def write(folder: Path, port: int = 1) -> list[str]:
    return write_project(
        folder, record("ok", dataset="fake-20"), URIS, LABELS, "en", f"http://127.0.0.1:{port}/suggest", 5
    )


def test_a_project_has_every_label(tmp_path: Path) -> None:
    write(tmp_path)
    settings, known = project(tmp_path)
    assert settings == {
        "name": "fake-20 ok",
        "language": "en",
        "backend": "http",
        "vocab": "xmcbench-fake-20",
        "endpoint": "http://127.0.0.1:1/suggest",
        "limit": "5",
    }
    assert known == dict(zip(URIS, LABELS, strict=True))


@pytest.mark.parametrize("other", ["projects.cfg", "projects.toml", "vocabulary.tsv", "projects.d/own.cfg"])
def test_a_file_of_the_user_is_never_touched(tmp_path: Path, other: str) -> None:
    path = tmp_path / other
    path.parent.mkdir(exist_ok=True)
    path.write_text("[mine]\n")
    for port in (1, 2):  # the second start replaces what the first wrote
        commands = write(tmp_path, port)
        assert path.read_text() == "[mine]\n"
        assert all(
            ("--projects projects.d" in command) == (other in ("projects.cfg", "projects.toml")) for command in commands
        )
    if other != "projects.d/own.cfg":
        assert project(tmp_path)[0]["endpoint"] == "http://127.0.0.1:2/suggest"


@pytest.mark.parametrize("ending", ["cfg", "tsv"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_file_that_was_edited_or_was_there_is_not_replaced(tmp_path: Path, ending: str, begun: bool) -> None:
    if begun:
        write(tmp_path)
    path = tmp_path / "projects.d" / f"xmcbench-fake-20-ok.{ending}"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("transform=limit(1000)\n")
    before = path.read_bytes()
    with pytest.raises(XMCBenchError, match=r"found a file that xmcbench did not write, or that was edited"):
        write(tmp_path)
    assert path.read_bytes() == before


def test_a_project_needs_a_language(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"].key
    code, _, error = told(capsys, "serve", key, "--annif", tmp_path / "annif", *bench.places)
    assert (code, error.count("\n")) == (2, 1)
    assert "does not say the language of its label texts, expected --language CODE" in error
    assert not (tmp_path / "annif").exists()
