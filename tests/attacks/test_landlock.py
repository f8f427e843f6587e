"""The kernel refuses test files to a method, whichever program opens them; the record says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import install_own
from fakes.bench import Bench

from xmcbench.runs.file_guard import CACHE_VARIABLES
from xmcbench.runs.landlock import folders_above, forbid_reading
from xmcbench.trial.record import Status

PLUGIN = """
import subprocess
from pathlib import Path
from xmcbench import hookimpl
from xmcbench_fakes import Ok

class Copier(Ok):
    name = "copier"
    def fit(self, train, run):
        super().fit(train, run)
        for path in run.cache.glob("datasets/*/test_targets.*"):
            subprocess.run(["cp", str(path), str(run.checkpoint)], check=True)

class Writer(Ok):
    name = "writer"
    def fit(self, train, run):
        super().fit(train, run)
        for folder in (run.checkpoint, run.cache / "tokens"):
            (folder / "one").write_text("mine")
            (folder / "one").rename(run.checkpoint / "two")
            assert (run.checkpoint / "two").read_text() == "mine"

class Compiler(Ok):
    name = "compiler"
    class Config(Ok.Config):
        folders: tuple[str, ...] = ()
    def fit(self, train, run):
        super().fit(train, run)
        for name in self.config.folders:
            kernel = Path.home() / name / "kernels" / "one"
            kernel.parent.mkdir(parents=True)
            kernel.write_text("compiled")
            assert kernel.read_text() == "compiled"

@hookimpl
def register_methods(register):
    register(Compiler)
    register(Copier)
    register(Writer)
"""
# Forbids the files named on the command line, then reads them by several ways; prints what could be read.
READER = """
import os, subprocess, sys, threading
from pathlib import Path
from xmcbench.runs.landlock import forbid_reading

secret, open_file = Path(sys.argv[1]), Path(sys.argv[2])
assert forbid_reading([secret])
link, moved = secret.with_name("link"), open_file.with_name("moved")
found = []

def attempt(name, read):
    try:
        found.append(f"{name}: {read()}")
    except (OSError, subprocess.CalledProcessError):
        found.append(f"{name}: refused")

attempt("itself", secret.read_text)
attempt("by another program", lambda: subprocess.check_output(["cat", secret], text=True, stderr=subprocess.DEVNULL))
thread = threading.Thread(target=attempt, args=("in a thread", secret.read_text))
thread.start(); thread.join()
attempt("moved", lambda: (secret.rename(moved), moved.read_text()))
attempt("linked", lambda: (os.link(secret, moved), moved.read_text()))
link.symlink_to(secret)
attempt("by a symbolic link", link.read_text)
attempt("beside it", open_file.read_text)
print("\\n".join(found))
"""


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    probe = "import sys; from xmcbench.runs.landlock import *; sys.exit(not forbid_reading([Path(sys.executable)]))"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        pytest.skip("this kernel has no Landlock, or too old a version of it")


@pytest.fixture
def guarded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench with the plugin above, and a folder for temporary files which is not above the datasets."""
    install_own(bench.root / "site", monkeypatch, "opener", PLUGIN)
    (bench.root / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(bench.root / "temporary"))
    return bench


def test_no_way_to_a_forbidden_file_is_open(tmp_path: Path) -> None:
    secret, open_file = tmp_path / "a" / "b" / "secret", tmp_path / "a" / "c" / "open"
    for path in (secret, open_file):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    output = subprocess.check_output([sys.executable, "-c", READER, secret, open_file], text=True)
    ways = ("itself", "by another program", "in a thread", "moved", "linked", "by a symbolic link")
    assert output.splitlines() == [*(f"{way}: refused" for way in ways), "beside it: open"]
    assert secret.read_text() == "secret"


def test_nothing_to_forbid_restricts_nothing() -> None:
    assert not forbid_reading([])


def test_folders_above_are_those_of_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert folders_above([tmp_path / "link" / "file"]) == {tmp_path / "real", *(tmp_path / "real").parents}


def test_test_files_are_out_of_reach_of_other_programs(guarded: Bench) -> None:
    records = guarded.run(guarded.suite({"c": {"method": "copier"}, "w": {"method": "writer"}}))
    copier, writer = records["c"], records["w"]
    assert copier.status is Status.ERROR
    assert copier.failure is not None
    assert (copier.failure.type, copier.failure.stage) == ("CalledProcessError", "fit")
    assert "Permission denied" in (guarded.store.directory(copier.key) / "log.txt").read_text()
    assert writer.status is Status.OK, writer.failure
    assert writer.provenance["checks"]["test files"] == "Landlock, audit hook"


def test_a_simulated_teacher_reads_what_its_method_may_not(guarded: Bench) -> None:
    teacher = {"name": "annotated"}
    suite = guarded.suite({"a": {"method": "fake-asker", "teacher": teacher}}, track="zero-shot")
    record = guarded.run(suite)["a"]
    assert record.status is Status.OK, record.failure
    assert record.provenance["checks"]["test files"] == "Landlock, audit hook"


def test_folders_that_grow_are_not_restricted(guarded: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files are created above the datasets: Landlock would hide them from the method."""
    monkeypatch.setenv("TMPDIR", str(guarded.root))
    record = guarded.run(guarded.suite(["fake-ok"]))["ok"]
    assert record.provenance["checks"]["test files"] == "audit hook"
    assert os.environ["TMPDIR"] == str(guarded.root)


@pytest.mark.parametrize("named", [False, True])
def test_compilers_keep_what_they_compile_in_the_home(
    guarded: Bench, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Also where the datasets lie in the home, and the folders were not there before."""
    monkeypatch.setenv("HOME", str(guarded.root))
    for variable in ("XDG_CACHE_HOME", *CACHE_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    folders = [".nv", ".cupy", ".triton"] + [f".cache/{name}" for name in ("torch", "torch_extensions", "numba")]
    (guarded.root / ".cache").mkdir()
    if named:
        folders = [f"own-{name}" for name in CACHE_VARIABLES]
        for variable, folder in zip(CACHE_VARIABLES, folders, strict=True):
            monkeypatch.setenv(variable, str(guarded.root / folder))
    record = guarded.run(guarded.suite({"c": {"method": "compiler", "folders": folders}}))["c"]
    assert record.status is Status.OK, record.failure
    assert record.provenance["checks"]["test files"] == "Landlock, audit hook"


def test_a_dataset_with_a_card_of_its_own_is_trained_on_and_predicted(guarded: Bench) -> None:
    """Its folder is forbidden as a whole: the card in it is read before."""
    folder = guarded.root / "data" / "own"
    folder.mkdir(parents=True)
    rows = [{"uid": str(row), "title": f"text {row}", "target_ind": [row % 3]} for row in range(12)]
    for name, part in (("trn", rows[:8]), ("tst", rows[8:])):
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "lbl.json").write_text("".join(json.dumps({"title": f"label {label}"}) + "\n" for label in range(3)))
    (folder / "card.yaml").write_text("source: here\n")
    record = guarded.run(guarded.suite(["fake-ok"], datasets=["own"]))["ok"]
    assert record.status is Status.OK, record.failure
    assert record.provenance["checks"]["test files"] == "Landlock, audit hook"
