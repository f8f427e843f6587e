"""Words of texts with their weights, and the best products of sparse rows, a chunk of queries at a time.

Legend: C queries of a chunk, N columns, V words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from xmcbench import Predictions, data, evaluation

CHUNK = 1024  # queries scored at once
SPARE = 16  # products kept beyond the best k; where they all tie with the last of these, the row is computed in full


def tfidf(vocabulary: list[str] | None = None) -> Any:
    """A vectorizer of scikit-learn, with the vocabulary of one that was fitted."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(vocabulary=vocabulary, sublinear_tf=True, dtype=np.float32)


def save_words(words: Any, directory: Path) -> None:
    """Write a fitted vectorizer to a folder."""
    (directory / "words.json").write_text(json.dumps(words.get_feature_names_out().tolist()))
    if hasattr(words, "idf_"):
        np.save(directory / "idf.npy", words.idf_)


def load_words(vectorizer: Callable[[list[str]], Any], directory: Path) -> Any:
    """The vectorizer that `save_words` wrote, of the kind that `vectorizer` makes of a vocabulary."""
    words = vectorizer(json.loads((directory / "words.json").read_text()))
    if (idf := directory / "idf.npy").exists():
        words.idf_ = np.load(idf, allow_pickle=False)
    return words


def answers(texts: data.Texts, predict: Callable[[list[str]], Predictions]) -> Predictions:
    """Predictions for all texts by `predict`, which takes a chunk of them."""
    parts = [predict(list(texts[start : start + CHUNK])) for start in range(0, len(texts), CHUNK)]
    return Predictions(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))


def nearest(words_CV: scipy.sparse.csr_array, others_VN: scipy.sparse.csr_array, k: int) -> Predictions:
    """The k columns with the highest positive product with each row, ties by lower id; -1 pads.

    Only the best products of a row are stored, not those with every text that shares a word.
    """
    from sparse_dot_topn import sp_matmul_topn

    as_matrix = scipy.sparse.csr_matrix  # the type that sparse_dot_topn takes; nothing is copied
    kept = min(k + SPARE, others_VN.shape[1])
    top_CN = sp_matmul_topn(as_matrix(words_CV), as_matrix(others_VN), kept, threshold=0.0, sort=True)
    found = best(scipy.sparse.csr_array(top_CN), k)
    ends = top_CN.indptr[1:]
    full = np.flatnonzero((np.diff(top_CN.indptr) == kept) & (kept > k))
    tied = full[top_CN.data[ends[full] - 1] == found.scores[full, k - 1]]
    if len(tied):
        exact = best((words_CV[tied] @ others_VN).tocsr(), k)
        found.indices[tied], found.scores[tied] = exact.indices, exact.scores
    return found


def best(scores_CN: scipy.sparse.csr_array, k: int) -> Predictions:
    """The k highest stored scores of each row that are not 0; -1 pads a row that has fewer."""
    scores_CN.eliminate_zeros()
    return evaluation.rank_sparse(scores_CN, k)
