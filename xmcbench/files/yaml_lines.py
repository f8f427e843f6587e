"""YAML in which every key knows its line, so that an error can name it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from xmcbench.errors import XMCBenchError

KeyPath = tuple[str | int, ...]  # the keys from the top of a file to a value: ("methods", "dexml", "lr")


class _Loader(yaml.CSafeLoader):  # libyaml: eight times as fast
    """YAML 1.1 as people write it: `1e-4` is a number, and a date is text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.flat: set[yaml.Node] = set()  # mappings whose `<<` has been brought in; an alias comes here again


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


class _ExactLoader(_Loader):
    """Decimal numbers are left as they are written, so that `52.20` keeps its zero."""


_ExactLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for letter, resolvers in _Loader.yaml_implicit_resolvers.items()
}


@dataclass
class Located:
    """The content of a file, and where each part of it was said: a line, or the option that set it."""

    name: str
    data: dict[str, Any]
    places: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, steps: KeyPath) -> str:
        """`file:line` of the value at `steps`, or of the nearest thing around it that has a line."""
        while steps and steps not in self.places:
            steps = steps[:-1]
        return self.places.get(steps, self.name)


def read(path: Path, exact: bool = False) -> Located:
    """Read a mapping from `path`; `exact` leaves decimal numbers as text.

    Not UTF-8, not YAML, no mapping, or a key twice: an error with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"{path}: not UTF-8 at byte {problem.start}") from None
    except OSError as problem:
        raise XMCBenchError(f"{path}: cannot read: {problem.strerror}") from None
    loader = (_ExactLoader if exact else _Loader)(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            found = "nothing" if node is None else "no mapping"
            raise XMCBenchError(f"{path}: found {found}, expected keys and values")
        located = Located(str(path), {})
        located.data = _construct(loader, node, located, (), ())
        return located
    except yaml.MarkedYAMLError as problem:
        line = f":{problem.problem_mark.line + 1}" if problem.problem_mark else ""
        raise XMCBenchError(f"{path}{line}: not YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise XMCBenchError(f"{path}: not YAML: {problem}".replace("\n", " ")) from None
    finally:
        loader.dispose()


def parse_value(text: str, where: str) -> Any:
    """The value of a `--set key=value`, read as YAML."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError:
        raise XMCBenchError(f"{where}: {text!r} is not a YAML value") from None


def _construct(loader: _Loader, node: yaml.Node, located: Located, steps: KeyPath, above: tuple[yaml.Node, ...]) -> Any:
    """The value of `node`; notes the line of all that lies in it."""
    located.places.setdefault(steps, _place(located, node))
    if node in above:
        raise XMCBenchError(f"{_place(located, node)}: a value that holds itself")
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, located, (*steps, i), (*above, node)) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    if node not in loader.flat:
        _check_keys(node, located, steps)
        loader.flatten_mapping(node)  # brings in what `<<` names; keys of the mapping itself come last and win
        loader.flat.add(node)
    data: dict[str, Any] = {}
    for key, value in node.value:
        located.places[(*steps, key.value)] = _place(located, key)
        data[key.value] = _construct(loader, value, located, (*steps, key.value), (*above, node))
    return data


def _check_keys(node: yaml.MappingNode, located: Located, steps: KeyPath) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise XMCBenchError(f"{_place(located, key)}: found a list or mapping as a key, expected text")
        if key.value in seen:
            raise XMCBenchError(f"{_place(located, key)}: {dotted((*steps, key.value))}: the key is there twice")
        seen.add(key.value)


def _place(located: Located, node: yaml.Node) -> str:
    return f"{located.name}:{node.start_mark.line + 1}"


def dotted(steps: KeyPath) -> str:
    """The way to a value as people write it: `methods.dexml.lr`, `seeds[0]`."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
