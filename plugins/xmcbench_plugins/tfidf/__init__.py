"""Baselines that match words: labels of the nearest training queries, and labels with texts similar to the query.

Legend: C queries of a chunk, N training queries or columns, L labels, M texts (by default N + L), V words.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import scipy
from pydantic import AfterValidator, Field

from xmcbench import Budget, Method, MethodInfo, Predictions, Run, XMCBenchError, data, evaluation, hookimpl

CHUNK = 1024  # queries scored at once
K1, B = 1.2, 0.75  # of BM25 neighbours: usual values
CHARACTERS = "characters"  # a folder of a saved model
TOKEN_SECONDS = 3e-6  # in which a token is read, roughly, on one core of 2023: only a plan is made of it
LONGEST = 10  # characters of a term
SPARE = 16  # products kept beyond the best k; where they all tie with the last of these, the row is computed in full


def _ascending(sizes: tuple[int, int] | None) -> tuple[int, int] | None:
    if sizes is not None and not 1 <= sizes[0] <= sizes[1] <= LONGEST:
        raise ValueError(f"expected two ascending numbers from 1 to {LONGEST}, as [3, 5]")
    return sizes


Characters = Annotated[
    tuple[int, int] | None,
    AfterValidator(_ascending),
    Field(
        exclude_if=lambda sizes: sizes is None,  # keys of trials without it stay
        description="also sequences of characters within words, from the shortest to the longest, as [3, 5]: they find "
        "compounds and inflected words; null: words alone",
    ),
]
LONGEST = 10  # characters of a term


class WordMethod(Method):
    """Sparse products of weighed words; by default TF-IDF over training queries and label texts."""

    uses_gpu = False
    late_imports = ("sklearn.feature_extraction.text", "sparse_dot_topn")
    searched: ClassVar[str] = "labels"  # the matrix [V, M] of the texts that a query is multiplied with

    @property
    def saved_texts(self) -> str:
        return "their words"

    def terms(self) -> Terms:
        """The terms that texts are compared by, not fitted."""
        return Terms(tfidf)

    def corpus(self, train: data.TrainingData) -> Iterable[str]:
        """The M texts that give words their weights."""
        return chain(train.texts, train.label_texts)

    def fit(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            self.words = self.terms()
            try:
                words_MV = scipy.sparse.csr_array(self.words.fit_transform(self.corpus(train)))
            except ValueError as problem:
                raise XMCBenchError(f"{train.card.name}: {self.name} finds no word in the texts") from problem
            self.matrices = self.index(train, words_MV)

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:  # noqa: ARG002
        """About the processor seconds in which the texts are read."""
        tokens = data.queries * data.query_tokens + data.labels * data.label_tokens
        return {"device_seconds": tokens * TOKEN_SECONDS}

    @abstractmethod
    def index(self, train: data.TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        """The matrices that predictions need, of the rows of `corpus`."""

    @abstractmethod
    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        """The k best labels of a chunk of queries."""

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return answers(texts, lambda chunk: self.best_labels(self.rows(chunk), k))

    def rows(self, texts: data.Texts) -> scipy.sparse.csr_array:
        """The terms [C, V] of queries, with the weights that they are compared with."""
        return scipy.sparse.csr_array(self.words.transform(list(texts)))

    def predict_charged(self, texts: data.Texts, k: int, run: Run) -> Predictions:
        """Two operations for each word that a query and a searched text share."""
        words_NV = self.rows(texts)
        run.ledger.scoring_flops += 2 * int(np.diff(self.matrices[self.searched].indptr)[words_NV.indices].sum())
        return super().predict_charged(texts, k, run)

    def save(self, directory: Path) -> None:
        self.words.save(directory)
        for name, matrix in self.matrices.items():
            scipy.sparse.save_npz(directory / f"{name}.npz", matrix)

    def load(self, directory: Path) -> None:
        self.words = self.terms().load(directory)
        self.matrices = {
            path.stem: scipy.sparse.csr_array(scipy.sparse.load_npz(path)) for path in directory.glob("*.npz")
        }


class NearestNeighbours(WordMethod):
    """The score of a label is the sum of powers of similarities of the nearest training queries that have it.

    The similarity is the cosine of TF-IDF vectors, or BM25 with the training queries as documents, in which a word of
    the query counts once (Robertson and Zaragoza, 2009).
    """

    name = "tfidf-nn"
    info = MethodInfo(summary="labels of the nearest training queries by TF-IDF or BM25")
    counted: ClassVar = {"neighbours": ("queries",)}
    searched: ClassVar[str] = "queries"

    class Config(WordMethod.Config):
        neighbours: int = Field(20, gt=0, description="nearest training queries")
        power: float = Field(3.0, gt=0, description="exponent of the similarity; a high one favours the nearest")
        weighting: Literal["tfidf", "bm25"] = Field(
            "tfidf",
            exclude_if=lambda weighting: weighting == "tfidf",  # keys of trials without it stay
            description="similarity of two queries: the cosine of TF-IDF vectors, or BM25 (k1 1.2, b 0.75)",
        )
        characters: Characters = None

    config: NearestNeighbours.Config

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:  # noqa: ARG003
        return {"weighting": ["tfidf", "bm25"], "characters": [None, [3, 5]], "neighbours": [10, 20, 50]}

    def terms(self) -> Terms:
        return Terms(counts if self.config.weighting == "bm25" else tfidf, self.config.characters)

    def rows(self, texts: data.Texts) -> scipy.sparse.csr_array:
        rows_CV = super().rows(texts)
        if self.config.weighting == "bm25":
            rows_CV.data[:] = 1
        return rows_CV

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return True

    @property
    def saved_texts(self) -> str:
        return "their words, and the weights of words and the labels of each text"

    def index(self, train: data.TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        words_NV = words_MV[: len(train.texts)]
        weighed_NV = bm25(words_NV, K1, B) if self.config.weighting == "bm25" else words_NV
        return {"queries": weighed_NV.T.tocsr(), "targets": train.targets}

    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        queries_VN = self.matrices["queries"]
        neighbours = nearest(words_CV, queries_VN, min(self.config.neighbours, queries_VN.shape[1]))
        votes = np.where(neighbours.indices >= 0, neighbours.scores, 0.0) ** self.config.power
        rows = np.repeat(np.arange(len(neighbours)), neighbours.k)
        shape = len(neighbours), queries_VN.shape[1]
        votes_CN = scipy.sparse.csr_array((votes.ravel(), (rows, neighbours.indices.clip(0).ravel())), shape=shape)
        return best((votes_CN @ self.matrices["targets"]).tocsr(), k)


class LabelMatch(WordMethod):
    """The score of a label is the cosine of its text and the query. Training queries only affect word weights."""

    name = "tfidf-label"
    info = MethodInfo(summary="labels whose text matches the query by TF-IDF", needs=("label texts",))

    def index(self, train: data.TrainingData, words_MV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:
        return {"labels": words_MV[len(train.texts) :].T.tocsr()}

    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        return nearest(words_CV, self.matrices["labels"], k)

    def add_labels(self, texts: data.Texts) -> None:
        added_VN = scipy.sparse.csr_array(self.words.transform(list(texts))).T
        self.matrices["labels"] = scipy.sparse.hstack([self.matrices["labels"], added_VN], format="csr")


class BM25LabelMatch(WordMethod):
    """BM25 with labels as documents (Robertson and Zaragoza, 2009); training queries are not used.

    A label scores the sum, over the words it shares with the query, of count in the query x idf x saturation, where
    idf = ln(1 + (L - n + 0.5) / (n + 0.5)) for a word in n of the L labels, and
    saturation = tf (k1 + 1) / (tf + k1 (1 - b + b length / mean length)) for a word that is tf times in the label.
    """

    name = "bm25-label"
    info = MethodInfo(summary="labels whose text matches the query by BM25", needs=("label texts",))

    class Config(Method.Config):
        k1: float = Field(1.2, ge=0, description="how slowly a word that is repeated in a label saturates")
        b: float = Field(0.75, ge=0, le=1, description="strength of the normalisation by label length")

    config: BM25LabelMatch.Config

    def terms(self) -> Terms:
        return Terms(counts)

    def corpus(self, train: data.TrainingData) -> Iterable[str]:
        return train.label_texts

    def index(self, train: data.TrainingData, words_LV: scipy.sparse.csr_array) -> dict[str, scipy.sparse.csr_array]:  # noqa: ARG002
        return {"labels": bm25(words_LV, self.config.k1, self.config.b).T.tocsr()}

    def best_labels(self, words_CV: scipy.sparse.csr_array, k: int) -> Predictions:
        return nearest(words_CV, self.matrices["labels"], k)


def bm25(counts_LV: scipy.sparse.csr_array, k1: float, b: float) -> scipy.sparse.csr_array:
    """The weights of terms in documents [L, V] by BM25, of their counts there."""
    num_labels, num_words = counts_LV.shape
    within = np.bincount(counts_LV.indices, minlength=num_words)
    idf_V = np.log1p((num_labels - within + 0.5) / (within + 0.5))
    length_L = np.asarray(counts_LV.sum(axis=1)).ravel()
    slow_L = k1 * (1 - b + b * length_L / length_L.mean())
    slow = np.repeat(slow_L, np.diff(counts_LV.indptr))
    values = idf_V[counts_LV.indices] * counts_LV.data * (k1 + 1) / (counts_LV.data + slow)
    return scipy.sparse.csr_array((values.astype(np.float32), counts_LV.indices, counts_LV.indptr), counts_LV.shape)


class Terms:
    """The words of texts, and on request the sequences of characters within them: columns beside one another.

    `make` makes a vectorizer of scikit-learn. Of rows with a length, each of both has half of the square.
    """

    def __init__(self, make: Callable[..., Any], characters: tuple[int, int] | None = None) -> None:
        self._makers = {"": make}
        if characters:
            self._makers[CHARACTERS] = partial(make, analyzer="char_wb", ngram_range=tuple(characters))
        self._parts = [own() for own in self._makers.values()]
        self._share = 1.0 if make is counts else len(self._parts) ** -0.5

    def fit_transform(self, texts: Iterable[str]) -> scipy.sparse.csr_array:
        """The rows of the texts that give terms their weights. Raises ValueError where they hold no term."""
        listed = list(texts)
        return self._beside([part.fit_transform(listed) for part in self._parts])

    def transform(self, texts: list[str]) -> scipy.sparse.csr_array:
        """The rows of other texts."""
        return self._beside([part.transform(texts) for part in self._parts])

    def save(self, directory: Path) -> None:
        """Write the terms and their weights to a folder."""
        for name, part in zip(self._makers, self._parts, strict=True):
            folder = directory / name
            folder.mkdir(exist_ok=True)
            (folder / "words.json").write_text(json.dumps(part.get_feature_names_out().tolist()))
            if hasattr(part, "idf_"):
                np.save(folder / "idf.npy", part.idf_)

    def load(self, directory: Path) -> Terms:
        """These terms, with what `save` wrote."""
        self._parts = []
        for name, make in self._makers.items():
            part = make(json.loads((directory / name / "words.json").read_text()))
            if (idf := directory / name / "idf.npy").exists():
                part.idf_ = np.load(idf, allow_pickle=False)
            self._parts.append(part)
        return self

    def _beside(self, parts: list[Any]) -> scipy.sparse.csr_array:
        if len(parts) == 1:
            return scipy.sparse.csr_array(parts[0])
        weighed = [self._share * part for part in parts]
        return scipy.sparse.csr_array(scipy.sparse.hstack(weighed, format="csr", dtype=np.float32))


def tfidf(vocabulary: list[str] | None = None, **settings: Any) -> Any:
    """A vectorizer of scikit-learn, with the vocabulary of one that was fitted."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(vocabulary=vocabulary, sublinear_tf=True, dtype=np.float32, **settings)


def counts(vocabulary: list[str] | None = None, **settings: Any) -> Any:
    """A vectorizer that counts terms."""
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(vocabulary=vocabulary, dtype=np.float32, **settings)


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


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    for method in (NearestNeighbours, LabelMatch, BM25LabelMatch):
        register(method)
