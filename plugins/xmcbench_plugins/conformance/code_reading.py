"""What the code of a plugin says: places in its source, and settings that can be changed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def mutable_parts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Place and type of each list, set or model that is not frozen; free-form mappings are left out."""
    if isinstance(value, list | set):
        yield place, type(value).__name__
    elif isinstance(value, BaseModel):
        if not value.model_config.get("frozen"):
            yield place, f"{type(value).__name__} that is not frozen"
        for name in type(value).model_fields:
            yield from mutable_parts(getattr(value, name), f"{place}.{name}".lstrip("."))
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from mutable_parts(part, f"{place}[{number}]")


def file_of(module: Any) -> Path | None:
    return Path(found) if (found := getattr(module, "__file__", None)) else None


def first_place(files: Iterable[Path], found: Callable[[ast.AST], bool]) -> str:
    """The first place in the plugin's files where a node of the code is one that is meant, as "; x.py:3 may be why"."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if found(node):
                return f"; {path.name}:{getattr(node, 'lineno', 0)} may be why"
    return ""


def has_no_seed(node: ast.AST) -> bool:
    """Whether a node makes a generator without a seed, or asks for the time."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    bare = not node.args and not node.keywords
    return name in ("uuid4", "urandom") or (
        bare and name in ("default_rng", "Random", "RandomState", "time", "time_ns")
    )


def is_global_draw(node: ast.AST) -> bool:
    """Whether a node calls a function of a global generator, as `np.random.rand` or `random.shuffle`."""
    if not isinstance(node, ast.Call):
        return False
    module, _, name = ast.unparse(node.func).rpartition(".")
    return module in ("np.random", "numpy.random", "random") and name[:1].islower() and name != "default_rng"


def reads_environment(node: ast.AST) -> bool:
    """Whether a node of Python code is `os.getenv`, `os.environ.get` or a value of `os.environ`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "os.environ"
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.getenv", "os.environ.get", "os.environ.items")


def line_of_setting(kind: type[BaseModel], name: str) -> str:
    """File and line of a field of a model; empty where its source is not to be had."""
    for owner in kind.__mro__:
        if name in vars(owner).get("__annotations__", {}):
            with suppress(OSError, TypeError):
                lines, start = inspect.getsourcelines(owner)
                offset = next(
                    (n for n, line in enumerate(lines) if line.strip().startswith((f"{name}:", f"{name} :"))), 0
                )
                return f"{Path(inspect.getfile(owner)).name}:{start + offset}"
    return ""
