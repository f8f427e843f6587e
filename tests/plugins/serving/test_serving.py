"""Labels over HTTP as clients ask for them, some of which leave, lie about their body or come all at once."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from commands import told
from fakes.bench import Bench

from plugins.serving.running import served
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.serving import server as serving
from xmcbench_plugins.serving.commands import about, ranking, uris_of
from xmcbench_plugins.serving.predict import trained
from xmcbench_plugins.serving.server import Batches, listen

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def echoed(texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
    """A model whose labels are the text itself, `k` times; it fails at one text."""
    if "fail" in texts:
        raise ValueError("a\nmodel")
    return [[{"uri": f"urn:{at}", "label": text, "score": 1 / (at + 1)} for at in range(k)] for text in texts]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(echoed) as port:
        yield port


def ask(port: int, body: str | bytes, path: str = "/suggest", method: str = "POST", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, {**FORM, **headers})
        response = connection.getresponse()
        return response.status, response.read().decode()


def labels(port: int, **form: object) -> list[str]:
    status, answer = ask(port, urlencode(form))
    assert status == 200, answer
    return [hit["label"] for hit in json.loads(answer)["results"]]


def test_the_answer_is_the_models(bench: Bench) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    model = trained(record.key, None, bench.store.root, bench.root / "data")
    names = [f"https://example.org/{label}" for label in range(20)]
    with served(ranking(model, names)) as port:
        hits = json.loads(ask(port, urlencode({"text": "a label"}))[1])["results"]
        assert len(json.loads(ask(port, "text=label&limit=1000")[1])["results"]) <= 20
    (known,) = model.rank(["a label"], 3)
    assert [(hit["uri"], hit["label"]) for hit in hits] == [(names[one["id"]], one["label"]) for one in known]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert about(model)["modification_time"] == record.ended


def test_a_request_says_how_many_labels(port: int) -> None:
    assert len(labels(port, text="")) == 3
    assert len(labels(port, text="", limit=7)) == 7


@pytest.mark.parametrize(
    ("body", "asked", "said"),
    [
        ("", {}, "no `text`"),
        (b"text=%ff%fe", {}, None),
        (b"\xff\xfe=1", {}, "no form in UTF-8"),
        ("text=a&limit=-1", {}, "limit: found '-1'"),
        ("text=a&limit=²", {}, "limit: found"),
        ("&".join(f"a{i}=1" for i in range(2000)), {}, "no form in UTF-8 of at most 1,000 fields"),
        ("text=a", {"path": "/other"}, "Not Found"),
        ("", {"method": "GET"}, "Method Not Allowed"),
        ("text=a", {"Host": "rebound.example:80"}, "Invalid host header"),
        ("text=a", {"Content-Length": "99999999999"}, "found a body of 99999999999 bytes"),
        ("text=a", {"Content-Length": "-1"}, "Invalid HTTP request"),
        ("text=fail", {}, "the model failed: a model"),
    ],
)
def test_a_bad_request_gets_one_line_and_the_next_an_answer(port: int, body: Any, asked: Any, said: str | None) -> None:
    body = body.encode() if isinstance(body, str) else body
    status, answer = ask(port, body, **asked)
    if said is not None:
        assert 400 <= status <= 500
        assert said in answer
        assert answer.count("\n") == 0
    assert labels(port, text="a") == ["a"] * 3


def test_a_body_of_unstated_length_has_a_limit(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LARGEST", 100)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/suggest", iter([b"text=", b"a" * 200]), FORM, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert labels(port, text="a") == ["a"] * 3


def test_a_connection_serves_many_requests(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.connect()
        first = connection.sock
        for text in ("a", "b", "c"):
            connection.request("POST", "/suggest", urlencode({"text": text, "limit": 1}), FORM)
            (hit,) = json.loads(connection.getresponse().read())["results"]
            assert hit["label"] == text
            assert connection.sock is first


def test_a_client_that_leaves_gets_nothing_and_prints_nothing(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    """It leaves before its body is whole, before the answer, or after half a line; no text is answered in part."""
    head = "POST /suggest HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    for content in (
        f"{head}Content-Length: 100\r\n\r\ntext=short",
        f"{head}Content-Length: 6\r\n\r\ntext=a",
        head[:30],
    ):
        for half in (True, False):
            with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as left:
                left.sendall(content.encode())
                if half:
                    left.shutdown(socket.SHUT_WR)
                    assert b"short" not in left.recv(1000)
    assert labels(port, text="a") == ["a"] * 3
    assert capfd.readouterr() == ("", "")


def test_two_hundred_at_once_lose_nothing() -> None:
    """All are sent while the model predicts for the first; each gets its own answer."""
    first_is_in, all_sent = threading.Event(), threading.Event()

    def rank(texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        first_is_in.set()
        all_sent.wait(60)
        return echoed(texts, k)

    with served(rank) as port:
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(200)]
        for at, connection in enumerate(connections):
            connection.request("POST", "/suggest", urlencode({"text": f"{at}", "limit": 1 + at % 2}), FORM)
        assert first_is_in.wait(60)
        all_sent.set()
        for at, connection in enumerate(connections):
            with closing(connection):
                hits = json.loads(connection.getresponse().read())["results"]
            assert [hit["label"] for hit in hits] == [f"{at}"] * (1 + at % 2)


def test_what_waits_together_is_one_question() -> None:
    asked: list[tuple[int, int]] = []

    def rank(texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        asked.append((len(texts), k))
        return echoed(texts, k)

    async def ask_all() -> list[Any]:
        batches = Batches(rank)
        asks = [batches.ask("fail" if at == 0 else f"{at}", 1 + at % 2) for at in range(600)]
        return await asyncio.gather(*asks, return_exceptions=True)

    found = asyncio.run(ask_all())
    assert sorted(asked) == [(44, 1), (44, 2), (256, 1), (256, 2)]
    assert sum(isinstance(one, ValueError) for one in found) == 256  # the batch of the text that fails
    answered = [(at, one) for at, one in enumerate(found) if not isinstance(one, ValueError)]
    assert all([hit["label"] for hit in one] == [f"{at}"] * (1 + at % 2) for at, one in answered)


def test_clients_in_threads_get_their_own_answers(port: int) -> None:
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda at: labels(port, text=at, limit=1), range(200)))
    assert found == [[str(at)] for at in range(200)]


def test_a_taken_port_is_one_line(port: int) -> None:
    with pytest.raises(XMCBenchError, match=rf"^port {port}: .*expected a free one"):
        listen(port)


KEYS = ("https://example.org/chair", "table 1", "urn:x:bed", "näher", "a<b", "sofa")
OWN = [f"urn:xmcbench:again:{key}" for key in ("table%201", "n%C3%A4her", "a%3Cb", "sofa")]
URIS = (KEYS[0], OWN[0], KEYS[2], *OWN[1:])


def test_keys_of_labels_and_the_language_survive_from_import_to_serving(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    data, rows, texts, out = (bench.root / name for name in ("data", "rows.csv", "labels.csv", "out"))
    names = "".join(f"{key},Name {at},Label {at}\n" for at, key in enumerate(KEYS))
    texts.write_text(f"key,label_de,label_en\n{names}", encoding="utf-8")
    lines = [f"text {at},{KEYS[at % 6]};{KEYS[(at + 1) % 6]}" for at in range(40)]
    rows.write_text("\n".join(["text,labels", *lines]), encoding="utf-8")
    of_labels = ("--label-texts", texts, "--language", "de")
    for command in (
        ("import", rows, "--name", "own", "--yes", *of_labels),
        ("export", "own", out),
        ("import", out, "--name", "again", "--format", "layout"),
    ):
        code, _, error = told(capsys, "datasets", *command, "--data", data)
        assert code == 0, error
    suite = bench.suite(["fake-ok"], datasets=["again"])
    record = bench.run(suite, debug=True)["ok"]
    model = trained(record.key, None, bench.store.root, data)
    assert (tuple(model.keys), model.language) == (KEYS, "de")
    printed = told(capsys, "predict", record.key, "--text", "text", "--format", "json", *bench.places)[1]
    labels = json.loads(printed)[0]["labels"]
    assert labels
    assert all(one["key"] == KEYS[one["id"]] and one["label"] == f"Name {one['id']}" for one in labels)
    (hits,) = ranking(model, uris_of(None, model))(["text"], 6)
    assert [hit["uri"] for hit in hits] == [URIS[one["id"]] for one in labels]


def test_uris_that_do_not_fit_are_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    file = bench.root / "uris.txt"
    for content, said in (
        ("a\nb\n", "found 2 URIs, expected one for each of 20 labels"),
        ("a b\n" * 20, "uris.txt:1:"),
    ):
        file.write_text(content)
        assert said in told(capsys, "serve", record.key, "--uris", file, *bench.places)[2]


def test_a_missing_package_is_one_line(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = told(capsys, "serve", "any", *bench.places)[2]
    assert re.search(r"^error: xmcbench serve needs uvicorn, .*pip install 'xmcbench\[serve\]'\n$", error)


def test_the_command_serves_until_it_is_interrupted(bench: Bench) -> None:
    key = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"].key
    with commanded(bench, key, "fake-20/ok") as port:
        assert len(labels(port, text="a label", limit=4)) == 4
        assert json.loads(ask(port, "", "/", "GET")[1])["name"] == "fake-20/ok"


def test_the_command_serves_fused_trials(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True)
    assert told(capsys, "fuse", "ok", "rare", "--as", "both", *bench.places)[0] == 0
    asked = ("predict", "both", "--text", "a label", "-k", "4", "--format", "json", *bench.places)
    (wanted,) = json.loads(told(capsys, *asked)[1])
    with commanded(bench, "both", "fake-20/both") as port:
        for _ in range(2):
            assert labels(port, text="a label", limit=4) == [one["label"] for one in wanted["labels"]]


@contextmanager
def commanded(bench: Bench, run: str, name: str) -> Iterator[int]:
    """The port at which `xmcbench serve` answers for a run without calibration, until it is interrupted."""
    command = [sys.executable, "-m", "xmcbench", "serve", run, "--port", "0", *bench.places]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline().startswith("scores are no probabilities: ")
            said = process.stderr.readline()
            found = re.fullmatch(rf"{name}: http://127.0.0.1:(\d+)/suggest; Ctrl\+C ends it\n", said)
            assert found, said
            yield int(found[1])
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "ended\n"
            assert process.wait() == 0
        finally:
            process.kill()
