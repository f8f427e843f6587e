"""A first fit and prediction of a method, watched: whether they end, what they print, which globals they change.

A global that changes is found by comparing what the plugin's modules, classes and functions hold before and after.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from types import FrameType, FunctionType, ModuleType
from typing import Any, TextIO, cast

from xmcbench_plugins.conformance.rules import BrokenRuleError

LONGEST = 120.0  # seconds of processors of a fit on tiny data, or of its predictions
PATIENCE = 10  # times as long by the wall clock: others may keep the machine busy, and who waits computes nothing
MOST_LINES = 100  # that they may print
CONTAINERS = (bytearray, dict, list, set)


@dataclass
class Smoke:
    """What was seen of one call."""

    cpu_seconds: float = 0.0
    printed: Counter[str] = field(default_factory=Counter)  # lines by place
    changed: list[str] = field(default_factory=list)  # globals, with their places


@contextmanager
def smoking(call: str, files: Collection[Path], modules: Collection[ModuleType]) -> Iterator[Smoke]:
    """Watch a call of a plugin whose code is in `files`. Raises BrokenRuleError where it does not end in time."""
    seen, before, begun = Smoke(), _held(modules), process_time()
    out, err = (cast("TextIO", _Counting(stream, seen.printed, files)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err), _ending(call, files):
        yield seen
    seen.cpu_seconds = process_time() - begun
    after = _held(modules)
    seen.changed = [place for place, content in after.items() if before.get(place, content) != content]


@contextmanager
def _ending(call: str, files: Collection[Path]) -> Iterator[None]:
    """Raise BrokenRuleError in the block once it has taken `LONGEST` seconds, or `PATIENCE` times as long in waiting.

    Only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, frame: FrameType | None) -> None:
        raise BrokenRuleError(f"{call} has not ended after {LONGEST:.0f} seconds ({_place(frame, files)})")

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, LONGEST), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE * LONGEST))
    earlier = [signal.signal(kind, end) for kind, _, _ in clocks]
    for _, timer, seconds in clocks:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (kind, timer, _), before in zip(clocks, earlier, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(kind, before)


class _Counting:
    """A stream that counts what is written to it by the plugin's lines, and passes little of it on."""

    def __init__(self, stream: TextIO, counts: Counter[str], files: Collection[Path]) -> None:
        self._stream, self._counts, self._files = stream, counts, files

    def write(self, text: str) -> int:
        lines = text.count("\n")
        if lines and (place := _place(sys._getframe(1), self._files)):
            self._counts[place] += lines
        if self._counts.total() <= MOST_LINES:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _place(frame: FrameType | None, files: Collection[Path]) -> str:
    """File and line of the innermost of the plugin's lines that a frame is called from; empty where none is."""
    while frame is not None:
        if (path := Path(frame.f_code.co_filename)) in files:
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _held(modules: Collection[ModuleType]) -> dict[str, Any]:
    """What globals, attributes of classes and defaults of parameters hold, by name and place: what may be compared."""
    held: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not name.startswith("__"):
                _note(held, module, name, value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for attribute, own in vars(value).items():
                    if attribute.startswith(("_abc", "__", "model_")):
                        continue
                    _note(held, module, f"{name}.{attribute}", own)
            elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
                _note(held, module, name, value)
    return held


def _note(held: dict[str, Any], module: ModuleType, name: str, value: Any) -> None:
    place = f"{name} ({Path(str(module.__file__)).name}:{_line(module, name)})"
    if isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        kept = [own for own in defaults if isinstance(own, CONTAINERS)]
        if kept:
            held[f"a default of {place}"] = [_content(own) for own in kept]
    elif isinstance(value, CONTAINERS) or (not isinstance(value, type | ModuleType) and not callable(value)):
        held[place] = _content(value)


def _content(value: Any) -> Any:
    """What tells whether a value has changed: the bytes of arrays, numbers and texts, which objects others hold."""
    if isinstance(value, dict):
        return [(id(key), id(own)) for key, own in value.items()]
    if isinstance(value, list | set | tuple):
        return [id(own) for own in value]
    if isinstance(value, str | bytes | bytearray | int | float | complex | type(None)):
        return value if not isinstance(value, bytearray) else bytes(value)
    if hasattr(value, "tobytes"):
        return hash(value.tobytes())
    return id(value)


def _line(module: ModuleType, name: str) -> int:
    """The line of the module that defines a name, of a class or at its top; 1 where it cannot be found."""
    lines = inspect.getsource(module).splitlines()
    last, start = name.rpartition(".")[2], 0
    if "." in name:
        owner = name.partition(".")[0]
        start = next((number for number, line in enumerate(lines) if line.startswith(f"class {owner}")), 0)
    for number, line in enumerate(lines[start:], start + 1):
        text = line.strip()
        if text.startswith((f"def {last}(", f"{last} =", f"{last}:")):
            return number
    return 1
