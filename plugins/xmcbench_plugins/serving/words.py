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


class Vocabulary:
    """The words of texts, of which no more are read than answers need: most texts have a word that soon occurs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._rest, self._seen = iter(texts), set[str]()

    def knows(self, text: str) -> bool:
        """Whether the text has a word of one of the texts.

        >>> known = Vocabulary(["Green chair", "red table"])
        >>> known.knows("a chair"), known.knows("a desk"), known.knows("two tables, one table")
        (True, False, True)
        """
        asked = set(words(text))
        if not self._seen.isdisjoint(asked):
            return True
        for read in self._rest:
            self._seen.update(found := words(read))
            if not asked.isdisjoint(found):
                return True
        return False
