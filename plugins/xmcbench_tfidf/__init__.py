"""TF-IDF baselines: the labels of the nearest training queries, and the labels whose text looks like the query."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from pydantic import Field
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from xmcbench import Method, MethodInfo, Predictions, Run, Texts, TrainingData, XMCBenchError, evaluation, hookimpl

CHUNK = 1024  # queries scored at once


class TfidfMethod(Method):
    """Scores labels [L] by a sparse product of a query's TF-IDF row with a matrix `index` [words, L or N]."""

    class Config(Method.Config):
        max_words: int = Field(500_000, gt=0, description="size of the vocabulary, most frequent words first")
        sublinear: bool = Field(True, description="1 + log of a word's count instead of the count")

    config: TfidfMethod.Config
    matrices: dict[str, sp.csr_array]

    def fit(self, train: TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            texts = [*train.texts, *train.label_texts]
            self.vectorizer = TfidfVectorizer(
                max_features=self.config.max_words, sublinear_tf=self.config.sublinear, dtype=np.float32
            )
            try:
                self.vectorizer.fit(texts)
            except ValueError as error:
                raise XMCBenchError(f"{train.card.name}: no words to weigh in its texts: {error}") from error
            self.matrices = self.index(train)

    @abstractmethod
    def index(self, train: TrainingData) -> dict[str, sp.csr_array]:
        """The matrices that `scores` needs."""

    @abstractmethod
    def scores(self, words_CV: sp.csr_array) -> sp.csr_array:
        """Sparse scores [C, L] of a chunk's TF-IDF rows."""

    def predict(self, texts: Texts, k: int) -> Predictions:
        parts = [rank_sparse(self.scores(words_CV), k) for words_CV in self._chunks(texts)]
        return Predictions(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))

    def _chunks(self, texts: Texts) -> Iterator[sp.csr_array]:
        for start in range(0, len(texts), CHUNK):
            rows = [texts[i] for i in range(start, min(start + CHUNK, len(texts)))]
            yield sp.csr_array(self.vectorizer.transform(rows))

    def save(self, directory: Path) -> None:
        words = {"vocabulary": {w: int(i) for w, i in self.vectorizer.vocabulary_.items()}}
        (directory / "words.json").write_text(json.dumps(words))
        np.save(directory / "idf.npy", self.vectorizer.idf_)
        for name, matrix in self.matrices.items():
            sp.save_npz(directory / f"{name}.npz", matrix)

    def load(self, directory: Path) -> None:
        vocabulary = json.loads((directory / "words.json").read_text())["vocabulary"]
        self.vectorizer = TfidfVectorizer(vocabulary=vocabulary, sublinear_tf=self.config.sublinear, dtype=np.float32)
        self.vectorizer.idf_ = np.load(directory / "idf.npy", allow_pickle=False)
        self.matrices = {path.stem: sp.csr_array(sp.load_npz(path)) for path in sorted(directory.glob("*.npz"))}


class NearestNeighbours(TfidfMethod):
    """A label scores the summed similarity of the `neighbours` nearest training queries that carry it."""

    name = "tfidf-nn"
    info = MethodInfo(summary="labels of the nearest training queries by TF-IDF")

    class Config(TfidfMethod.Config):
        neighbours: int = Field(10, gt=0, description="training queries that vote")

    config: NearestNeighbours.Config

    def index(self, train: TrainingData) -> dict[str, sp.csr_array]:
        words_NV = sp.csr_array(self.vectorizer.transform(list(train.texts)))
        return {"queries": words_NV.T.tocsr(), "targets": train.targets}

    def scores(self, words_CV: sp.csr_array) -> sp.csr_array:
        similar_CN = (words_CV @ self.matrices["queries"]).tocsr()
        nearest = rank_sparse(similar_CN, self.config.neighbours)
        votes = np.where(nearest.indices >= 0, nearest.scores, 0.0)
        rows = np.repeat(np.arange(len(nearest)), nearest.k)
        votes_CN = sp.csr_array((votes.ravel(), (rows, nearest.indices.clip(0).ravel())), shape=similar_CN.shape)
        return (votes_CN @ self.matrices["targets"]).tocsr()


class LabelMatch(TfidfMethod):
    """A label scores the cosine of its own text with the query; training queries only weigh the words."""

    name = "tfidf-label"
    info = MethodInfo(summary="labels whose text matches the query by TF-IDF", needs=("label texts",))

    def index(self, train: TrainingData) -> dict[str, sp.csr_array]:
        words_LV = normalize(self.vectorizer.transform(list(train.label_texts)))
        return {"labels": sp.csr_array(words_LV).T.tocsr()}

    def scores(self, words_CV: sp.csr_array) -> sp.csr_array:
        return (words_CV @ self.matrices["labels"]).tocsr()


def rank_sparse(scores_CL: sp.csr_array, k: int) -> Predictions:
    """The k best stored positive scores of each row, padded with -1 where a row has fewer."""
    scores_CL.eliminate_zeros()
    counts = np.diff(scores_CL.indptr)
    indices = np.full((len(counts), max(k, int(counts.max(initial=0)))), -1, np.int32)
    scores = np.full(indices.shape, -np.inf, np.float32)
    places = np.arange(indices.shape[1]) < counts[:, None]
    indices[places], scores[places] = scores_CL.indices, scores_CL.data
    return evaluation.rank(indices, scores, k)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    for method in (NearestNeighbours, LabelMatch):
        register(method)
