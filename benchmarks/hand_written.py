"""Numbers and words of comparison that stand in a template's text, where no expression makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from words import ENDS, NUMERALS, SUPERLATIVES, WORDS

NOT_PROSE = re.compile(
    r"```.*?```|<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\)|<[^>\n]*>|https?://\S+"  # code, comments, targets of links, tags
    r'|\b[A-Za-z][A-Za-z-]*\d?@\d+|"[^"\n]*"',  # names of metrics, words that are spoken of
    re.DOTALL,
)
NUMBER = re.compile(rf"\d[\d.,]*|\b(?:{NUMERALS})s?\b", re.IGNORECASE)
COMPARISON = re.compile(rf"\b(?:{'|'.join((*WORDS, *SUPERLATIVES, *ENDS))})\b", re.IGNORECASE)


def typed(source: str, name: str = "") -> Iterator[str]:
    """A line for each number and each word of comparison that stands in a template's text, without an expression."""
    try:
        tree = jinja2.Environment(extensions=["jinja2.ext.do"]).parse(source)
    except jinja2.TemplateSyntaxError as problem:
        yield f"{name}:{problem.lineno}: {problem.message}"
        return
    for constant, parent in _constants(tree):
        if reason := _why_typed(constant.value, parent):
            yield f"{name}:{constant.lineno}: {constant.value!r}: {reason}"
    for at, line in enumerate(_prose(_text(tree, source)).splitlines(), start=1):
        for pattern, kind in ((NUMBER, "a number"), (COMPARISON, "a word of comparison")):
            for match in pattern.finditer(line):
                yield f"{name}:{at}: {match.group()!r}: {kind} without an expression"


def _constants(node: nodes.Node) -> Iterator[tuple[nodes.Const, nodes.Node]]:
    """The constants of expressions, each with what it is a part of."""
    for own in node.iter_child_nodes():
        if isinstance(own, nodes.Const):
            yield own, node
        yield from _constants(own)


def _why_typed(value: Any, parent: nodes.Node) -> str:
    """Why a constant may not stand in an expression: shown, a number, or a comparison that nothing checks."""
    if isinstance(value, float):
        return "a number in an expression"
    if isinstance(parent, nodes.Output):
        return "a value that no record has"
    if isinstance(value, str) and " " in value and NUMBER.search(_prose(value)):  # without a space it is a name
        return "a number in an expression"
    checked = isinstance(parent, nodes.Filter | nodes.Call | nodes.Tuple)
    if isinstance(value, str) and not checked and COMPARISON.search(value):
        return "a word of comparison without an expression"
    return ""


def _text(tree: nodes.Template, source: str) -> str:
    """The text of a template without its expressions, on its lines."""
    lines = [""] * (source.count("\n") + 1)
    for own in tree.find_all(nodes.TemplateData):
        for at, part in enumerate(own.data.split("\n"), start=own.lineno - 1):
            lines[at] += f"{part} "
    return "\n".join(lines)


def _prose(text: str) -> str:
    """The text without code, comments, targets of links and names of metrics; lines stay."""
    return NOT_PROSE.sub(lambda match: "\n" * match.group().count("\n"), text)
