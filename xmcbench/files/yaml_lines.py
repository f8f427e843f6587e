"""YAML whose values remember their lines, and what a model says of them: an error names file, line and key.

Files may come from anyone. Their size, depth and number of values are bounded (values behind aliases count each time),
and only text, numbers, booleans, null, lists and mappings are read. Every fault is an XMCBenchError of one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from xmcbench.errors import XMCBenchError, shown, suggest
from xmcbench.errors.secrets import is_secret, redact
from xmcbench.files.regular import read_regular

KeyPath = tuple[str | int, ...]  # the keys that lead from the top of a file to a value: ("methods", "dexml", "lr")

MAX_BYTES = 4_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_DIGITS = 100  # characters of a number
MAX_INTEGER = 2**64
MAX_NUMBER = 1e24  # no record holds a larger one

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null")}
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}


class _Loader(yaml.CSafeLoader):  # libyaml: eight times as fast
    """YAML 1.1 as people write it: `1e-4` is a number, and a date is text. Notes the place of each value."""

    def __init__(self, name: str, text: str, exact: bool) -> None:
        super().__init__(text)
        self.places: dict[KeyPath, str] = {}
        self._name, self._exact = name, exact
        self._path: KeyPath = ()
        self._count = 0
        self._has_secret = redact(text) != text  # for the whole text at once: most have none
        self._flat: set[yaml.Node] = set()  # mappings whose `<<` is resolved; an alias leads here again

    def build(self, node: yaml.Node, path: KeyPath = (), above: tuple[yaml.Node, ...] = ()) -> Any:
        """The value of `node`, which is at `path` and inside the nodes `above`."""
        place = self._place(node)
        self.places.setdefault(path, place)
        if node in above:
            raise XMCBenchError(f"{place}: a value that holds itself")
        self._count += 1
        _check_size(place, len(above), self._count)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            raise XMCBenchError(f"{place}: found the tag {shown(node.tag)}, expected a plain list or mapping")
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), (*above, node)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        self._path = path
        self.flatten_mapping(node)
        data: dict[str, Any] = {}
        for key, value in node.value:
            self.places[(*path, key.value)] = self._place(key)
            data[key.value] = self.build(value, (*path, key.value), (*above, node))
        return data

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve `<<`; the mapping's own keys come last and win. Raise for a key that is no text, or there twice."""
        if node in self._flat:
            return
        self._flat.add(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise XMCBenchError(f"{self._place(key)}: found a list or mapping as a key, expected text")
            if key.value in seen:
                raise XMCBenchError(f"{self._place(key)}: {dotted((*self._path, key.value))}: the key is there twice")
            seen.add(key.value)
        super().flatten_mapping(node)
        self._count += len(node.value)
        _check_size(self._place(node), 0, self._count)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """Text, a finite number, a boolean or None."""
        if self._exact and node.tag == f"{_TAG}float":
            node.tag = f"{_TAG}str"  # `52.20` keeps its zero
        if node.tag not in _SCALARS:
            name = node.tag.replace(_TAG, "!!")
            raise self._refused(node, path, f"the tag {shown(name)}", "text, a number, true, false or null")
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            length = f"a number of {len(node.value):,} characters"
            raise self._refused(node, path, length, f"at most {MAX_DIGITS}")
        try:
            value = self.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            kind = node.tag.removeprefix(_TAG)
            raise self._refused(node, path, shown(node.value), f"a value of type {kind}") from None
        if isinstance(value, float) and not abs(value) <= MAX_NUMBER:
            raise self._refused(node, path, shown(node.value), f"a finite number of at most {MAX_NUMBER:g}")
        if isinstance(value, int) and abs(value) >= MAX_INTEGER:
            raise self._refused(node, path, shown(node.value), "a whole number of at most 64 bits")
        if self._has_secret and is_secret(str(path[-1]) if path else "", value):
            raise self._refused(node, path, "a secret", "it in an environment variable and not in a file")
        return value

    def _refused(self, node: yaml.Node, path: KeyPath, found: str, expected: str) -> XMCBenchError:
        """The error of a value, with its line and key."""
        key = f"{dotted(path)}: " if path else ""
        return XMCBenchError(f"{self._place(node)}: {key}found {found}, expected {expected}")

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def _check_size(place: str, depth: int, count: int) -> None:
    """Raise for a text with too many or too deeply nested values."""
    if depth > MAX_DEPTH:
        raise XMCBenchError(f"{place}: values are nested more than {MAX_DEPTH} deep")
    if count > MAX_VALUES:
        raise XMCBenchError(f"{place}: more than {MAX_VALUES:,} values, counting those behind aliases")


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


@dataclass
class YamlDocument:
    """The content of a file, and the place of each value: `file:line`, or the option that set it."""

    name: str
    data: dict[str, Any]
    places: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """The place of the value at `path`, or of the nearest value around it that has one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)


def read(path: Path, exact: bool = False) -> YamlDocument:
    """Read a mapping from `path`. With `exact`, decimal numbers stay text.

    Raises XMCBenchError, with the line, for a file that is not UTF-8, not YAML, too large, or not a mapping, and for a
    key that occurs twice.
    """
    content = read_regular(path, MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"{path}: not UTF-8 at byte {problem.start}") from None
    value, places = _read(str(path), text, exact)
    if not isinstance(value, dict):
        found = "nothing" if value is None else "no mapping"
        raise XMCBenchError(f"{path}: found {found}, expected keys and values")
    return YamlDocument(str(path), value, places)


def parse_value(text: str, where: str) -> Any:
    """The value of a `--set key=value`, read as YAML. `where` names the option in errors."""
    if len(text) > MAX_BYTES:
        raise XMCBenchError(f"{where}: longer than {MAX_BYTES:,} characters")
    try:
        return _read("", text)[0]
    except XMCBenchError as problem:
        reason = re.sub(r"^:\d+: ", "", str(problem))
        raise XMCBenchError(redact(f"{where}: {shown(text)} is not a YAML value: {reason}")) from None


def _read(name: str, text: str, exact: bool = False) -> tuple[Any, dict[KeyPath, str]]:
    """The value of a YAML text, None for an empty one, and the place of each part of it."""
    depth = count = 0
    try:
        # Before anything is built: values behind aliases are counted when these are.
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            count += isinstance(event, yaml.NodeEvent)
            _check_size(f"{name}:{event.start_mark.line + 1}" if event.start_mark else name, depth, count)
        loader = _Loader(name, text, exact)
        node = loader.get_single_node()
        return (None if node is None else loader.build(node)), loader.places
    except yaml.MarkedYAMLError as problem:
        line = f":{problem.problem_mark.line + 1}" if problem.problem_mark else ""
        raise XMCBenchError(f"{name}{line}: not YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise XMCBenchError(f"{name}: not YAML: {' '.join(str(problem).split())}") from None


def dotted(path: KeyPath) -> str:
    """A key path as people write it: `methods.dexml.lr`, `seeds[0]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return shown(text, quote=False)


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


def read_model(model: type[M], path: Path, exact: bool = False) -> M:
    """The content of a YAML file as a `model`; `exact` keeps decimal numbers as they are written.

    Raises `XMCBenchError` with file, line and key of each mistake.
    """
    return read_checked(model, path, exact)[0]


def read_checked(model: type[M], path: Path, exact: bool = False) -> tuple[M, YamlDocument, Problems]:
    """As `read_model`, with the document and what takes note of further problems."""
    document = read(path, exact)
    problems = Problems(document)
    content = validate(model, document.data, (), {}, problems)
    problems.check()
    assert content is not None
    return content, document, problems


def explained(model: type[BaseModel], values: Any, invalid: ValidationError) -> str:
    """What is wrong with values that stand within others, on one line: each key, what was found and expected."""
    return "; ".join(f"{dotted(place)}: {message}" for place, message in _explain(model, values, invalid).items())


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
