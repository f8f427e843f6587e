"""TF-IDF features of texts, saved as JSON and numpy: what the linear methods train on. Needs scikit-learn.

Features are words, sequences of words, and on request sequences of characters within words, which find compounds,
inflected forms and typing errors.
"""

from __future__ import annotations

import json

import numpy as np
import scipy
from sklearn.feature_extraction.text import TfidfVectorizer

SETTINGS = {"sublinear_tf": True, "dtype": np.float32, "token_pattern": r"(?u)\b\w+\b"}


def fit_features(texts, folder, ngrams=1, characters=None):
    """The features [queries, terms] of training texts, at most unit length per row; `folder` gets terms and weights.

    `characters` are the shortest and the longest sequence of characters within a word, as [3, 5]; None: only words.
    Raises SystemExit with a line where no text has a word.
    """
    parts, saved = [], []
    for name, settings in _blocks(ngrams, characters):
        vectorizer = TfidfVectorizer(**settings)
        try:
            parts.append(vectorizer.fit_transform(texts))
        except ValueError:
            raise SystemExit("no training text has a word") from None
        terms = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.get)
        saved.append({"ngrams": ngrams, "characters": characters, "terms": terms})
        np.save(folder / f"idf{name}.npy", vectorizer.idf_)
        (folder / f"terms{name}.json").write_text(json.dumps(saved[-1]), encoding="utf-8")
    return _beside(parts)


def features(texts, folder):
    """The features [queries, terms] of other texts."""
    facts = json.loads((folder / "terms.json").read_bytes())
    parts = []
    for name, settings in _blocks(facts["ngrams"], facts.get("characters")):
        terms = json.loads((folder / f"terms{name}.json").read_bytes())["terms"]
        vectorizer = TfidfVectorizer(vocabulary=terms, **settings)
        vectorizer.idf_ = np.load(folder / f"idf{name}.npy", allow_pickle=False)
        parts.append(vectorizer.transform(texts))
    return _beside(parts)


def _blocks(ngrams, characters):
    """The name of each block of features, and the settings of its vectorizer."""
    yield "", {**SETTINGS, "ngram_range": (1, ngrams)}
    if characters:
        yield (
            "-characters",
            {**SETTINGS, "analyzer": "char_wb", "ngram_range": tuple(characters), "token_pattern": None},
        )


def _beside(parts):
    """The blocks as one matrix, each with the same share of a row's squared length."""
    if len(parts) == 1:
        return parts[0]
    return scipy.sparse.hstack([part / len(parts) ** 0.5 for part in parts], format="csr", dtype=np.float32)
