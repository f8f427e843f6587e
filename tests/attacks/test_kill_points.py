"""SIGKILL before changes of folders by `submit`, `submit --withdraw` and `analyse`: run again, they end as ever."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench
from plugins.board.test_submission import CLEAN

from xmcbench.cli import main

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree", "os.symlink")
COMMANDS = {"submit": "submit ok rare --to out", "analyse": "analyse ok rare -o out"}
COMMANDS |= {"withdraw": "submit rare --withdraw --to out"}
KILLS = 5  # of a command, spread over its changes


@pytest.fixture
def world(bench: Bench) -> Path:
    """A store with two trials that may be handed in."""
    for record in bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True).values():
        changed = record.model_copy(update={"provenance": {**record.provenance, **CLEAN}})
        bench.store.write_record(changed)
    return bench.root


def ended(work: Callable[[], Any]) -> int:
    """How a child process that does the work ends: its exit status, or less a signal."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            work()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(world: Path, command: str, kill_at: int = 0) -> int:
    """Run a command in a child process, which is killed before its change number `kill_at`, from 1.

    Without one the process notes how many changes it made in the file `changes` of the folder.
    """
    made = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal made
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or writes:
            made += 1
            if made == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        os.chdir(world)
        sys.addaudithook(count)
        try:
            main([*command.split(), "--store", "results", "--data", "data"])
        finally:
            if not kill_at:
                Path("changes").write_text(str(made))

    return ended(work)


def files(world: Path) -> dict[str, bytes]:
    """What the commands read and write, by path; without locks, and what a killed process has left for the next one.

    That is removed once it is older than a second (`tests/files/test_atomic.py`).
    """
    kept = [path for name in ("out", "results") for path in sorted((world / name).rglob("*")) if path.is_file()]
    found = {str(path.relative_to(world)): path for path in kept if path.suffix != ".partial"}
    return {name: path.read_bytes() for name, path in found.items() if "lock" not in name}


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_anywhere_is_run_again_to_the_same_end(world: Path, name: str) -> None:
    command, before = COMMANDS[name], world / "before"
    if name == "withdraw":
        assert run(world, COMMANDS["submit"]) == 0
        shutil.copytree(world / "out", before)
    results = {key: own for key, own in files(world).items() if key.startswith("results")}
    assert run(world, command) == 0
    expected, changes = files(world), int((world / "changes").read_text())
    points = sorted({1 + at * (changes - 1) // (KILLS - 1) for at in range(KILLS)})
    kills = 0
    for point in points:
        shutil.rmtree(world / "out")
        if before.exists():
            shutil.copytree(before, world / "out")
        code = run(world, command, point)
        assert code in (0, -signal.SIGKILL)  # 0: it ended first, as it had fewer left-over files to remove
        kills += code != 0
        assert results.items() <= files(world).items(), f"after a kill before change {point} of {changes}"
        assert run(world, command) == 0 or name == "withdraw"  # it finds nothing to withdraw where all was done
        assert files(world) == expected, f"after a kill before change {point} of {changes}"
    print(f"{name}: {kills} kills at {changes} changes")
    assert kills > 2
