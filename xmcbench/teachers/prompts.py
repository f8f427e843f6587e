"""Prompts: the named ones from papers, by dataset, and validation of user templates; and how the text of a language
model is read as yes, no, or neither, or as labels.

A template with `{label}` asks about one label. A template with `{labels}` asks about several, as numbered lines. A
template with `{document}` alone asks for labels.
"""

from __future__ import annotations

import re
from functools import partial
from string import Formatter
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from xmcbench.errors import suggest
from xmcbench.trial.run import NO, UNPARSED, YES

# LMTX, Section 5.1; its {doc} and {label_text} are {document} and {label} here.
_TAG = "document = {document}. Is the tag {label} relevant to the document? answer yes or no"
PROMPTS = {
    "eurlex-4k": _TAG,
    "wiki10-31k": _TAG,
    "amazoncat-13k": "document = {document}. The document is amazon product description, "
    "Is the tag {label} relevant to the document? answer yes or no",
    "lf-wikiseealso-320k": "document = {document}. The document is the wikipedia page. "
    'Does another wikipedia page name "{label}" has the relation to the document? answer yes or no',
    "lf-wikipedia-500k": "document = {document}, the document is the wikipedia page. "
    'Is the tag "{label}" relevant to the document? answer yes or no',
    # Several labels in one prompt; not from a paper.
    "several": "document = {document}. Which of these tags are relevant to the document?\n{labels}\n"
    "Answer with one line for each tag: its number, then yes or no.",
}

_WORDS = {"yes": YES, "no": NO}
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL | re.IGNORECASE)
# The answer comes first, after punctuation or "Answer:" at most. "yes or no" repeats the question and is no answer.
_FIRST = re.compile(r"\W*(?:(?:the\s+)?answer(?:\s+is)?\b\W*)?(yes|no)\b(?!\s*(?:or|/)\s*(?:yes|no)\b)", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:\d+\s*[.):]|[-*•])\s*")
_NUMBERED = re.compile(r"(?<![\w.])(\d+)\W{1,4}(yes|no)\b(?!\s*(?:or|/)\s*(?:yes|no)\b)", re.IGNORECASE)


def template(prompt: str) -> str:
    """The template with this name, or `prompt` itself if it is a template."""
    return PROMPTS.get(prompt, prompt)


def has_several_labels(text: str) -> bool:
    """Whether a template asks about several labels at once."""
    return "labels" in _placeholders(text)


def _placeholders(text: str) -> list[str]:
    """The names of the placeholders. Raises ValueError for braces that do not enclose a plain name."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError as problem:
        raise ValueError(f"expected placeholders in braces, {{{{ and }}}} for literal braces: {problem}") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion):
            raise ValueError(f"expected a plain {{{name}}}, without a format")
    return [name for _, name, _, _ in parts if name is not None]


def _checked(prompt: str, forms: tuple[str, ...]) -> str:
    if prompt not in PROMPTS and not any(mark in prompt for mark in "{}"):
        raise ValueError(f"expected a template with placeholders, or the name of a prompt{suggest(prompt, PROMPTS)}")
    used = _placeholders(template(prompt))
    expected = "expected the placeholders {document} and " + " or ".join(f"{{{form}}}" for form in forms)
    for name in used:
        if name not in ("document", *forms):
            raise ValueError(f"{expected}: found {{{name}}}{suggest(name, ('document', *forms))}")
    labels = set(used) & set(forms)
    if "document" not in used or len(labels) != 1:
        raise ValueError(f"{expected}, found {', '.join(f'{{{name}}}' for name in used) or 'none'}")
    return prompt


def _no_label(prompt: str) -> str:
    if _placeholders(prompt) != ["document"]:
        raise ValueError("expected a template with the placeholder {document}, once, and no other")
    return prompt


WritingPrompt = Annotated[str, AfterValidator(_no_label)]
"""A template that asks for the labels of a document."""
OneLabelPrompt = Annotated[str, AfterValidator(partial(_checked, forms=("label",)))]
"""The name of a prompt or a template that asks about one label."""
Prompt = Annotated[str, AfterValidator(partial(_checked, forms=("label", "labels")))]
"""The name of a prompt or a template that asks about one label or several."""


def read_answer(text: str) -> int:
    """The answer in `text`: YES, NO or UNPARSED.

    >>> [read_answer(text) for text in ("Yes.", " **No**, it is not", "Answer: yes", "yes or no?", "not at all", "")]
    [1, 0, 1, -1, -1, -1]
    """
    match = _FIRST.match(_THOUGHTS.sub("", text))
    return _WORDS[match[1].lower()] if match else UNPARSED


def read_answers(text: str, count: int) -> np.ndarray:
    """The answers in lines like `1. yes`, int8 [count]. A missing or contradictory answer is UNPARSED.

    >>> read_answers("1. yes\\n2: No\\n4) yes", 4).tolist()
    [1, 0, -1, 1]
    """
    answers = np.full(count, UNPARSED, np.int8)
    by_number: dict[int, set[int]] = {}
    for number, word in _NUMBERED.findall(_THOUGHTS.sub("", text)):
        by_number.setdefault(int(number), set()).add(_WORDS[word.lower()])
    for number, words in by_number.items():
        if 1 <= number <= count and len(words) == 1:
            answers[number - 1] = words.pop()
    return answers


def read_labels(text: str) -> tuple[str, ...]:
    """The distinct labels that a reply lists: one on a line, or divided by commas or semicolons on a single line.

    >>> read_labels("1. Red hats\\n2. 'Blue shoes'\\n- Red hats"), read_labels("red, blue; green."), read_labels(" ")
    (('Red hats', 'Blue shoes'), ('red', 'blue', 'green'), ())
    """
    lines = _THOUGHTS.sub("", text).strip().splitlines()
    parts = re.split("[,;]", lines[0]) if len(lines) == 1 else lines
    labels = (_BULLET.sub("", part).strip(" \t.,;\"'*`") for part in parts)
    return tuple(dict.fromkeys(label for label in labels if label))
