"""Overrides of a suite file: `--set`, `--dataset`, `--encoder` and included files. Errors name the option or file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.yaml_lines import KeyPath, Located, dotted, parse_value, read


def include(located: Located, key: str, folder: Path) -> None:
    """If the value of `key` is the name of a file in `folder`, replace it by the content of the file."""
    name = located.data.get(key)
    if isinstance(name, str):
        file = read(folder / name)
        located.data[key] = file.data
        located.places |= {(key, *key_path): place for key_path, place in file.places.items()}


def put_encoder(located: Located, name: str) -> None:
    """Replace the name of every encoder in the file; an encoder's other settings, such as pooling, stay."""
    where, data = f"--encoder {name}", located.data
    if "encoder" in (data.get("sweep") or {}):
        raise XMCBenchError(f"{where}: the suite sweeps over encoders; --set sweep.encoder=[...] replaces them")
    methods = data.get("methods")
    entries: dict[str, Any] = methods if isinstance(methods, dict) else {}
    holders: list[tuple[KeyPath, Any]] = [((), data), (("settings",), data.get("settings"))]
    holders += [(("methods", label), entry) for label, entry in entries.items()]
    encoders = [
        (key_path, holder["encoder"])
        for key_path, holder in holders
        if isinstance(holder, dict) and "encoder" in holder
    ]
    for key_path, encoder in encoders or [((), None)]:
        value = {**encoder, "name": name} if isinstance(encoder, dict) else name
        put(located, (*key_path, "encoder"), value, where)


def override(located: Located, setting: str, keys: Iterable[str]) -> None:
    """Apply `key=value` of a `--set`. Raises XMCBenchError if a file with these top-level `keys` cannot hold it."""
    key, equals, text = setting.partition("=")
    where = f"--set {setting}"
    if not equals or not key:
        raise XMCBenchError(f"{where}: expected key=value")
    key_path = _split(key, located.data)
    if key_path[0] not in keys:
        known = {*keys, *(f"settings.{name}" for name in located.data.get("settings") or ())}
        raise UnknownNameError("key", key, known, where)
    if key_path[0] == "methods" and (len(key_path) < 3 or key_path[1] not in located.data.get("methods", {})):
        labels = located.data.get("methods") or {}
        raise UnknownNameError("method label", key_path[1] if len(key_path) > 1 else "", map(str, labels), where)
    put(located, key_path, parse_value(text, where), where)


def _split(key: str, data: Any) -> tuple[str, ...]:
    """The key path of a dotted key. A name in `data` that contains dots itself is one step of the path."""
    key_path: list[str] = []
    while key:
        known = [name for name in data if key == name or key.startswith(f"{name}.")] if isinstance(data, dict) else []
        step = max(known, key=len) if known else key if key_path == ["sweep"] else key.split(".")[0]
        key_path.append(step)
        key = key[len(step) + 1 :]
        data = data.get(step) if isinstance(data, dict) else None
    return tuple(key_path)


def put(located: Located, key_path: KeyPath, value: Any, where: str) -> None:
    """Put `value` at `key_path`; `where` is the place that error messages about it name."""
    data = located.data
    for i, step in enumerate(key_path[:-1]):
        if data.get(str(step)) is None:
            data[str(step)] = {}
            located.places[key_path[: i + 1]] = where
        data = data[str(step)]
        if not isinstance(data, dict):
            raise XMCBenchError(f"{where}: {dotted(key_path[: i + 1])} is {data!r}, which holds no keys")
    data[str(key_path[-1])] = value
    located.places = {place: line for place, line in located.places.items() if place[: len(key_path)] != key_path}
    located.places[key_path] = where
