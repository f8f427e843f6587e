"""Overrides of a suite file: `--set`, `--dataset`, `--encoder` and included files. Errors name the option or file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.errors.secrets import is_secret, redact
from xmcbench.files.yaml_lines import KeyPath, YamlDocument, dotted, parse_value, read


def include(document: YamlDocument, key: str, folder: Path) -> None:
    """If the value of `key` is the name of a file in `folder`, replace it by the content of the file."""
    name = document.data.get(key)
    if isinstance(name, str):
        file = read(folder / name)
        document.data[key] = file.data
        document.places |= {(key, *key_path): place for key_path, place in file.places.items()}


def put_encoder(document: YamlDocument, name: str) -> None:
    """Replace the name of every encoder in the file; an encoder's other settings, such as pooling, stay."""
    where, data = f"--encoder {name}", document.data
    if "encoder" in _entries(data, "sweep"):
        raise XMCBenchError(f"{where}: the suite sweeps over encoders; --set sweep.encoder=[...] replaces them")
    for key_path, encoder in (_encoders(data) or {(): None}).items():
        value = {**encoder, "name": name} if isinstance(encoder, dict) else name
        put(document, (*key_path, "encoder"), value, where)


def allow_incomplete(document: YamlDocument) -> None:
    """Let every encoder in the file train where its weights are missing or do not fit: `--allow`."""
    for key_path, encoder in _encoders(document.data).items():
        settings = encoder if isinstance(encoder, dict) else {"name": encoder}
        put(document, (*key_path, "encoder"), {**settings, "incomplete": True}, "--allow")


def _encoders(data: dict[str, Any]) -> dict[KeyPath, Any]:
    """The encoders in a file by the place of what holds them: the file, its settings, its methods and their parts."""
    encoders: dict[KeyPath, Any] = {}

    def visit(key_path: KeyPath, tree: Any) -> None:
        if isinstance(tree, dict):
            if "encoder" in tree:
                encoders[key_path] = tree["encoder"]
            for name, inner in tree.items():
                if isinstance(inner, dict) and name != "encoder":
                    visit((*key_path, name), inner)

    visit((), {name: tree for name, tree in data.items() if name in ("encoder", "settings", "methods")})
    return encoders


def override(document: YamlDocument, setting: str, keys: Iterable[str]) -> None:
    """Apply `key=value` of a `--set`. Raises XMCBenchError if a file with these top-level `keys` cannot hold it."""
    key, equals, text = setting.partition("=")
    where = f"--set {redact(shown(setting, quote=False))}"
    if not equals or not key:
        raise XMCBenchError(f"{where}: expected key=value")
    key_path = _split(key, document.data)
    if key_path[0] not in keys:
        known = {*keys, *(f"settings.{name}" for name in _entries(document.data, "settings"))}
        raise UnknownNameError("key", key, known, where)
    labels = _entries(document.data, "methods")
    if key_path[0] == "methods" and (len(key_path) == 1 or key_path[1] not in labels):
        raise UnknownNameError("method label", "".join(key_path[1:2]), map(str, labels), where)
    if key_path[0] == "methods" and len(key_path) == 2:
        raise XMCBenchError(f"{where}: expected a setting of the method, as methods.{key_path[1]}.KEY=VALUE")
    value = parse_value(text, where)
    if is_secret(key_path[-1], value):
        raise XMCBenchError(f"{where}: found a secret, expected it in an environment variable")
    put(document, key_path, value, where)


def _entries(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping at a top-level key; empty if the file holds something else there."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


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


def put(document: YamlDocument, key_path: KeyPath, value: Any, where: str) -> None:
    """Put `value` at `key_path`; `where` is the place that error messages about it name."""
    data = document.data
    for i, step in enumerate(key_path[:-1]):
        if data.get(str(step)) is None:
            data[str(step)] = {}
            document.places[key_path[: i + 1]] = where
        data = data[str(step)]
        if not isinstance(data, dict):
            raise XMCBenchError(f"{where}: {dotted(key_path[: i + 1])} is {shown(data)}, which holds no keys")
    data[str(key_path[-1])] = value
    document.places = {place: line for place, line in document.places.items() if place[: len(key_path)] != key_path}
    document.places[key_path] = where
