"""Names that come from files of others: a terminal does not obey them, a spreadsheet does not compute them."""

from __future__ import annotations

import ast
import csv
import io
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fakes.bench import Bench

import xmcbench.cli
from xmcbench.cli import main
from xmcbench.files.csv_text import cell, csv_text
from xmcbench.reporting.notes import EVERY
from xmcbench.runs.terminal import _PLAIN, _replace_signs, echo, escaped
from xmcbench.trial.record import Record

ROOT = Path(__file__).parents[2]
EVIL = "=cmd|' /C calc'!A0\x1b[31m\x07\u202egnp\u2066\x9b2J\r"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def evil(bench: Bench) -> Record:
    """A record whose label a terminal would obey; its trial is stored beside a sound one."""
    records = bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True)
    found = records["rare"]
    changed = found.model_copy(
        update={"trial": found.trial.model_copy(update={"label": EVIL, "seed": 1}), "ended": "2027\x00\x1b"}
    )
    bench.store.write_record(changed)
    return changed


def output(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    with suppress(SystemExit):
        main(list(arguments))
    said = capfd.readouterr()
    return said.out + said.err


def test_no_command_prints_what_a_terminal_obeys(
    bench: Bench, evil: Record, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "own\x1b[2J\u202e"
    folder.mkdir(parents=True)
    texts = {"trn": '{"title": "a", "target_ind": [0]}\n' * 3, "tst": '{"title": "b", "target_ind": [0]}\n'}
    for name, content in {**texts, "lbl": '{"title": "red\\u001b[31m\\u202e"}\n'}.items():
        (folder / f"{name}.json").write_text(content)
    places = ("--store", str(bench.store.root), "--data", str(tmp_path / "data"))
    commands = [
        ("analyse", evil.key, *places), ("rescore", *places), ("show", evil.key, *places[:2]),
        ("show", evil.key, "--format", "json", *places[:2]), ("compare", evil.key, "ok", *places),
        ("leaderboard", *places[:2]), ("leaderboard", "--format", "markdown", *places[:2]),
        ("show", EVIL, *places[:2]), ("rescore", "nothing\x1b[31m", *places),
        ("datasets", "list", *places[2:]), ("datasets", "show", folder.name, *places[2:]),
        ("tables", str(bench.root / "suite.yaml"), *places[:2]), ("run", "no\x1bsuch.yaml"),
    ]  # fmt: skip
    for command in commands:
        said = output(capfd, *command)
        assert said, command
        assert not OBEYED.search(said), (command, OBEYED.search(said))
        assert "Traceback" not in said, command


@pytest.mark.usefixtures("evil")
def test_a_warning_is_escaped(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    (bench.store.root / "trials" / "a\x1b[31mb").mkdir()
    (bench.store.root / "trials" / "a\x1b[31mb" / "record.json").write_text("{")
    assert logging.lastResort is not None
    said = output(capfd, "rescore", "ok", "--store", str(bench.store.root), "--data", str(bench.root / "data"))
    record = logging.LogRecord("", logging.WARNING, "", 0, "a\x1b[31m", (), None)
    assert not OBEYED.search(said + logging.lastResort.format(record))


def test_what_is_no_control_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("Ärmel\t日本\n👩‍🔬 कर्म", ""):
        assert escaped(text) == text
    echo("a\x1bb", err=True)
    assert capsys.readouterr().err == "a\\u001bb\n"


def test_only_the_terminal_prints() -> None:
    """A command that prints in another way would print what a terminal obeys."""
    for path in Path(xmcbench.cli.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {ast.unparse(call) for call in calls}
        assert path.name == "terminal.py" or not names & {"typer.echo", "click.echo", "print"}, path


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start: str) -> None:
    assert cell(f"{start}SUM(A1)") == f"'{start}SUM(A1)"
    (row,) = csv.reader(io.StringIO(csv_text([[f"{start}x", -0.5, "-0.5", "+1e-3", "a", None]])))
    assert row == [f"'{start}x".replace("\r", " "), "-0.5", "-0.5", "+1e-3", "a", ""]


def test_every_csv_of_a_command_is_without_formulas(
    evil: Record, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    places = ("--store", str(bench.store.root), "--data", str(bench.root / "data"))
    texts = [output(capfd, command, *names, *places[: 2 * count], "--format", "csv") for command, names, count in (
        ("leaderboard", (), 1), ("compare", (evil.key, "ok"), 2), ("analyse", (evil.key,), 2),
    )]  # fmt: skip
    for text in texts:
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not [cell for cell in cells if cell.startswith("=")], text
    assert sum("'=cmd" in text for text in texts) >= 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "suite.yaml", "--store", "a\udcff"),
        ("run", "suite.yaml", "--set", "name=\udcff"),
        ("predict", "ok", "--text", "\udcff"),
    ],
)
def test_an_argument_that_is_no_text_is_a_line(capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    said = output(capfd, *arguments)
    assert said == f"error: argument {arguments[-1]!r}: found bytes that are not UTF-8, expected text\n"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "cp437", "shift_jis"])
def test_a_terminal_that_lacks_a_sign_gets_another(encoding: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "xmcbench"]
    commands = [
        ("leaderboard", "--store", "leaderboard/measured", "--dataset", "lf-tate-titles-16k"), ("run", "--help"),
        ("datasets", "show", "≈日本", "--data", str(tmp_path)),
    ]  # fmt: skip
    for arguments, code in zip(commands, (0, 0, 2), strict=True):
        done = subprocess.run([*command, *arguments], capture_output=True, env=environment, check=False, cwd=ROOT)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        assert done.stdout + done.stderr


def test_no_two_marks_look_alike_where_they_are_replaced() -> None:
    shown = {mark: _PLAIN[ord(mark)] for mark in EVERY}
    assert len(set(shown.values())) == len(EVERY)
    assert not any(sign.isalnum() for sign in shown.values())  # "1.7" and a mark must not read as "1.71"
    error = UnicodeEncodeError("latin-1", "a≈Δ日", 1, 4, "")
    assert _replace_signs(error) == ("~d?", 4)
