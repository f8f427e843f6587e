"""TF-IDF features of texts, saved as JSON and numpy: what the linear programs train on. Needs scikit-learn."""

from __future__ import annotations

import json

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

SETTINGS = {"sublinear_tf": True, "dtype": np.float32, "token_pattern": r"(?u)\b\w+\b"}


def fit_features(texts, folder, ngrams=1):
    """The features [queries, terms] of training texts, unit length per row; `folder` gets terms and weights."""
    vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), **SETTINGS)
    features = vectorizer.fit_transform(texts)
    terms = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.get)
    (folder / "terms.json").write_text(json.dumps({"ngrams": ngrams, "terms": terms}), encoding="utf-8")
    np.save(folder / "idf.npy", vectorizer.idf_)
    return features


def features(texts, folder):
    """The features [queries, terms] of other texts."""
    saved = json.loads((folder / "terms.json").read_bytes())
    vectorizer = TfidfVectorizer(ngram_range=(1, saved["ngrams"]), vocabulary=saved["terms"], **SETTINGS)
    vectorizer.idf_ = np.load(folder / "idf.npy", allow_pickle=False)
    return vectorizer.transform(texts)
