"""What options and other files say in place of what stands in a suite file, and that they were the ones to say it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.yaml_lines import Located, Steps, parse_value, read


def bring_in(located: Located, key: str, folder: Path) -> None:
    """Where `key` holds the name of a file in `folder`, put what that file says in its place."""
    name = located.data.get(key)
    if isinstance(name, str):
        file = read(folder / name)
        located.data[key] = file.data
        located.places |= {(key, *steps): place for steps, place in file.places.items()}


def put_encoder(located: Located, name: str) -> None:
    """Another encoder wherever one is named; how it is pooled, and what else is said of it, stays."""
    where, data = f"--encoder {name}", located.data
    if "encoder" in (data.get("sweep") or {}):
        raise XMCBenchError(f"{where}: the suite sweeps over encoders; --set sweep.encoder=[...] replaces them")
    methods = data.get("methods")
    entries: dict[str, Any] = methods if isinstance(methods, dict) else {}
    holders: list[tuple[Steps, Any]] = [((), data), (("settings",), data.get("settings"))]
    holders += [(("methods", label), entry) for label, entry in entries.items()]
    named = [
        (steps, holder["encoder"]) for steps, holder in holders if isinstance(holder, dict) and "encoder" in holder
    ]
    for steps, said in named or [((), None)]:
        put(located, (*steps, "encoder"), {**said, "name": name} if isinstance(said, dict) else name, where)


def override(located: Located, setting: str, keys: Iterable[str]) -> None:
    """Put `key=value` of a `--set` in its place; one that a file with these `keys` could not hold is an error."""
    key, equals, text = setting.partition("=")
    where = f"--set {setting}"
    if not equals or not key:
        raise XMCBenchError(f"{where}: expected key=value")
    steps = _steps(key, located.data)
    if steps[0] not in keys:
        known = {*keys, *(f"settings.{name}" for name in located.data.get("settings") or ())}
        raise UnknownNameError("key", key, known, where)
    if steps[0] == "methods" and (len(steps) < 3 or steps[1] not in located.data.get("methods", {})):
        labels = located.data.get("methods") or {}
        raise UnknownNameError("method label", str(steps[1] if len(steps) > 1 else ""), map(str, labels), where)
    put(located, steps, parse_value(text, where), where)


def _steps(key: str, data: Any) -> tuple[str, ...]:
    """The way a dotted key leads through `data`; a name that has dots itself is found whole."""
    steps: list[str] = []
    while key:
        known = [name for name in data if key == name or key.startswith(f"{name}.")] if isinstance(data, dict) else []
        step = max(known, key=len) if known else key if steps == ["sweep"] else key.split(".")[0]
        steps.append(step)
        key = key[len(step) + 1 :]
        data = data.get(step) if isinstance(data, dict) else None
    return tuple(steps)


def put(located: Located, steps: Steps, value: Any, where: str) -> None:
    """Put `value` at `steps`, said by `where`."""
    data = located.data
    for i, step in enumerate(steps[:-1]):
        if data.get(str(step)) is None:
            data[str(step)] = {}
            located.places[steps[: i + 1]] = where
        data = data[str(step)]
        if not isinstance(data, dict):
            raise XMCBenchError(f"{where}: {'.'.join(map(str, steps[: i + 1]))} is {data!r}, which holds no keys")
    data[str(steps[-1])] = value
    located.places = {place: line for place, line in located.places.items() if place[: len(steps)] != steps}
    located.places[steps] = where
