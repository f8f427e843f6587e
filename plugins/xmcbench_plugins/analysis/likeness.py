"""Which test texts nearly repeat a training text, or share no word with any: a method knows the former already.

Legend: N training texts, T test texts, V words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.data.texts import take

LOOKED_AT = 100_000  # training texts, at most: every one of them, or evenly spaced ones
ASKED = 5_000  # test texts, likewise
NEAR = 0.8  # cosine of two texts' words from which on they are nearly the same


@dataclass(frozen=True)
class Likeness:
    """Test texts beside the training texts."""

    rows: np.ndarray  # [T] the test texts that were compared, ascending
    same: np.ndarray  # bool [T]: a training text is equal
    near: np.ndarray  # bool [T]: a training text has equal words, or nearly
    unknown: np.ndarray  # bool [T]: no word is in a training text


def likeness(train: Texts, test: Texts) -> Likeness:
    """Compare test texts with training texts by TF-IDF."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sparse_dot_topn import sp_matmul_topn  # type: ignore[import-untyped]

    known, rows = _spaced(train, LOOKED_AT)[1], _spaced(test, ASKED)
    words = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b")
    same = np.isin(rows[1], known)
    try:
        train_NV = csr_matrix(words.fit_transform(known))
    except ValueError:  # no text has a word
        return Likeness(rows[0], same, same, np.ones(len(same), bool))
    test_TV = csr_matrix(words.transform(rows[1]))
    near = np.diff(sp_matmul_topn(test_TV, csr_matrix(train_NV.T), 1, threshold=NEAR).indptr) > 0
    return Likeness(rows[0], same, near | same, np.diff(test_TV.indptr) == 0)


def _spaced(texts: Texts, most: int) -> tuple[np.ndarray, list[str]]:
    """The numbers of at most so many evenly spaced texts, and these texts."""
    rows = np.arange(0, len(texts), max(1, -(-len(texts) // most)))
    return rows, list(take(texts, rows))
