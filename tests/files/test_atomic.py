"""What a process did not finish is removed by the next one that writes there, and by no other rule."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xmcbench.files.atomic import _exchange, _remove_unfinished, atomic_directory, atomic_write, beside

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks of files are POSIX")

WRITER = """
import sys, time
from pathlib import Path
from xmcbench.files.atomic import atomic_directory, atomic_write
with atomic_directory(Path("folder")) as made, atomic_write(Path("file")) as file:
    (made / "inner").write_text("half")
    file.write(b"half")
    print("begun", flush=True)
    time.sleep(3000)
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write(folder: Path) -> None:
    """Write a file, as a process does that has not written there before."""
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    _remove_unfinished.cache_clear()
    with atomic_write(folder / "new") as file:
        file.write(b"whole")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=tmp_path, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"begun\n"
    writer.send_signal(signal.SIGSTOP)
    write(tmp_path)
    assert len(names(tmp_path)) == 3  # a process that is stopped may go on
    writer.kill()
    writer.wait()
    write(tmp_path)
    assert names(tmp_path) == {"new"}


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    kept = {".own.0123456789abcdef", ".step-3.partial", "x.0123456789abcdef.partial", ".own.0123456789abcdeg.partial"}
    for name in kept:
        (tmp_path / name).write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    (tmp_path / ".link.0123456789abcdef.partial").symlink_to(elsewhere)
    young = beside(tmp_path / "young")
    write(tmp_path)
    young.write_text("made a moment ago")
    _remove_unfinished.cache_clear()
    with atomic_directory(tmp_path / "folder"):
        pass
    assert kept | {young.name, "elsewhere", "folder"} <= names(tmp_path)
    assert names(elsewhere) == {"file"}


def test_a_folder_takes_the_place_of_an_older_one_on_request(tmp_path: Path) -> None:
    for content, replace in (("first", False), ("second", False), ("third", True)):
        with atomic_directory(tmp_path / "folder", replace=replace) as made:
            (made / "file").write_text(content)
        assert names(tmp_path) == {"folder"}
        assert (tmp_path / "folder" / "file").read_text() == ("third" if replace else "first")


KILLED = """
import os, shutil, sys
from pathlib import Path
from xmcbench.files import atomic
if sys.argv[1] == "renames":
    atomic._exchange = lambda one, other: False
calls = []
def counted(call):
    def checked(*arguments, **options):
        calls.append(call)
        if len(calls) == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return call(*arguments, **options)
    return checked
with atomic.atomic_directory(Path("folder"), replace=True) as made:
    (made / "file").write_text("second")
    Path.rename, shutil.rmtree = counted(Path.rename), counted(shutil.rmtree)
"""


@pytest.mark.parametrize(
    ("way", "call", "left"),
    [("renames", 1, "first"), ("renames", 2, "first"), ("renames", 3, "second"), ("exchange", 1, "second")],
)
def test_a_killed_process_loses_no_older_folder(tmp_path: Path, way: str, call: int, left: str) -> None:
    with atomic_directory(tmp_path / "folder") as made:
        (made / "file").write_text("first")
    killed = subprocess.run([sys.executable, "-c", KILLED, way, str(call)], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    write(tmp_path)
    assert names(tmp_path) == {"new", "folder"}
    assert (tmp_path / "folder" / "file").read_text() == left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders")
def test_two_folders_are_exchanged_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert _exchange(tmp_path / "one", tmp_path / "other")
    assert (names(tmp_path / "one"), names(tmp_path / "other")) == ({"other"}, {"one"})
    assert not _exchange(tmp_path / "one", tmp_path / "missing")
