"""How far one follows a command along its calls: the files that it enters, and how often one must turn back.

A file is entered by the first call of a function in it. One turns back where that call stands in another file than the
one that was entered last. Only files of xmcbench and of its plugins count; imports, and what runs in other processes
and threads, do not.

python benchmarks/walks.py leaderboard --dataset lf-tate-titles-16k
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
OURS = (f"{ROOT}/xmcbench/", f"{ROOT}/plugins/")


class Walk:
    """The files of a walk, each with the file that holds the call by which it was entered."""

    def __init__(self) -> None:
        self.entered: dict[str, str] = {}

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter for every call."""
        file = frame.f_code.co_filename
        if event == "call" and file not in self.entered and file.startswith(OURS) and _is_call(frame):
            self.entered[file] = next((own for own in _files(frame.f_back) if own != file), "")

    @property
    def turned_back(self) -> list[str]:
        """The files that were entered from another file than the one that was entered last."""
        files = list(self.entered)
        return [file for last, file in pairwise(files) if self.entered[file] != last]


def _is_call(frame: FrameType) -> bool:
    """Whether a function is called, not the body of a module or class, or a function while a module is imported."""
    own = frame.f_code.co_name
    names = [each.f_code.co_name for each in _frames(frame.f_back)]
    return not own.startswith("<") and "<module>" not in names[:-1]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _files(frame: FrameType | None) -> Iterator[str]:
    return (each.f_code.co_filename for each in _frames(frame) if each.f_code.co_filename.startswith(OURS))


def walk(run: Callable[[], object]) -> Walk:
    """The walk of a function."""
    found = Walk()
    sys.setprofile(found.note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    from xmcbench.cli import main as command_line

    def run() -> None:
        try:
            with redirect_stdout(StringIO()):
                command_line(sys.argv[1:])
        except SystemExit as ended:
            if ended.code:
                raise

    found = walk(run)
    for file in found.entered:
        print(f"{'back, then ' * (file in found.turned_back)}{Path(file).relative_to(ROOT)}")
    print(f"{' '.join(sys.argv[1:])}: {len(found.entered)} files, turned back {len(found.turned_back)} times")


if __name__ == "__main__":
    main()
