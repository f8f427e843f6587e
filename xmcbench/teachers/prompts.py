"""Prompts: the named ones from papers, by dataset, and validation of user templates; and how the text of a language
model is read as yes, no, or neither, or as labels.

A template with `{label}` asks about one label. A template with `{labels}` asks about several, as numbered lines. A
template with `{document}` alone asks for labels.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
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
# What reasoning models write before an answer. A chat template may have opened the thoughts already.
_TAG_OF_THOUGHTS = r"(?:\w+:)?(?:think|thinking|thought|thoughts|reasoning)"
_THOUGHTS_END = re.compile(rf"[<\[◁]/{_TAG_OF_THOUGHTS}[>\]▷]", re.IGNORECASE)
_THOUGHTS_BEGIN = re.compile(rf"[<\[◁]{_TAG_OF_THOUGHTS}[>\]▷]", re.IGNORECASE)
# "yes or no" repeats the question and is no answer.
_WORD = r"(yes|no)\b(?!\s*(?:or|/)\s*(?:yes|no)\b)"
_LEAD = r"(?:(?:the\s+|my\s+|final\s+)*answer(?:\s+is)?\b\W*)"
_FIRST = re.compile(rf"\W*{_LEAD}?{_WORD}", re.IGNORECASE)  # after punctuation or "Answer:" at most
_ALONE = r"(?=[ \t]*(?:[^\w\s]|\n|\Z))"  # as in "No, ...", not in "No tag ..."
_FIRST_ALONE = re.compile(rf"\W*{_LEAD}?{_WORD}{_ALONE}", re.IGNORECASE)
_LATER = re.compile(rf"(?<!yes or )(?<!no or )(?<!yes/)(?<!no/)\b(?:(?=yes)|(?=no{_ALONE})){_WORD}", re.IGNORECASE)
_ENDING = re.compile(rf"(?:^|\n|\b{_LEAD})\W*{_WORD}\W*\Z", re.IGNORECASE)  # a last line, or "the answer is yes"
_BULLET = re.compile(r"^\s*(?:\d+\s*[.):]|[-*•])\s*")
_NUMBERED = re.compile(rf"(?<![\w.])(\d+)\W{{1,4}}{_WORD}", re.IGNORECASE)


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


def without_thoughts(text: str) -> tuple[str, bool]:
    """What a reply says after its thoughts, and whether it has thoughts. Thoughts that do not end are the whole reply.

    >>> without_thoughts("<think>Hats?</think> Yes"), without_thoughts("<think>Hats? No,"), without_thoughts("No.")
    ((' Yes', True), ('', True), ('No.', False))
    """
    *_, end = None, *_THOUGHTS_END.finditer(text)
    said = text if end is None else text[end.end() :]
    begun = _THOUGHTS_BEGIN.search(said)
    return said[: begun.start()] if begun else said, bool(begun or end)


def read_answer(text: str, *, thought: bool = False) -> int:
    """The answer in a reply: YES, NO or UNPARSED. `thought` says that the thoughts before the reply are not in it.

    A reply answers with its first word, its last line, or a closing "the answer is yes". After thoughts the last word
    decides, then the first, then the last yes or no, but for the "no" of "no relation".

    >>> [read_answer(text) for text in ("Yes.", " **No**, it is not", "Answer: yes", "yes or no?", "not at all", "")]
    [1, 0, 1, -1, -1, -1]
    >>> [read_answer(f"<think>Yes? No.</think>{text}") for text in ("No hat is red. Yes", "Yes, no doubt it is.", "Hm")]
    [1, 1, -1]
    """
    said, has_thoughts = without_thoughts(text)
    if thought or has_thoughts:
        words = [word.group(1) for word in _LATER.finditer(said)]
        closing = words and re.search(rf"\b{words[-1]}\W*\Z", said)
        first = None if closing else _FIRST_ALONE.match(said)
        word = first[1] if first else words[-1] if words else ""
    else:
        match = _FIRST.match(said) or _ENDING.search(said)
        word = match[1] if match else ""
    return _WORDS.get(word.lower(), UNPARSED)


def read_answers(text: str, count: int) -> np.ndarray:
    """The answers in lines like `1. yes`, int8 [count]. A missing or contradictory answer is UNPARSED.

    >>> read_answers("1. yes\\n2: No\\n4) yes", 4).tolist()
    [1, 0, -1, 1]
    """
    answers = np.full(count, UNPARSED, np.int8)
    by_number: dict[int, set[int]] = {}
    for number, word in _NUMBERED.findall(without_thoughts(text)[0]):
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
    lines = without_thoughts(text)[0].strip().splitlines()
    parts = re.split("[,;]", lines[0]) if len(lines) == 1 else lines
    labels = (_BULLET.sub("", part).strip(" \t.,;\"'*`") for part in parts)
    return tuple(dict.fromkeys(label for label in labels if label))


def first_words(text: str, words: int) -> str:
    """The first `words` words of a text, with its white space.

    >>> first_words("a  bc d", 2), first_words(" a b ", 2), first_words("a b", 5)
    ('a  bc', ' a b', 'a b')
    """
    ends = (word.end() for word in re.finditer(r"\S+", text))
    return text[: next(islice(ends, words - 1, None), len(text))]
