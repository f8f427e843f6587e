"""Whether processes have ended, waiting until they have, and the files in their memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

PATIENCE = 300.0  # seconds: a test that passes waits only as long as it must, however busy the machine is
# The command, which hears an interrupt even where the tests were started in the background of a shell that ignores it.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from xmcbench.cli import main
main()
"""


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether `holds` comes true before patience ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def command_line(pid: int) -> str:
    """The command line of a process; empty if there is no such process."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def mapped(path: Path) -> int:
    """Bytes of mappings of a file that are in this process's memory."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.partition(":")[0].isidentifier():
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            size += 1024 * int(line.split()[1])
    return size
