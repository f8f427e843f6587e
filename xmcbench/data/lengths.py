"""How long texts are: in words, and about how long in tokens, without a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from xmcbench.data.texts import PackedTexts, blocks

# Of BERT's uncased English vocabulary; measured on texts of 17 kinds and 13 languages (docs/datasets.md).
WORD_PIECES = 1.4  # of a word, at least: 1.24 in Wikipedia categories to 1.63 in Tate's labels
PIECE = 4.5  # ASCII characters of a word piece, at most: 4.8 in English sentences, 2.6 in Finnish; others are one each
ENDS = 2  # tokens that begin and end a text


def count_words(texts: PackedTexts) -> np.ndarray:
    """Words between blanks in each text, int64 [n].

    >>> count_words(PackedTexts.of(["two words", "", " one "])).tolist()
    [2, 0, 1]
    """
    return _by_block(texts, _count_words)


def _count_words(texts: PackedTexts, _: slice) -> np.ndarray:
    data, offsets = np.asarray(texts.data), texts.offsets
    blank_of_byte = np.zeros(256, bool)
    blank_of_byte[np.frombuffer(b" \t\r\n", np.uint8)] = True
    blank = blank_of_byte[data]
    starts = ~blank
    starts[1:] &= blank[:-1]
    # The first byte of a text can start a word, regardless of the last byte of the text before it.
    first = offsets[:-1][np.diff(offsets) > 0]
    starts[first] = ~blank[first]
    return _count(starts, offsets)


def count_tokens(texts: PackedTexts, words: np.ndarray) -> np.ndarray:
    """About how many tokens each text has, int64 [n]: what its `words` or its characters tell, whichever is more.

    Languages that join words, or whose letters a vocabulary lacks, have more tokens than their words tell.

    >>> texts = PackedTexts.of(["two words", "Donaudampfschifffahrt", "日本語の文"])
    >>> count_tokens(texts, count_words(texts)).tolist()
    [5, 7, 7]
    """

    def counted(block: PackedTexts, part: slice) -> np.ndarray:
        data, offsets = np.asarray(block.data), block.offsets
        others = _count(data >= FIRST_OF_MANY, offsets)  # characters that are not ASCII
        ascii_ = np.diff(offsets) - _count(data >= BEYOND_ASCII, offsets)
        pieces = np.maximum(WORD_PIECES * words[part], ascii_ / PIECE + others)
        tokens: np.ndarray = np.rint(ENDS + pieces).astype(np.int64)
        return tokens

    return _by_block(texts, counted)


def percentiles(counts: np.ndarray) -> tuple[int, ...]:
    """The counts that 0 to 100 per cent of `counts` do not exceed.

    >>> percentiles(np.arange(201))[:3]
    (0, 2, 4)
    """
    return tuple(np.percentile(counts, range(101), method="higher").astype(int).tolist())


def share_cut(percentiles: Sequence[int], limit: int) -> float:
    """The share of texts that are longer than `limit` tokens; `percentiles` are their tokens at 0 to 100 per cent.

    >>> share_cut(range(101), 50), share_cut(range(101), 200)
    (0.5, 0.0)
    """
    return sum(tokens > limit for tokens in percentiles[1:]) / 100


def tokens_of(words: float | None, longest: int) -> int:
    """The tokens of a text of which only its words are known; the longest that is not cut where these are not.

    >>> tokens_of(3.26, 128), tokens_of(200, 128), tokens_of(None, 128)
    (7, 128, 128)
    """
    return longest if words is None else min(longest, round(ENDS + WORD_PIECES * words))


def _by_block(texts: PackedTexts, count: Callable[[PackedTexts, slice], np.ndarray]) -> np.ndarray:
    """What `count` says of all texts: of a block at a time, as it takes ten times the memory of the texts."""
    return np.concatenate([np.zeros(0, np.int64), *(count(texts[part], part) for part in blocks(len(texts)))])


def _count(marked: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How many bytes of each text are marked."""
    return np.diff(np.searchsorted(np.flatnonzero(marked), offsets))


BEYOND_ASCII, FIRST_OF_MANY = 0x80, 0xC0  # bytes in UTF-8 from here on: of other characters, the first of each
