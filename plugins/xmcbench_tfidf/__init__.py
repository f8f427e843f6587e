"""Baselines that match words: labels of the nearest training queries, and labels with texts similar to the query.

Legend: C queries of a chunk, N training queries, L labels, M = N + L texts, V words.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import scipy
from pydantic import Field

from xmcbench import Method, MethodInfo, Predictions, Run, Texts, TrainingData, XMCBenchError, hookimpl
from xmcbench_tfidf.bm25 import BM25LabelMatch
from xmcbench_tfidf.matching import answers, best, nearest


class TfidfMethod(Method):
    """TF-IDF over training queries and label texts."""

    late_imports = ("sklearn.feature_extraction.text", "sparse_dot_topn")

    def fit(self, train: TrainingData, run: Run) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        with run.ledger.stage("train"):
            self.words = TfidfVectorizer(sublinear_tf=True, dtype=np.float32)
            try:
                words_MV = scipy.sparse.csr_array(self.words.fit_transform(chain(train.texts, train.label_texts)))
            except ValueError as problem:
                raise XMCBenchError(f"{train.card.name}: TF-IDF finds no word in the texts") from problem
            self.matrices = self.index(train, words_MV)

    @abstractmethod
    def index(self, train: TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        """The matrices that predictions need, of the rows of all texts: training queries, then labels."""

    @abstractmethod
    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        """The k best labels of a chunk of queries."""

    def predict(self, texts: Texts, k: int) -> Predictions:
        return answers(texts, lambda chunk: self.best_labels(scipy.sparse.csr_array(self.words.transform(chunk)), k))

    def save(self, directory: Path) -> None:
        (directory / "words.json").write_text(json.dumps(self.words.get_feature_names_out().tolist()))
        np.save(directory / "idf.npy", self.words.idf_)
        for name, matrix in self.matrices.items():
            scipy.sparse.save_npz(directory / f"{name}.npz", matrix)

    def load(self, directory: Path) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        vocabulary = json.loads((directory / "words.json").read_text())
        self.words = TfidfVectorizer(vocabulary=vocabulary, sublinear_tf=True, dtype=np.float32)
        self.words.idf_ = np.load(directory / "idf.npy", allow_pickle=False)
        self.matrices = {
            path.stem: scipy.sparse.csr_array(scipy.sparse.load_npz(path)) for path in directory.glob("*.npz")
        }


class NearestNeighbours(TfidfMethod):
    """The score of a label is the sum of powers of similarities of the nearest training queries that have it."""

    name = "tfidf-nn"
    info = MethodInfo(summary="labels of the nearest training queries by TF-IDF")

    class Config(TfidfMethod.Config):
        neighbours: int = Field(20, gt=0, description="nearest training queries")
        power: float = Field(3.0, gt=0, description="exponent of the cosine; a high one favours the nearest")

    def index(self, train: TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        return {"queries": words_MV[: len(train.texts)].T.tocsr(), "targets": train.targets}

    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        neighbours = nearest(words_CV, self.matrices["queries"], self.config.neighbours)
        votes = np.where(neighbours.indices >= 0, neighbours.scores, 0.0) ** self.config.power
        rows = np.repeat(np.arange(len(neighbours)), neighbours.k)
        shape = len(neighbours), self.matrices["queries"].shape[1]
        votes_CN = scipy.sparse.csr_array((votes.ravel(), (rows, neighbours.indices.clip(0).ravel())), shape=shape)
        return best((votes_CN @ self.matrices["targets"]).tocsr(), k)


class LabelMatch(TfidfMethod):
    """The score of a label is the cosine of its text and the query. Training queries only affect word weights."""

    name = "tfidf-label"
    info = MethodInfo(summary="labels whose text matches the query by TF-IDF", needs=("label texts",))

    def index(self, train: TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        return {"labels": words_MV[len(train.texts) :].T.tocsr()}

    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        return nearest(words_CV, self.matrices["labels"], k)

    def add_labels(self, texts: Texts) -> None:
        added_VN = scipy.sparse.csr_array(self.words.transform(list(texts))).T
        self.matrices["labels"] = scipy.sparse.hstack([self.matrices["labels"], added_VN], format="csr")


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(NearestNeighbours)
    register(LabelMatch)
    register(BM25LabelMatch)
