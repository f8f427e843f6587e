"""Pydantic's errors in the terms of a file: the place, what was found, what was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from xmcbench.errors import XMCBenchError, shown, suggest
from xmcbench.files.yaml_lines import KeyPath, YamlDocument, dotted

M = TypeVar("M", bound=BaseModel)
MOST = 100  # problems of one file: nobody reads more, and each takes time


class Problems:
    """The problems of a file, collected so that its author can fix all of them at once."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self._lines: dict[str, None] = {}  # an ordered set: a sweep meets the same problem many times

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, path: KeyPath, message: str) -> None:
        """Add a problem of the value at `path`. Raises XMCBenchError with all of them where there are too many."""
        name = f" {dotted(path)}:" if path else ""
        self._lines[f"{self._document.where(path)}:{name} {message}"] = None
        if len(self._lines) >= MOST:
            self._lines[f"{self._document.name}: more than {MOST - 1} problems; the first are above"] = None
            self.check()

    def note(self, path: KeyPath, look_up: Any, *arguments: Any) -> Any:
        """Return `look_up(*arguments)`. An XMCBenchError is added as a problem at `path`, and None returned."""
        try:
            return look_up(*arguments)
        except XMCBenchError as problem:
            self.add(path, str(problem))
            return None

    def check(self) -> None:
        """Raise an XMCBenchError with one line for each problem, if there is any."""
        if self._lines:
            raise XMCBenchError("\n".join(self._lines))


def validate(
    model: type[M], values: Mapping[str, Any], path: KeyPath, origins: Mapping[str, KeyPath], problems: Problems
) -> M | None:
    """Build `model` from `values`, or add each problem to `problems` and return None.

    Types are strict, except that integers pass for floats and lists for tuples, which JSON cannot tell apart. `path`
    is the place of the values in the file; `origins` holds the paths of those that come from another place.
    """
    try:
        return model.model_validate_json(json.dumps(values), strict=True)
    except XMCBenchError as problem:
        problems.add(path, str(problem))
    except ValidationError as invalid:
        for place, message in _explain(model, values, invalid).items():
            start = origins.get(str(place[0]), (*path, place[0])) if place else path
            problems.add((*start, *place[1:]), message)
    return None


def _explain(model: type[BaseModel], values: Any, invalid: ValidationError) -> dict[KeyPath, str]:
    """One message for each place. The errors of a union's members are joined: `expected A or B`."""
    messages: dict[KeyPath, str] = {}
    for error in islice(invalid.errors(include_url=False), MOST):
        place = _place(values, error["loc"])
        kind, text = error["type"], error["msg"].removeprefix("Value error, ")
        if kind == "too_short":
            text = f"expected at least {error['ctx']['min_length']}"
        if kind == "extra_forbidden":
            messages[place] = "unknown key" + suggest(str(place[-1]), _fields(model, values, place[:-1]))
        elif kind == "missing":
            messages[place] = f"missing key {shown(str(error['loc'][-1]))}"
        elif place in messages and ", expected " in messages[place]:
            messages[place] += " or " + text.removeprefix("Input should be ")
        elif isinstance(error["input"], dict) and kind in ("value_error", "assertion_error"):
            messages[place] = text
        else:
            messages[place] = f"found {shown(error['input'])}, " + text.replace("Input should", "expected", 1).replace(
                "expected be ", "expected ", 1
            )
    return messages


def _place(values: Any, location: tuple[int | str, ...]) -> KeyPath:
    """The part of pydantic's location that leads through `values`: a location also names members of unions."""
    place: list[int | str] = []
    for step in location:
        inside = step in values if isinstance(values, dict) else isinstance(values, list) and step in range(len(values))
        if inside:
            place.append(step)
            values = values[step]
    return tuple(place)


def _fields(model: type[BaseModel] | None, values: Any, place: KeyPath) -> list[str]:
    """The keys that are known at `place` in a model. A model with `kind_of` names the subclass that `values` are of."""
    entry = False  # whether the next key is the name of an entry of a mapping, whose keys are those of the model
    for step in place:
        values = values[step]
        if entry:
            entry = False
        elif isinstance(step, str):
            field = model.model_fields.get(step) if model else None
            members = (field.annotation, *get_args(field.annotation)) if field else ()  # of a union, or itself
            entry = any(get_origin(member) is dict for member in members)
            kinds = (kind for member in members for kind in (member, *get_args(member)))
            model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
            model = getattr(model, "kind_of", lambda _, known=model: known)(values)
    return list(model.model_fields) if model else []
