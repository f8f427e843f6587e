"""Pydantic's complaints in the words of who wrote the file: where, what was found, what was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from xmcbench.errors import XMCBenchError, suggest
from xmcbench.files.yaml_lines import KeyPath, Located, dotted

M = TypeVar("M", bound=BaseModel)


class Problems:
    """All that is wrong with a file, so that its writer mends it in one go."""

    def __init__(self, located: Located) -> None:
        self._located = located
        self._lines: dict[str, None] = {}  # a set that keeps its order: a sweep meets the same problem many times

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, steps: KeyPath, message: str) -> None:
        """Note that what stands at `steps` is wrong."""
        name = f" {dotted(steps)}:" if steps else ""
        self._lines[f"{self._located.where(steps)}:{name} {message}"] = None

    def note(self, steps: KeyPath, look_up: Any, *arguments: Any) -> Any:
        """The answer of a look-up; an error becomes a problem at `steps`, and the answer None."""
        try:
            return look_up(*arguments)
        except XMCBenchError as problem:
            self.add(steps, str(problem))
            return None

    def check(self) -> None:
        """Raise what was noted, a line each; do nothing where all was well."""
        if self._lines:
            raise XMCBenchError("\n".join(self._lines))


def validate(
    model: type[M], values: Mapping[str, Any], steps: KeyPath, origins: Mapping[str, KeyPath], problems: Problems
) -> M | None:
    """Build `model` from `values`, or note each problem and return None.

    Types are taken as written, except that whole numbers pass for floats and lists for tuples: what JSON cannot tell
    apart. `steps` leads to the values in the file, `origins` to those of them that stand elsewhere in it.
    """
    try:
        return model.model_validate_json(json.dumps(values), strict=True)
    except XMCBenchError as problem:
        problems.add(steps, str(problem))
    except ValidationError as invalid:
        for place, message in _explain(model, values, invalid).items():
            start = origins.get(str(place[0]), (*steps, place[0])) if place else steps
            problems.add((*start, *place[1:]), message)
    return None


def _explain(model: type[BaseModel], values: Any, invalid: ValidationError) -> dict[KeyPath, str]:
    """One message a place; the members of a union each complain, and are answered as `expected A or B`."""
    messages: dict[KeyPath, str] = {}
    for error in invalid.errors(include_url=False):
        place = _place(values, error["loc"])
        kind, text = error["type"], error["msg"].removeprefix("Value error, ")
        if kind == "extra_forbidden":
            messages[place] = "unknown key" + suggest(str(place[-1]), _fields(model, values, place[:-1]))
        elif kind == "missing":
            messages[place] = f"missing key {str(error['loc'][-1])!r}"
        elif place in messages and ", expected " in messages[place]:
            messages[place] += " or " + text.removeprefix("Input should be ")
        elif isinstance(error["input"], dict) and kind in ("value_error", "assertion_error"):
            messages[place] = text
        else:
            messages[place] = f"found {error['input']!r}, " + text.replace("Input should", "expected", 1).replace(
                "expected be ", "expected ", 1
            )
    return messages


def _place(values: Any, location: tuple[int | str, ...]) -> KeyPath:
    """The part of pydantic's location that is in the values: it also names members of unions."""
    place: list[int | str] = []
    for step in location:
        inside = step in values if isinstance(values, dict) else isinstance(values, list) and step in range(len(values))
        if inside:
            place.append(step)
            values = values[step]
    return tuple(place)


def _fields(model: type[BaseModel] | None, values: Any, place: KeyPath) -> list[str]:
    """The keys that are known at `place` in a model; one with a `kind_of` says which of its subclasses `values` are."""
    entry = False  # whether the next step is the name of an entry, whose keys are those of the model at hand
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
