"""Dual encoders: methods that rank labels by inner products of embeddings, trained or not.

Legend: L labels, N texts, D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.engine.contract import VectorMethod
from xmcbench.engine.device import default_device
from xmcbench.engine.search.index import APPROXIMATE, Backend, build_index
from xmcbench.errors import XMCBenchError
from xmcbench.files.arrays import sort_header
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import Run

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.data.tokens import Tokens

VECTORS = "vectors.safetensors"  # in a model's directory: the index and the method's own modules


class DualEncoder(VectorMethod):
    """One text encoder for queries and labels, an index of label vectors."""

    def prepare(self, train: TrainingData, run: Run) -> None:
        """Build encoder and modules and tokenise the texts: sets `encoder`, `modules`, `shard`, `queries`, `labels`."""
        from xmcbench.engine.assembly import assemble

        assemble(self, train, run)

    def all_query_vectors(self, tokens: Tokens) -> Tensor:
        """[N, D] the vectors that these queries are scored with, on every worker; each embeds its share."""
        return self.embed_queries(tokens, self.query_vectors)

    def all_label_vectors(self, tokens: Tokens) -> Tensor:
        """[L, D] the vectors that all labels are scored with, on every worker; each embeds the labels it holds."""
        return self.embed_labels(tokens, self.label_vectors, encode=self.encodes_labels)

    def embed_texts(self, texts: Texts) -> Tensor:
        """[N, D] the encoder's embeddings of queries that the method has not seen, as `predict` is given them."""
        return self.embed(self.encoder.tokenizer.tokens(texts, self.query_length))

    def predict(self, texts: Texts, k: int) -> Predictions:
        return self._predict(texts, k, self.config.search)

    def predict_exactly(self, texts: Texts, k: int) -> Predictions | None:
        return self._predict(texts, k, "exact") if self.config.search in APPROXIMATE else None

    def _predict(self, texts: Texts, k: int, search: Backend) -> Predictions:
        with self.inference():
            queries_ND = self.query_vectors(self.embed_texts(texts))
        return build_index(self.index_LD, search).top_k(queries_ND, k)

    def add_labels(self, texts: Texts) -> None:
        """Embed the texts as those of the labels were. Raises XMCBenchError for labels with vectors of their own."""
        import torch

        if type(self).label_vectors is not VectorMethod.label_vectors or not self.encodes_labels:
            raise XMCBenchError(f"method {self.name!r} learns a vector of each label, and a new label has none")
        if not self.label_length:
            raise XMCBenchError(f"method {self.name!r}: the model is of an earlier version: run the trial again")
        with self.inference():
            added_LD = self.embed(self.encoder.label_tokenizer.tokens(texts, self.label_length))
        self.index_LD = torch.cat([self.index_LD, added_LD])

    @property
    def encoder_alone_scores(self) -> bool:
        """Whether a score is the inner product of the encoder's own embeddings, without modules or tables."""
        own = type(self).query_vectors, type(self).label_vectors
        plain = own == (VectorMethod.query_vectors, VectorMethod.label_vectors)
        return plain and self.encodes_labels and not self.module_tensors() and not self.tables()

    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        self.encoder.save(directory)
        if self.encoder_alone_scores:
            self.encoder.write_sentence_layout(directory, self.query_length)
        tensors = {f"modules.{name}": tensor.contiguous() for name, tensor in self.module_tensors().items()}
        tensors["index"] = self.index_LD.contiguous()
        lengths = {"query_length": str(self.query_length), "label_length": str(self.label_length)}
        save_file(tensors, directory / VECTORS, metadata=lengths)
        with (directory / VECTORS).open("r+b") as file:
            sort_header(file)

    def load(self, directory: Path) -> None:
        from safetensors import safe_open
        from safetensors.torch import load_file

        from xmcbench.engine.encoders.build import load_encoder

        device = default_device()
        self.encoder = load_encoder(self.config.encoder, directory).to(device)
        tensors = {name: tensor.to(device) for name, tensor in load_file(directory / VECTORS).items()}
        with safe_open(directory / VECTORS, framework="pt") as file:
            lengths = file.metadata()
        self.query_length, self.label_length = int(lengths["query_length"]), int(lengths.get("label_length", 0))
        self.index_LD = tensors.pop("index")
        self.modules = self.load_modules({name.removeprefix("modules."): tensor for name, tensor in tensors.items()})
