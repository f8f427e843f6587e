"""A sparse linear ranker of the first method's best labels (DEXML Section C.8, Table 15; after ELIAS, Section 3.5).

Legend: N queries, C of a chunk, K labels of a shortlist, L labels, V words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy
from pydantic import Field

from xmcbench import MethodInfo, Run, XMCBenchError, data
from xmcbench_plugins.second_stage.stage import Reranker
from xmcbench_plugins.tfidf import Characters, Terms, tfidf

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64  # queries scored at once
FOLDER = "ranker"  # in a model's directory


class SparseRanker(Reranker):
    """Per label a linear TF-IDF classifier that separates its queries from those it was wrongly shortlisted for.

    Within a query's shortlist both scores are scaled to mean 0 and variance 1 and added, whatever the first one's
    scale. A label that cannot be learnt (without a true query, or without a false one) has no say: it gets the mean.
    """

    name = "sparse-ranker"
    info = MethodInfo(
        summary="second stage: sparse TF-IDF classifiers rank a dual encoder's best labels",
        citation="Gupta et al., ELIAS: End-to-end Learning to Index and Search in Large Output Spaces, NeurIPS 2022",
        # 3: tuned by its own answers to held-out queries; 4: the solver is charged and stops at a spent budget; it is
        # always dual coordinate descent, whose iterations tell its operations
        version=4,
    )

    late_imports = (*Reranker.late_imports, "sklearn.feature_extraction.text", "sklearn.svm")

    class Config(Reranker.Config):
        c: float = Field(1.0, gt=0, description="inverse regularisation of the squared hinge")
        characters: Characters = None

    config: SparseRanker.Config
    weights_LV: scipy.sparse.csr_array
    intercepts_L: np.ndarray  # NaN for labels without a classifier

    @property
    def num_parameters(self) -> int:
        return self.first.num_parameters + self.weights_LV.nnz + int((~np.isnan(self.intercepts_L)).sum())

    def learn(self, train: data.TrainingData, queries_ND: Tensor | None, run: Run) -> None:
        ledger = run.ledger
        listed_NK = np.full((len(train.texts), 1), -1)
        if queries_ND is not None:
            listed_NK = self.listed(queries_ND, train.ignore, run)
        with ledger.between_checks(run.budget), ledger.stage("train"):
            self.words = Terms(tfidf, self.config.characters)
            try:
                words_NV = scipy.sparse.csr_array(self.words.fit_transform(list(train.texts)))
            except ValueError as problem:
                raise XMCBenchError(f"{train.card.name}: TF-IDF finds no word in the texts") from problem
        self._fit_labels(words_NV, _pairs(listed_NK, train.targets), train, run)

    def _fit_labels(
        self, words_NV: scipy.sparse.csr_array, shown: scipy.sparse.csc_array, train: data.TrainingData, run: Run
    ) -> None:
        """Train one classifier per label, frequent labels first, within the budget. `shown` [N, L] are its queries."""
        from sklearn.svm import LinearSVC

        true, ledger = train.targets.tocsc(), run.ledger
        self.intercepts_L = np.full(train.num_labels, np.nan, np.float32)
        rows = [scipy.sparse.csr_array((1, words_NV.shape[1]), dtype=np.float32)] * train.num_labels
        order = np.argsort(-np.diff(true.indptr), kind="stable")
        for done, label in enumerate(order.tolist()):
            if self.spent(run) >= 1:
                break
            queries = shown.indices[shown.indptr[label] : shown.indptr[label + 1]]
            of_label = np.isin(queries, true.indices[true.indptr[label] : true.indptr[label + 1]])
            if of_label.all() or not of_label.any():
                continue
            with ledger.between_checks(run.budget), ledger.stage("train"):
                shown_NV = words_NV[queries]
                learnt = LinearSVC(C=self.config.c, dual=True, random_state=0).fit(shown_NV, of_label)
                ledger.solver_flops += solver_flops(int(learnt.n_iter_), shown_NV)
                rows[label] = scipy.sparse.csr_array(learnt.coef_.astype(np.float32))
                self.intercepts_L[label] = learnt.intercept_[0]
            self.report(run, done / len(order), label=done)
        self.weights_LV = scipy.sparse.vstack(rows, format="csr")

    def scores(self, texts: data.Texts, labels_NK: np.ndarray) -> np.ndarray:
        margins_NK = np.empty(labels_NK.shape, np.float32)
        for start in range(0, len(texts), CHUNK):
            labels_CK = labels_NK[start : start + CHUNK]
            words_CV = scipy.sparse.csr_array(self.words.transform(list(texts[start : start + CHUNK])))
            queries = np.repeat(np.arange(len(labels_CK)), labels_CK.shape[1])
            products = words_CV[queries].multiply(self.weights_LV[labels_CK.ravel()]).sum(axis=1)
            margins_NK[start : start + CHUNK] = np.asarray(products).reshape(labels_CK.shape)
        return margins_NK + self.intercepts_L[labels_NK]

    def charge_scores(self, texts: data.Texts, labels_NK: np.ndarray, run: Run) -> None:
        words_N = np.diff(scipy.sparse.csr_array(self.words.transform(list(texts))).indptr)
        run.ledger.scoring_flops += 2 * int((words_N * (labels_NK >= 0).sum(axis=1)).sum())

    @property
    def saved_texts(self) -> str:
        return "their words"

    def save(self, directory: Path) -> None:
        super().save(directory)
        folder = directory / FOLDER
        folder.mkdir()
        self.words.save(folder)
        np.save(folder / "intercepts.npy", self.intercepts_L)
        scipy.sparse.save_npz(folder / "weights.npz", self.weights_LV)

    def load(self, directory: Path) -> None:
        super().load(directory)
        folder = directory / FOLDER
        self.words = Terms(tfidf, self.config.characters).load(folder)
        self.intercepts_L = np.load(folder / "intercepts.npy", allow_pickle=False)
        self.weights_LV = scipy.sparse.csr_array(scipy.sparse.load_npz(folder / "weights.npz"))


def solver_flops(iterations: int, rows_NV: scipy.sparse.csr_array) -> int:
    """At most the operations of so many iterations of dual coordinate descent over rows with an intercept.

    An iteration multiplies each row with the weights and adds a multiple of it to them: four operations for each
    non-zero (Hsieh et al., ICML 2008, Algorithm 1). liblinear leaves out rows whose dual variable is surely at its
    bound, and updates by none that is optimal: it took 0.5 to 0.9 of this on the texts of catalog-1k.
    """
    return 4 * iterations * (rows_NV.nnz + rows_NV.shape[0])


def _pairs(listed_NK: np.ndarray, targets: scipy.sparse.csr_array) -> scipy.sparse.csc_array:
    """[N, L] the shortlisted and the true pairs."""
    rows, places = np.nonzero(listed_NK >= 0)
    return scipy.sparse.csc_array(data.pairs_csr(rows, listed_NK[rows, places], targets.shape) + targets)
