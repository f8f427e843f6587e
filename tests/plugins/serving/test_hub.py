"""`xmcbench hub push` against a hub on this machine that keeps what it is sent."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from commands import told
from fakes.bench import Bench

from xmcbench.trial.record import Record, decode

REPOSITORY = "me/some-model"
Push = Callable[..., tuple[int, str, str]]


@dataclass
class Hub:
    """What the hub was sent: the bodies of requests that make repositories, and files by name."""

    endpoint: str = ""
    tokens: set[str] = field(default_factory=set)
    made: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a request, as the hub's interface has it."""
        if path == "/api/repos/create":
            self.made.append(json.loads(body))
            return {"url": f"{self.endpoint}/{REPOSITORY}"}
        if path == f"/api/models/{REPOSITORY}/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            return {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        if path == f"/api/models/{REPOSITORY}/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.messages.append(line["value"]["summary"])
                else:
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"success": True, "commitOid": "1" * 40, "commitUrl": f"{self.endpoint}/{REPOSITORY}/commit/1"}
        return {}


@pytest.fixture
def hub() -> Iterator[Hub]:
    kept = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.tokens.add(self.headers.get("Authorization", ""))
            content = json.dumps(kept.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield kept
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def push(bench: Bench) -> Push:
    """Runs the command in a process of its own, which reads the hub's variables; exit code, stdout and stderr."""

    def push(*arguments: str, endpoint: str, token: str | None = "hf_own", **variables: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "xmcbench", "hub", "push", *arguments, *bench.places]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(bench.root / "hub"), **({"HF_TOKEN": token} if token else {})}
        done = subprocess.run(command, env=kept | own | variables, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return push


@pytest.fixture
def here(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Push:
    """Runs a command in this process, which the hub's variables keep from the network; exit code, stdout, stderr."""

    def here(*arguments: str) -> tuple[int, str, str]:
        command = ["hub", *arguments] if arguments[0] == "push" else arguments
        return told(capsys, *command, *bench.places)

    return here


def refused(answer: tuple[int, str, str]) -> str:
    """The error of a command that printed nothing else: one line."""
    code, printed, error = answer
    assert (code, printed) == (2, "")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def write(hub: Hub, folder: Path) -> None:
    """Write the repository's files into a folder, as a download does."""
    for name, content in hub.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def trained(bench: Bench) -> Record:
    return bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]


def test_the_model_is_uploaded_with_its_record_and_a_card(bench: Bench, hub: Hub, push: Push) -> None:
    record = trained(bench)
    code, printed, error = push("ok", REPOSITORY, "--private", endpoint=hub.endpoint)
    assert (code, printed) == (0, f"{hub.endpoint}/{REPOSITORY}\n"), error
    assert hub.tokens == {"Bearer hf_own"}
    assert [made["name"] for made in hub.made] == ["some-model"]
    assert hub.made[0].get("visibility") == "private" or hub.made[0]["private"] is True
    assert hub.messages == [f"fake-20/ok, {record.key}"]
    model = bench.store.directory(record.key) / "model"
    own = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert own
    assert hub.files.keys() == own.keys() | {"README.md", "record.json"}
    assert own.items() <= hub.files.items()
    published = decode(hub.files["record.json"])
    assert (published.key, published.metrics) == (record.key, record.metrics)
    assert str(bench.root) not in "".join(map(str, published.provenance["command"]))


@pytest.mark.parametrize("name", ["../../etc", "a/b/c", "user/na me", ""])
def test_a_name_that_is_none_of_a_repository_is_refused_in_a_dry_run_too(here: Push, name: str) -> None:
    code, _, error = here("push", "ok", name, "--dry-run")
    assert (code, f"found the repository {name!r}, expected one as user/name" in error) == (2, True), error


def test_the_card_says_what_the_record_says(bench: Bench, here: Push) -> None:
    record = trained(bench)
    code, printed, error = here("push", "ok", REPOSITORY, "--dry-run")
    assert (code, error) == (0, "")
    names, _, card = printed.partition("\n\n---\n")
    assert names.splitlines()[-2:] == ["record.json", "README.md"]
    metadata, _, text = card.partition("\n---\n")
    assert yaml.safe_load(metadata)["library_name"] == "xmcbench"
    for name, value in record.metrics.items():
        low, high = record.intervals[name]
        assert f"| {name} | {100 * value:.2f} | {100 * low:.2f} to {100 * high:.2f} |" in re.sub(" +", " ", text)
    assert "`fake-ok`" in text
    assert "`fake-20` with a budget of 5 steps and seed 0" in text
    (suite,) = re.findall(r"```yaml\n(.*?)\n```", text, flags=re.DOTALL)
    (bench.root / "again.yaml").write_text(suite)
    (planned,) = bench.runner(bench.root / "again.yaml").plan()
    assert planned.trial.key == record.key


def test_what_is_downloaded_predicts_as_the_card_says(bench: Bench, hub: Hub, push: Push, here: Push) -> None:
    record = trained(bench)
    assert push("ok", REPOSITORY, endpoint=hub.endpoint)[0] == 0
    asked = ("predict", record.key, "--text", "a label", "-k", "3")
    first = here(*asked)
    trial = bench.store.directory(record.key)
    shutil.rmtree(trial)
    write(hub, trial / "model")
    shutil.copy(trial / "model" / "record.json", trial)
    assert here(*asked) == first
    assert "label 0" in first[1]


def test_what_cannot_be_uploaded_is_a_line(
    bench: Bench, hub: Hub, push: Push, here: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = trained(bench)
    assert "expected the variable HF_TOKEN" in refused(push("ok", REPOSITORY, endpoint=hub.endpoint, token=None))
    closed = "http://127.0.0.1:9"
    assert f"{closed}: '{REPOSITORY}' was not uploaded: " in refused(push("ok", REPOSITORY, endpoint=closed))
    monkeypatch.setenv("HF_TOKEN", "hf_own")
    assert "found the repository 'a b', expected one as user/name" in refused(here("push", "ok", "a b"))
    assert "no trial is called 'okk' (known: fake-20/ok)" in refused(here("push", "okk", REPOSITORY))
    shutil.rmtree(bench.store.directory(record.key) / "model")
    assert "model: not there" in refused(here("push", "ok", REPOSITORY))
    assert not hub.files


def test_a_model_that_holds_training_texts_is_not_uploaded_unasked(
    bench: Bench, hub: Hub, push: Push, here: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    key = bench.run(bench.suite({"match": {"method": "tfidf-label"}}), debug=True)["match"].key
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, printed, error = here("push", key, REPOSITORY)
    assert (code, printed) == (2, "")
    assert "contains parts of the training texts: their words. " in error
    assert "it is public (--private makes it private)" in error
    assert error.endswith("error: nothing was uploaded: expected --yes, as there is nobody to ask\n")
    assert not hub.files
    code, _, error = push(key, REPOSITORY, "--yes", endpoint=hub.endpoint)
    assert (code, "words.json" in " ".join(hub.files)) == (0, True), error


@pytest.mark.long
def test_a_dual_encoder_opens_with_sentence_transformers_as_the_card_says(
    bench: Bench, hub: Hub, push: Push, here: Push, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    static = {"name": "static", "words": "random"}
    settings = {"method": "dexml", "encoder": static, "batch_size": 16, "negatives": "in-batch"}
    record = bench.run(bench.suite({"encoder": settings}, datasets=["catalog-1k"]), debug=True)["encoder"]
    code, _, error = push("encoder", REPOSITORY, endpoint=hub.endpoint)
    assert code == 0, error
    write(hub, bench.root / REPOSITORY)
    (program,) = re.findall(r"```python\n(.*?)```", hub.files["README.md"].decode(), flags=re.DOTALL)
    text = "souna zaizou boustou"
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, name: f"{repository}/{name}")
    exec(program.replace(REPOSITORY, str(bench.root / REPOSITORY)).replace("a text", text), {})
    shown = capsys.readouterr().out
    (answer,) = json.loads(here("predict", record.key, "--text", text, "-k", "5", "--format", "json")[1])
    assert shown.strip() == str([label["label"] for label in answer["labels"]])
