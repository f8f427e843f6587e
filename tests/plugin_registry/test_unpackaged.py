"""Plugins without a package: a file that `run --plugin` names, and a class of a notebook."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        ("raise RuntimeError('no\\ndriver')", "mine.py: RuntimeError: no driver\n"),
        ("x = 1", "mine.py: it registers nothing"),
        ("from . import other", "relative import with no known parent package; expected one file"),
        ("import beside_mine", "No module named 'beside_mine'; expected one file: a plugin of several is a package"),
        ("print('loud')\nimport nowhere_at_all", "No module named 'nowhere_at_all'\n"),
        (FILE.replace('"mine"', '"fake-ok"'), "method 'fake-ok' of unpackaged-"),
        (FILE.replace("register(Mine)", "register(3)"), "is not a subclass of xmcbench.Method"),
    ],
)
def test_a_broken_file_is_one_line(bench: Bench, source: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.root / "mine.py"
    file.write_text(source)
    (bench.root / "beside_mine.py").write_text("")
    code, output, errors = told(capsys, "run", bench.suite(["fake-ok"]), "--plugin", file, *bench.places)
    assert (code, output) == (2, "")
    assert reason in errors
    assert errors.removeprefix("loud\n").startswith("error: ")
    assert len(errors.removeprefix("loud\n").splitlines()) == 1
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


def test_a_broken_file_of_the_environment_is_listed_and_the_tool_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half = bench.root / "half.py"
    half.write_text(FILE.replace("register(Mine)", "register(Mine); register(3)"))
    monkeypatch.setenv(FILES, os.pathsep.join([str(half), str(bench.root / "none.py")]))
    registry.cache_clear()
    code, shown, _ = told(capsys, "methods")
    assert (code, "fake-ok" in shown, "half.py: TypeError: 3 is not a subclass" in shown) == (0, True, True)
    assert "none.py: No such file or directory" in shown
    assert "mine" not in {each.name for each in registry().all("method")}  # a file is taken whole or not at all
    assert told(capsys, "--help")[0] == 0


HELPERS = {
    "def scale(x):\n    return x * SCALE\n": "def scale(x):\n    return x + SCALE\n",
    "SCALE = 2.0\n": "SCALE = 3.0\n",
    "class Part:\n    size = 3\n    def grow(self):\n        return 1\n": "class Part:\n    size = 4\n",
    "DEPTHS = {'first': [1, 2]}\n": "DEPTHS = {'first': [1, 3]}\n",
}
USER = """
from xmcbench_fakes import Ok

class Cell(Ok):
    name = "cell"

    def fit(self, train, run):
        super().fit(train, run)
        self.popularity = scale(self.popularity) + Part.size + sum(each["first"][0] for each in [DEPTHS])
"""


@pytest.mark.parametrize("edited", HELPERS)
def test_what_other_cells_hold_of_a_class_is_in_its_digest(edited: str, bench: Bench) -> None:  # noqa: ARG001
    space: dict[str, Any] = {"__name__": "__main__"}

    def digest() -> str:
        registry().renew_classes()
        return registry().method("cell").origin.distribution

    for source in [*HELPERS, USER]:
        run_cell(source, space)
    xb.register(space["Cell"])
    first = digest()
    run_cell("other = 3\nscale = scale\n", space)
    assert digest() == first
    run_cell(HELPERS[edited], space)
    changed = digest()
    assert changed != first
    run_cell(edited, space)
    assert digest() == first


def test_an_edited_helper_trains_again_without_registering_again(bench: Bench) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    for source in [*HELPERS, USER]:
        run_cell(source, space)
    xb.register(space["Cell"])
    suite = bench.suite({"cell": {"method": "cell"}})

    def keys() -> set[str]:
        return set(xb.run(suite, data=bench.root / "data", store=bench.store.root).measured.records)

    first = keys()
    assert keys() == first
    run_cell("SCALE = 5.0\n", space)
    assert not keys() & first


def test_classes_that_one_function_makes_differ_by_what_they_enclose(bench: Bench) -> None:  # noqa: ARG001
    from xmcbench_fakes import Ok

    def made(scale: float) -> type[xb.Method]:
        class Made(Ok):  # type: ignore[misc, valid-type]
            name = "made"
            least = scale

            def fit(self, train: Any, run: Any) -> None:
                super().fit(train, run)
                self.popularity *= scale

        return Made

    def digest(scale: float) -> str:
        xb.register(made(scale))
        return registry().method("made").origin.distribution

    assert digest(1.0) == digest(1.0) != digest(2.0)


def test_a_class_without_functions_is_known_by_its_values(bench: Bench) -> None:  # noqa: ARG001
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("from xmcbench_fakes import Ok\nclass Short(Ok):\n    name = 'short'\n    size = 1", space)
    xb.register(space["Short"])
    first = registry().method("short").origin.distribution
    space["Short"].size = 2
    registry().renew_classes()
    assert registry().method("short").origin.distribution != first


@pytest.mark.parametrize("thing", [3, xb.Method, type("Nameless", (), {})])
def test_what_is_no_method_is_not_registered(thing: Any, bench: Bench) -> None:  # noqa: ARG001
    with pytest.raises(xb.XMCBenchError, match=r"TypeError: .*(is not a subclass of|does not define)"):
        xb.register(thing)


def execute(source: str, folder: Path) -> type[xb.Method]:
    """The class that a cell defines, whose lines are known as IPython makes them known."""
    space: dict[str, Any] = {"__name__": "__main__"}
    run_cell(source, space)
    assert folder.is_dir()
    found: type[xb.Method] = space["Cell"]
    return found


def run_cell(source: str, space: dict[str, Any]) -> None:
    """Run a cell, whose lines are known as IPython makes them known."""
    import linecache

    name = f"<cell {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)


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
