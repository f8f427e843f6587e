"""BM25 with labels as documents (Robertson and Zaragoza, 2009).

A label scores the sum, over the words it shares with the query, of count in the query x idf x saturation, where
idf = ln(1 + (L - n + 0.5) / (n + 0.5)) for a word in n of the L labels, and
saturation = tf (k1 + 1) / (tf + k1 (1 - b + b length / mean length)) for a word that is tf times in the label.

Legend: C queries of a chunk, L labels, V words.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import scipy
from pydantic import Field

from xmcbench import Method, MethodInfo, Predictions, Run, Texts, TrainingData, XMCBenchError
from xmcbench_tfidf.matching import answers, nearest


class BM25LabelMatch(Method):
    """Ranks labels by the BM25 score of their text for the query; training queries are not used."""

    name = "bm25-label"
    info = MethodInfo(summary="labels whose text matches the query by BM25", needs=("label texts",))
    late_imports = ("sklearn.feature_extraction.text", "sparse_dot_topn")

    class Config(Method.Config):
        k1: float = Field(1.2, ge=0, description="how slowly a word that is repeated in a label saturates")
        b: float = Field(0.75, ge=0, le=1, description="strength of the normalisation by label length")

    config: BM25LabelMatch.Config

    def fit(self, train: TrainingData, run: Run) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        with run.ledger.stage("train"):
            self.words = CountVectorizer(dtype=np.float32)
            try:
                counts_LV = scipy.sparse.csr_array(self.words.fit_transform(train.label_texts))
            except ValueError as problem:
                raise XMCBenchError(f"{train.card.name}: BM25 finds no word in the label texts") from problem
            self.labels_VL = self._weighed(counts_LV).T.tocsr()

    def _weighed(self, counts_LV: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        k1, b = self.config.k1, self.config.b
        num_labels, num_words = counts_LV.shape
        within = np.bincount(counts_LV.indices, minlength=num_words)
        idf_V = np.log1p((num_labels - within + 0.5) / (within + 0.5))
        length_L = np.asarray(counts_LV.sum(axis=1)).ravel()
        slow_L = k1 * (1 - b + b * length_L / length_L.mean())
        slow = np.repeat(slow_L, np.diff(counts_LV.indptr))
        values = idf_V[counts_LV.indices] * counts_LV.data * (k1 + 1) / (counts_LV.data + slow)
        return scipy.sparse.csr_array((values.astype(np.float32), counts_LV.indices, counts_LV.indptr), counts_LV.shape)

    def predict(self, texts: Texts, k: int) -> Predictions:
        return answers(
            texts, lambda chunk: nearest(scipy.sparse.csr_array(self.words.transform(chunk)), self.labels_VL, k)
        )

    def save(self, directory: Path) -> None:
        (directory / "words.json").write_text(json.dumps(self.words.get_feature_names_out().tolist()))
        scipy.sparse.save_npz(directory / "labels.npz", self.labels_VL)

    def load(self, directory: Path) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        vocabulary = json.loads((directory / "words.json").read_text())
        self.words = CountVectorizer(vocabulary=vocabulary, dtype=np.float32)
        self.labels_VL = scipy.sparse.csr_array(scipy.sparse.load_npz(directory / "labels.npz"))
