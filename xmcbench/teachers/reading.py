"""Parses the text of a language model as yes, no, or neither."""

from __future__ import annotations

import re

import numpy as np

from xmcbench.trial.judging import NO, UNPARSED, YES

_WORDS = {"yes": YES, "no": NO}
_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL | re.IGNORECASE)
# The answer comes first, after punctuation or "Answer:" at most. "yes or no" repeats the question and is no answer.
_FIRST = re.compile(r"\W*(?:(?:the\s+)?answer(?:\s+is)?\b\W*)?(yes|no)\b(?!\s*(?:or|/)\s*(?:yes|no)\b)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?<![\w.])(\d+)\W{1,4}(yes|no)\b(?!\s*(?:or|/)\s*(?:yes|no)\b)", re.IGNORECASE)


def one(text: str) -> int:
    """The answer in `text`: YES, NO or UNPARSED.

    >>> [one(text) for text in ("Yes.", " **No**, it is not", "Answer: yes", "yes or no?", "not at all", "Nobody", "")]
    [1, 0, 1, -1, -1, -1, -1]
    """
    match = _FIRST.match(_THOUGHTS.sub("", text))
    return _WORDS[match[1].lower()] if match else UNPARSED


def several(text: str, count: int) -> np.ndarray:
    """The answers in lines like `1. yes`, int8 [count]. A missing or contradictory answer is UNPARSED.

    >>> several("1. yes\\n2: No\\n4) yes", 4).tolist()
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
