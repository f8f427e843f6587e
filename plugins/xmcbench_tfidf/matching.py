"""Top-k predictions from sparse scores, a chunk of queries at a time.

Legend: C queries of a chunk, L labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from xmcbench import Predictions, Texts, rank

CHUNK = 1024  # queries scored at once


def answers(texts: Texts, k: int, scores: Callable[[list[str]], scipy.sparse.csr_array]) -> Predictions:
    """The k best labels of each text, whose `scores` [C, L] are made of a chunk of texts."""
    chunks = (list(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK))
    parts = [best(scores(chunk), k) for chunk in chunks]
    return Predictions(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))


def best(scores_CL: scipy.sparse.csr_array, k: int) -> Predictions:
    """The k highest stored positive scores of each row; -1 pads a row that has fewer."""
    scores_CL.eliminate_zeros()
    counts = np.diff(scores_CL.indptr)
    indices = np.full((len(counts), max(k, int(counts.max(initial=0)))), -1, np.int32)
    scores = np.full(indices.shape, -np.inf, np.float32)
    stored = np.arange(indices.shape[1]) < counts[:, None]
    indices[stored], scores[stored] = scores_CL.indices, scores_CL.data
    return rank(indices, scores, k)
