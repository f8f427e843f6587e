"""The words of texts, as far as one needs them to say whether a text has any word in common with others."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and Hangul, whose words inflect.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """The runs of letters and digits of a text in lower case; of scripts without spaces each character.

    >>> words("Green chair, 2nd: \u9752\u6905")
    ['green', 'chair', '2nd', '\u9752', '\u6905']
    """
    return _WORD.findall(text.lower())


def vocabulary(texts: Iterable[str]) -> set[str]:
    """All words of the texts."""
    return {word for text in texts for word in words(text)}
