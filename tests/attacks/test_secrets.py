"""Secrets are planted in ten places; none of them is found in the store, on the screen, or with a tracker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import install_own
from fakes.bench import Bench, Heard

from xmcbench.errors import SHOWN, XMCBenchError, shown
from xmcbench.errors.secrets import beginning, end_of_file, is_secret, redact, redacted
from xmcbench.runs.local import redact_file
from xmcbench.runs.progress import tracked
from xmcbench.suite.suite import load_suite
from xmcbench.teachers.teacher import Pairs, TeacherError
from xmcbench.tracking import Tracker
from xmcbench.trial.record import Record, Status
from xmcbench.trial.trial import Trial
from xmcbench_plugins.teachers.endpoint import Endpoint

VARIABLES = {
    "OPENAI_BASE_URL": "http://planted:PlantedUrl1@127.0.0.1:9/v1",
    "OPENAI_API_KEY": "PlantedKey2",
    "HF_TOKEN": "PlantedToken3",
    "MLFLOW_TRACKING_URI": "https://user:PlantedTracking4@host",
    "AWS_SECRET_ACCESS_KEY": "PlantedAmazon5",
}
TEXTS = [
    *VARIABLES.values(),
    "Authorization: Bearer PlantedHeader6",
    '{"api_key": "PlantedJson7", "x-token": "PlantedJson8"}',
    "GET http://host/v1?api_key=PlantedQuery9&model=x",
    "/home/me/ghp_PlantedPath10/results",
    "sk-PlantedShape11abcdefghij",
    "eyJhbGciOiJPlanted12.eyJzdWIiOiJ.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nPlanted13\n-----END RSA PRIVATE KEY-----",
    "postgresql+psycopg://me:PlantedDatabase14@db/x",
    "password=Planted15",
]

LEAKY = f"""
import os, subprocess, sys, warnings
from xmcbench import hookimpl
from xmcbench_fakes import Ok

TEXTS = {TEXTS!r}

class Leaky(Ok):
    name = "leaky"
    def fit(self, train, run):
        for text in TEXTS:
            print(text)
            print(text, file=sys.stderr)
            warnings.warn(text)
            os.write(1, (text + "\\n").encode())
        subprocess.run([sys.executable, "-c", "import os; print(os.environ['HF_TOKEN'])"], check=True)
        raise RuntimeError("; ".join(TEXTS))

@hookimpl
def register_methods(register):
    register(Leaky)
