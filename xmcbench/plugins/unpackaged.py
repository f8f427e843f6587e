"""The code of a method that is a class of this process, as in a notebook: what its digest covers.

That is the text of the files or cells that hold its functions, and the functions and classes that these use, as far as
they are outside packages; and the values that they read, which another cell may have set. What they import from modules
is found in the text (`xmcbench/plugins/code.py`).
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from linecache import getlines
from types import CodeType, FunctionType
from typing import Any

from xmcbench.errors import XMCBenchError

PLAIN = (bool, int, float, complex, str, bytes, type(None))  # types of values whose text says all
GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")  # instructions that read a global


def source_of(method: type[Any]) -> str:
    """The code of a class of this process as text, which Python can parse. Raises XMCBenchError where it has none."""
    found = _Found(method)
    texts = ["".join(getlines(file)) for file in found.files]
    if not all(texts):
        raise XMCBenchError(f"{method.__name__}: its source cannot be read: write it into a file, for --plugin FILE")
    others = sorted({kind.__module__ for kind in method.__mro__} - found.modules)
    return "\n".join([*texts, *(f"import {name}" for name in others), f"PARTS = {found.parts!r}"])


class _Found:
    """What a class consists of in this process: files, and parts with their names."""

    def __init__(self, method: type[Any]) -> None:
        self.modules = {"__main__", method.__module__}
        self.files: dict[str, int] = {}  # with their places in the text
        self.parts: list[tuple[str, str]] = []
        self._seen: dict[int, Any] = {}  # by id; it holds them, so that no other gets an id of these
        self._take("", method)

    def _take(self, name: str, thing: Any) -> None:
        """Note what a name stands for, and all that it leads to."""
        if isinstance(thing, PLAIN):
            self.parts.append((name, repr(thing)))
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            self._take_function(name, thing)
        elif isinstance(thing, type):
            for kind in (kind for kind in thing.__mro__ if kind.__module__ in self.modules):
                self._take_each(kind.__qualname__, {key: value for key, value in vars(kind).items() if key[:2] != "__"})
        elif isinstance(thing, dict):
            self._take_each(name, thing)
        elif isinstance(thing, list | tuple):
            self._take_each(name, dict(enumerate(thing)))
        elif isinstance(thing, set | frozenset):
            self._take_each(name, dict(enumerate(sorted(thing, key=repr))))
        elif isinstance(thing, property):
            self._take_each(name, {"fget": thing.fget, "fset": thing.fset})
        elif isinstance(thing, cached_property | partial):
            self._take_each(name, {"func": thing.func, **vars(thing), "args": getattr(thing, "args", ())})
        elif hasattr(thing, "__func__") or hasattr(thing, "__wrapped__"):  # of a class, static, or cached
            self._take(name, getattr(thing, "__func__", None) or thing.__wrapped__)
        elif type(thing).__module__ in self.modules:
            self._take(name, type(thing))
            self._take_each(name, getattr(thing, "__dict__", {}))
        elif hasattr(thing, "tobytes"):  # an array
            self.parts.append((name, sha256(thing.tobytes()).hexdigest()))

    def _take_each(self, name: str, things: dict[Any, Any]) -> None:
        for key, thing in things.items():
            self._take(f"{name}.{key}", thing)

    def _take_function(self, name: str, function: FunctionType) -> None:
        """Note where a function is written, and what it reads: globals, enclosed variables and defaults."""
        if hasattr(function, "__wrapped__"):
            self._take(name, function.__wrapped__)
        if function.__globals__.get("__name__") not in self.modules:
            return
        code, known = function.__code__, function.__globals__
        place = self.files.setdefault(code.co_filename, len(self.files))
        self.parts.append((name, f"{place}:{code.co_firstlineno}"))
        self._take(name, function.__defaults__)
        self._take(name, function.__kwdefaults__)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing was written into it yet
                self._take(variable, cell.cell_contents)
        for variable in dict.fromkeys(_globals_of(code)):
            if variable in known:
                self._take(variable, known[variable])


def _globals_of(code: CodeType) -> Iterator[str]:
    """The names of the globals that a code reads, also in functions within it."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in GLOBAL)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)
