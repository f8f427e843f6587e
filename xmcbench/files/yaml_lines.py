"""YAML whose values remember their lines, so that an error can name the line.

Files may come from anyone. Their size, depth and number of values are bounded (values behind aliases count each time),
and only text, numbers, booleans, null, lists and mappings are read. Every fault is an XMCBenchError of one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from xmcbench.errors import XMCBenchError, shown
from xmcbench.files.regular import read_regular
from xmcbench.files.secrets import is_secret, redact

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
    """YAML 1.1 as people write it: `1e-4` is a number, and a date is text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.flat: set[yaml.Node] = set()  # mappings whose `<<` is resolved; an alias leads here again


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


class _ExactLoader(_Loader):
    """Leaves decimal numbers as text, so that `52.20` keeps its zero."""


_ExactLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}float"]
    for letter, resolvers in _Loader.yaml_implicit_resolvers.items()
}


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
    reader = _Reader(str(path), text, _ExactLoader if exact else _Loader)
    value = reader.value()
    if not isinstance(value, dict):
        found = "nothing" if value is None else "no mapping"
        raise XMCBenchError(f"{path}: found {found}, expected keys and values")
    return YamlDocument(str(path), value, reader.places)


def parse_value(text: str, where: str) -> Any:
    """The value of a `--set key=value`, read as YAML. `where` names the option in errors."""
    if len(text) > MAX_BYTES:
        raise XMCBenchError(f"{where}: longer than {MAX_BYTES:,} characters")
    try:
        return _Reader("", text, _Loader).value()
    except XMCBenchError as problem:
        reason = re.sub(r"^:\d+: ", "", str(problem))
        raise XMCBenchError(redact(f"{where}: {shown(text)} is not a YAML value: {reason}")) from None


class _Reader:
    """Builds the value of a YAML text and notes the place of each part of it."""

    def __init__(self, name: str, text: str, loader: type[_Loader]) -> None:
        self.places: dict[KeyPath, str] = {}
        self._name, self._text, self._loader = name, text, loader
        self._has_secret = redact(text) != text  # for the whole text at once: most have none

    def value(self) -> Any:
        """The value of the text; None for an empty one."""
        try:
            self._check_size()
            loader = self._loader(self._text)
            try:
                node = loader.get_single_node()
                if node is None:
                    return None
                self._check_keys(node, (), set())
                return self._build(loader, node, (), ())
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as problem:
            line = f":{problem.problem_mark.line + 1}" if problem.problem_mark else ""
            raise XMCBenchError(f"{self._name}{line}: not YAML: {problem.problem}") from None
        except yaml.YAMLError as problem:
            raise XMCBenchError(f"{self._name}: not YAML: {' '.join(str(problem).split())}") from None

    def _check_size(self) -> None:
        """Raise for a text with too many or too deeply nested values. Its events are counted, nothing is built."""
        count = 0
        sizes: dict[str, int] = {}  # values below each anchor
        opened: list[tuple[str | None, int]] = []  # anchor and first value of each list or mapping around an event
        for event in yaml.parse(self._text, Loader=self._loader):
            if isinstance(event, yaml.AliasEvent):
                count += sizes.get(event.anchor or "", 1)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, start = opened.pop()
                if anchor:
                    sizes[anchor] = count - start
            elif isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.CollectionStartEvent):
                    opened.append((event.anchor, count))
                elif event.anchor:
                    sizes[event.anchor] = 1
                count += 1
            place = f"{self._name}:{event.start_mark.line + 1}" if event.start_mark else self._name
            if len(opened) > MAX_DEPTH:
                raise XMCBenchError(f"{place}: values are nested more than {MAX_DEPTH} deep")
            if count > MAX_VALUES:
                raise XMCBenchError(f"{place}: more than {MAX_VALUES:,} values, counting those behind aliases")

    def _build(self, loader: _Loader, node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> Any:
        """The value of `node`, which is at `path` and inside the nodes `above`."""
        place = self._place(node)
        self.places.setdefault(path, place)
        if node in above:
            raise XMCBenchError(f"{place}: a value that holds itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(loader, node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            raise XMCBenchError(f"{place}: found the tag {shown(node.tag)}, expected a plain list or mapping")
        if isinstance(node, yaml.SequenceNode):
            return [self._build(loader, item, (*path, i), (*above, node)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        if node not in loader.flat:
            loader.flatten_mapping(node)  # resolves `<<`; the mapping's own keys come last and win
            loader.flat.add(node)
        data: dict[str, Any] = {}
        for key, value in node.value:
            self.places[(*path, key.value)] = self._place(key)
            data[key.value] = self._build(loader, value, (*path, key.value), (*above, node))
        return data

    def _scalar(self, loader: _Loader, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """Text, a finite number, a boolean or None."""
        start = f"{self._place(node)}: {dotted(path)}: " if path else f"{self._place(node)}: "
        if node.tag not in _SCALARS:
            name = node.tag.replace(_TAG, "!!")
            raise XMCBenchError(f"{start}found the tag {shown(name)}, expected text, a number, true, false or null")
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise XMCBenchError(
                f"{start}found a number of {len(node.value):,} characters, expected at most {MAX_DIGITS}"
            )
        try:
            value = loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            kind = node.tag.removeprefix(_TAG)
            raise XMCBenchError(f"{start}found {shown(node.value)}, expected a value of type {kind}") from None
        if isinstance(value, float) and not abs(value) <= MAX_NUMBER:
            raise XMCBenchError(f"{start}found {shown(node.value)}, expected a finite number of at most {MAX_NUMBER:g}")
        if isinstance(value, int) and abs(value) >= MAX_INTEGER:
            raise XMCBenchError(f"{start}found {shown(node.value)}, expected a whole number of at most 64 bits")
        if self._has_secret and is_secret(str(path[-1]) if path else "", value):
            raise XMCBenchError(f"{start}found a secret, expected it in an environment variable and not in a file")
        return value

    def _check_keys(self, node: yaml.Node, path: KeyPath, checked: set[yaml.Node]) -> None:
        """Raise for a mapping in `node` with a key that is no text, or with the same key twice."""
        if node in checked or isinstance(node, yaml.ScalarNode):
            return
        checked.add(node)
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._check_keys(item, (*path, i), checked)
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise XMCBenchError(f"{self._place(key)}: found a list or mapping as a key, expected text")
            if key.value in seen:
                raise XMCBenchError(f"{self._place(key)}: {dotted((*path, key.value))}: the key is there twice")
            seen.add(key.value)
            self._check_keys(value, (*path, key.value), checked)

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def dotted(path: KeyPath) -> str:
    """A key path as people write it: `methods.dexml.lr`, `seeds[0]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return shown(text, quote=False)