"""


class Diary(Tracker):
    """Remembers the records that it receives."""

    name = "diary"
    summary = "a list"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.received: list[str] = []

    def end(self, trial: Trial, record: Record) -> None:  # noqa: ARG002
        self.received.append(record.model_dump_json())


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
def test_no_secret_reaches_store_screen_or_tracker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install_own(bench.root / "site", monkeypatch, "leaky", LEAKY)
    runner = bench.runner(bench.suite(["leaky"]), command=["xmcbench", "run", *TEXTS])
    diary = Diary(bench.store.root)
    with tracked(Heard(), [diary]) as display:
        (record,) = runner.run(runner.plan(), display)
    sys.modules.pop("leaky_plugin", None)
    assert record.status is Status.ERROR
    assert record.failure is not None
    assert record.failure.message.count("***") >= 10
    files = [path for path in bench.store.root.rglob("*") if path.is_file()]
    assert {"record.json", "trial.json", "log.txt"} <= {path.name for path in files}
    shown = capfd.readouterr()
    for text in (*(path.read_text(errors="replace") for path in files), *diary.received, shown.out, shown.err):
        assert "Planted" not in text
    assert bench.store.record(record.key) == record


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_cut_inside_a_secret_leaves_no_part_of_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmcbench.errors.secrets.READ", 1000)  # less to read at each of so many cuts
    log, line = tmp_path / "log.txt", "a line of the log\n"
    log.write_text(f"{line * 200}first {text}\n{'x' * 60}\n")
    hidden = [word for word in re.findall(r"\w*Planted\w*", text) if word not in redact(text)]
    assert hidden
    for length in range(20, 90 + len(text)):
        shown = end_of_file(log, length), beginning(f"{'y' * 60} {text}", length)
        assert max(map(len, shown)) <= length
        assert not [word for word in hidden if word[-5:] in shown[0] or word[:5] in shown[1]]


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_value_in_a_message_is_stripped_of_secrets_before_it_is_cut(text: str) -> None:
    hidden = [word for word in re.findall(r"\w*Planted\w*", text) if word not in redact(text)]
    for length in range(SHOWN, SHOWN - 2 - len(text), -1):
        value = f"{'y' * length} {text} {'y' * SHOWN}"
        for message in (shown(value), shown(value, quote=False), shown([value]), shown({"a": [value, value]})):
            assert not [word for word in hidden if word[:5] in message]


@pytest.mark.usefixtures("secrets")
def test_an_endpoint_does_not_repeat_the_password_of_its_address() -> None:
    config = Endpoint.Config(name="openai", model="m", retries=0, timeout=2.0)
    ids = np.zeros(1, np.int64)
    with pytest.raises(TeacherError, match=r"at http://\*\*\*@127\.0\.0\.1:9/v1/ does not answer") as caught:
        list(Endpoint(config).ask(Pairs(["document"], ["label"], ids, ids)))
    assert "Planted" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["settings: {api_key: Planted1}", "name: sk-Planted2abcdefghij", "name: http://a:Planted3@b"]
)
def test_a_suite_with_a_secret_is_refused_without_repeating_it(bench: Bench, text: str) -> None:
    path = bench.root / "suite.yaml"
    path.write_text(f"datasets: [fake-20]\n{text}\n")
    with pytest.raises(XMCBenchError, match=rf"^{path}:2: .*found a secret, expected it in an environment") as caught:
        load_suite(path, bench.root)
    assert "Planted" not in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["settings.api_key=Planted1", "name=sk-Planted2abcdefghij", "name=[http://a:Planted3@b"]
)
def test_a_set_with_a_secret_is_refused_without_repeating_it(bench: Bench, setting: str) -> None:
    with pytest.raises(XMCBenchError, match=r"^--set ") as caught:
        load_suite(bench.suite(["fake-ok"]), bench.root, sets=[setting])
    assert "Planted" not in str(caught.value)


@pytest.mark.usefixtures("secrets")
def test_errors_on_the_screen_hold_no_secret(bench: Bench) -> None:
    command = [sys.executable, "-c", "from xmcbench.cli import main; main()", "run", "/sk-Planted1abcdefghij/x.yaml"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=bench.root)
    assert run.returncode == 2
    assert "***" in run.stderr
    assert "Planted" not in run.stderr


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("text", TEXTS)
def test_each_kind_of_secret_is_masked_once_and_for_all(text: str) -> None:
    assert "Planted" not in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "encoder_tokens: 4000, batch_tokens=2048, key_variable: OPENAI_API_KEY",
        "expected a key in the environment variable OPENAI_API_KEY",
        "unknown token 'x' (did you mean 'y'?)",
        "https://example.org/a@b and results/trials/0123456789abcdef",
        "basic settings; the bearer of it",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_nested_settings_are_masked_by_name() -> None:
    nested = {"request": [{"api_key": "x", "tokens": 3, "url": "http://a:b@c"}], "n": 1.5}
    assert redacted(nested) == {"request": [{"api_key": "***", "tokens": 3, "url": "http://***@c"}], "n": 1.5}
    assert not is_secret("token", 5)


def test_a_file_without_a_secret_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"fine\xff\n")
    before = path.stat().st_ino
    redact_file(path)
    assert path.stat().st_ino == before
    path.write_bytes(b"\xff http://a:b@c\n")
    redact_file(path)
    assert path.read_bytes() == b"\xff http://***@c\n"
    redact_file(tmp_path / "none")


@pytest.mark.parametrize(
    "part", ["a.", "eyJ-", "sk-", "a://a:", "token ", "x", "-----BEGIN ", "Bearer ", "a_", "token="]
)
def test_masking_a_long_text_ends(part: str) -> None:
    """A pattern that takes quadratic time would need hours here."""
    assert redact(part * (1_000_000 // len(part)))
