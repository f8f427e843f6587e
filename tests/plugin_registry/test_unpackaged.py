"""Plugins without a package: a file that `run --plugin` names, and a class of a notebook."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import told
from fakes.bench import Bench

import xmcbench as xb
from xmcbench.plugins.registry import FILES, registry
from xmcbench.trial.record import Record, Status

FILE = """
from xmcbench import hookimpl
from xmcbench_fakes import Ok

class Mine(Ok):
    name = "mine"

@hookimpl
def register_methods(register):
    register(Mine)
"""

CELL = """
from xmcbench_fakes import Ok

class Cell(Ok):
    name = "cell"

    def fit(self, train, run):
        super().fit(train, run)
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(FILES, "")
    yield
    for name in [name for name in sys.modules if name.startswith("unpackaged_")]:
        del sys.modules[name]


def run_file(bench: Bench, capsys: pytest.CaptureFixture[str], source: str) -> Record:
    """The newest record of a suite with the method of a file, run by the command."""
    file = bench.root / "mine.py"
    file.write_text(source)
    suite = bench.suite({"mine": {"method": "mine"}})
    registry.cache_clear()  # as a new process
    code, _, errors = told(capsys, "run", suite, "--plugin", file, *bench.places)
    assert code == 0, errors
    return max(bench.store.records(), key=lambda record: (record.started, record.trial.distribution))


def test_a_file_is_run_in_workers_and_its_code_is_in_the_key(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_file(bench, capsys, FILE)
    assert first.status is Status.OK
    assert first.trial.distribution.startswith("unpackaged-")
    assert len(first.code_digest) == 64
    assert run_file(bench, capsys, FILE).key == first.key
    run_file(bench, capsys, FILE + "CHANGED = 1\n")
    keys = {record.key: record for record in bench.store.records()}
    assert len(keys) == 2
    assert len({record.code_digest for record in keys.values()}) == 2
    registry.cache_clear()
    os.environ[FILES] = ""
    shown = told(capsys, "show", first.key, "--store", bench.store.root)[1]
    assert first.trial.distribution in shown
    board = pytest.importorskip("xmcbench_plugins.board.acceptance")
    assert any("is unpackaged" in problem for problem in board.problems(first))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no driver')", "mine.py: RuntimeError: no driver"),
        ("x = 1", "it registers nothing"),
        (FILE.replace('"mine"', '"fake-ok"'), "method 'fake-ok' of unpackaged-"),
        (FILE.replace("register(Mine)", "register(3)"), "is not a subclass of xmcbench.Method"),
    ],
)
def test_a_broken_file_is_one_line(bench: Bench, source: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.root / "mine.py"
    file.write_text(source)
    code, _, errors = told(capsys, "run", bench.suite(["fake-ok"]), "--plugin", file, *bench.places)
    assert code == 2
    assert reason in errors
    assert errors.startswith("error: ")
    code, _, errors = told(capsys, "run", bench.suite(["fake-ok"]), "--plugin", bench.root / "none.py", *bench.places)
    assert (code, "none.py: No such file" in errors) == (2, True)


def test_a_class_of_a_notebook_is_run_and_changed_code_is_run_again(bench: Bench) -> None:
    suite = bench.suite({"cell": {"method": "cell"}})

    def run(source: str) -> Record:
        main = execute(source, bench.root)
        assert xb.register(main) is main
        board = xb.run(suite, data=bench.root / "data", store=bench.store.root)
        (record,) = board.measured.records.values()
        return record

    first = run(CELL)
    assert first.status is Status.OK
    assert first.trial.distribution.startswith("unpackaged-")
    assert run(CELL).key == first.key
    assert run(CELL + "        run.log.chosen_by = 'me'\n").key != first.key
    assert {record.trial.method for record in bench.store.records()} == {"cell"}


def execute(source: str, folder: Path) -> type[xb.Method]:
    """The class that a cell defines, whose lines are known as IPython makes them known."""
    import linecache

    name = f"<cell {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    assert folder.is_dir()
    found: type[xb.Method] = space["Cell"]  # type: ignore[assignment]
    return found


def test_a_notebook_runs_a_class_of_its_own(bench: Bench) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    suite = bench.suite({"cell": {"method": "cell"}})
    places = f"data={str(bench.root / 'data')!r}, store={str(bench.store.root)!r}"
    cells = [CELL, f"import xmcbench as xb\nxb.register(Cell)\nprint(xb.run({str(suite)!r}, {places}))"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(bench.root)}}).execute()
    printed = json.dumps(notebook.cells[1].outputs)
    assert "cell" in printed
    (record,) = bench.store.records()
    assert (record.status, record.trial.method) == (Status.OK, "cell")


def test_a_class_without_source_and_a_taken_name_are_errors(bench: Bench) -> None:  # noqa: ARG001
    space = {"__name__": "__main__"}
    exec(compile(CELL, "<nowhere>", "exec"), space)
    with pytest.raises(xb.XMCBenchError, match="its source cannot be read"):
        xb.register(space["Cell"])  # type: ignore[arg-type]
    taken = execute(CELL.replace('"cell"', '"fake-ok"'), Path.cwd())
    with pytest.raises(xb.XMCBenchError, match="already registered"):
        xb.register(taken)
