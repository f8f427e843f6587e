"""The training queries as a memory beside the labels, read at prediction (RAE-XMC).

The keys K are the vectors of the labels and of the training queries. A softmax over a query's nearest keys gives each
key a weight, and the weights times the values V = [(1 - w) I; w Y] are the scores of the labels: a label's own weight,
and those of the training queries that have it (Y), in the proportion that `query_weight` (w) says.

Legend: N training queries, L labels, M = L + N keys, D dimensions; C queries of a chunk, B keys near a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import scipy
from pydantic import Field

from xmcbench import MethodInfo, Predictions, Run, data, evaluation, search
from xmcbench_plugins.second_stage.stage import SecondStage

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1024  # queries answered at once
QUERIES, TARGETS = "queries.safetensors", "targets.npz"  # in a model's directory


class Memory(SecondStage):
    """Trains nothing: it embeds the training queries once, and searches them and the labels for each query.

    Without budget for that pass the memory stays empty, and the first method's index answers.
    """

    name = "memory"
    info = MethodInfo(
        summary="second stage: a softmax over the nearest labels and training queries of a dual encoder (RAE-XMC)",
        citation="Wang et al., Retrieval-augmented Encoders for Extreme Multi-label Text Classification, 2025",
        version=4,  # keys that tie follow by id
    )
    searches: ClassVar[bool] = False  # before prediction
    counted: ClassVar = {"keys": ("labels", "queries")}
    scoring_settings: ClassVar[frozenset[str]] = frozenset({"keys", "temperature", "query_weight", "similarity"})

    multiplies = True

    class Config(SecondStage.Config):
        share: float = Field(0.95, gt=0, lt=1, description="share of every limit of the budget for the first method")
        keys: int = Field(200, gt=0, description="nearest keys of a query, labels and training queries together")
        temperature: float = Field(0.04, gt=0, description="divides the similarities in the softmax over the keys")
        query_weight: float = Field(
            0.5, ge=0, le=1, description="weight of the training queries' labels; the labels' own keys have the rest"
        )
        similarity: Literal["inner-product", "l2"] = Field(
            "inner-product",
            description="of a query and a key: the inner product, or minus the squared distance (which for vectors of "
            "length 1 is the inner product at half the temperature)",
        )

    config: Memory.Config
    memory_ND: Tensor
    targets: scipy.sparse.csr_array  # [N, L] of the queries in the memory
    _kept: tuple[search.Index, scipy.sparse.csr_array] | None = None  # what `predict` searches, while resident

    @property
    def saved_texts(self) -> str:
        return "a vector and the labels of each text"

    @property
    def num_parameters(self) -> int:
        return self.first.num_parameters

    def learn(self, train: data.TrainingData, queries_ND: Tensor | None, run: Run) -> None:
        with run.ledger.stage("index"):
            known = queries_ND is not None
            self.memory_ND = queries_ND if queries_ND is not None else self.first.index_LD[:0]
            self.targets = scipy.sparse.csr_array(train.targets if known else train.targets[:0], dtype=np.float32)

    @property
    def num_vectors(self) -> int:
        return len(self.first.index_LD) + len(self.memory_ND)

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        import torch

        first, temperature = self.first, self.config.temperature
        with first.inference():
            queries_ND = first.query_vectors(first.embed_texts(texts))
        if self.config.similarity == "l2":
            queries_ND = torch.cat([queries_ND, torch.ones_like(queries_ND[:, :1])], dim=1)
            temperature /= 2
        index, values_ML = self._kept or self._searched()
        num_keys, parts = values_ML.shape[0], []
        for queries_CD in queries_ND.split(CHUNK):
            near = index.top_k(queries_CD, min(self.config.keys, num_keys))
            weights_CB = np.exp((near.scores - near.scores[:, :1]) / temperature)
            weights_CB /= weights_CB.sum(axis=1, keepdims=True)
            ends = np.arange(len(near) + 1) * near.k
            shape = len(near), num_keys
            weights_CM = scipy.sparse.csr_array((weights_CB.ravel(), near.indices.ravel(), ends), shape)
            scores_CL = scipy.sparse.csr_array(weights_CM @ values_ML)
            scores_CL.eliminate_zeros()  # labels of keys without a weight
            parts.append(evaluation.rank_sparse(scores_CL, k))
        return Predictions(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))

    def predict_exactly(self, texts: data.Texts, k: int) -> Predictions | None:  # noqa: ARG002
        """None: the keys are searched exactly, whatever search the first method has."""
        return None

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Within the block one index of the keys answers all calls of `predict`, until labels are added.

        The first method's own index is not built: it is not searched.
        """
        self._kept = self._searched()
        try:
            yield
        finally:
            self._kept = None

    def add_labels(self, texts: data.Texts) -> None:
        """The new labels have keys of their own, and no training query."""
        self._kept = None
        self.first.add_labels(texts)
        self.targets.resize(self.targets.shape[0], len(self.first.index_LD))

    def _searched(self) -> tuple[search.Index, scipy.sparse.csr_array]:
        """An index of the keys, and their values [M, L]."""
        import torch

        with self.first.inference():
            keys_MD = torch.cat([self.first.index_LD, self.memory_ND])
        if self.config.similarity == "l2":  # minus half the squared distance, but for a constant of the query
            keys_MD = torch.cat([keys_MD, -0.5 * keys_MD.square().sum(1, keepdim=True)], dim=1)
        return search.build_index(keys_MD), self._values()

    def _values(self) -> scipy.sparse.csr_array:
        """[M, L] what a key adds to the score of each label."""
        weight = self.config.query_weight if len(self.memory_ND) else 0.0
        own_LL = scipy.sparse.eye_array(len(self.first.index_LD), dtype=np.float32, format="csr")
        return scipy.sparse.csr_array(scipy.sparse.vstack([(1 - weight) * own_LL, weight * self.targets], format="csr"))

    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        super().save(directory)
        save_file({"queries": self.memory_ND.contiguous()}, directory / QUERIES)
        scipy.sparse.save_npz(directory / TARGETS, self.targets)

    def load(self, directory: Path) -> None:
        from safetensors.torch import load_file

        super().load(directory)
        self.memory_ND = load_file(directory / QUERIES)["queries"].to(self.first.index_LD.device)
        self.targets = scipy.sparse.csr_array(scipy.sparse.load_npz(directory / TARGETS))
