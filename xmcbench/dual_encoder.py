"""Methods that rank labels by an inner product of embeddings; whether and how they are trained is another matter.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.method import Method, Run, derive_seed
from xmcbench.models.embedding import Precision, embed_all, evaluating
from xmcbench.models.encoder import Encoder, EncoderConfig
from xmcbench.models.label_table import LabelTable
from xmcbench.predictions import Predictions
from xmcbench.sampling.sharding import Shard
from xmcbench.search.index import Backend, build_index
from xmcbench.workers import current_workers

VECTORS = "vectors.safetensors"  # in a model's directory: the index and the method's own modules


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class DualEncoder(Method):
    """One text encoder for queries and labels, an index of label vectors."""

    encodes_labels: ClassVar[bool] = True
    """Whether label texts go through the encoder; without, the embeddings of S labels are [S, 0]."""

    class Config(Method.Config):
        """Settings every dual encoder has."""

        encoder: EncoderConfig = EncoderConfig()
        precision: Precision = Field("float32", description="of matrix products in the encoder; bf16 is autocast")
        max_query_length: int | None = Field(None, gt=1, description="tokens; null takes the dataset card's")
        max_label_length: int | None = Field(None, gt=1, description="tokens; null takes the dataset card's")
        search: Backend = Field("exact", description="of predictions; faiss-hnsw approximates")
        micro_batch_tokens: int | None = Field(
            None, gt=0, description="padded tokens through the encoder at once; null is 2,048 on a CPU, 65,536 on a GPU"
        )

        @property
        def micro_batch_size(self) -> int:
            """On a CPU small micro-batches waste the least on padding; a GPU wants to be filled."""
            return self.micro_batch_tokens or (65_536 if torch.cuda.is_available() else 2_048)

    config: DualEncoder.Config
    encoder: Encoder
    modules: nn.Module
    index_LD: Tensor
    query_length: int
    shard: Shard  # which labels this worker holds, while it trains
    table_values: int = 0  # numbers in the label tables of all workers

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        """The method's own modules over embeddings; trained with the encoder. None by default."""
        return nn.Module()

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        """What `build_modules` made, from its saved tensors. A method that has modules overrides both."""
        if tensors:
            raise TypeError(f"{type(self).__name__} has modules of its own, so it has to define load_modules")
        return nn.Module()

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """What is scored for a query, from its embedding."""
        return embeddings_ND

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """What is scored for the labels `label_ids` [S], all of them this worker's, from their embeddings."""
        return embeddings_SD

    def label_groups(self, train: TrainingData) -> np.ndarray | None:  # noqa: ARG002
        """[L] labels with the same number lie with one worker; None, the default, puts no label with another.

        For a method whose labels share vectors.
        """
        return None

    def prepare(self, train: TrainingData, run: Run) -> tuple[Tokens, Tokens]:
        """Build encoder and modules; return the tokenised training queries and labels."""
        self.shard = Shard(train.num_labels, current_workers(), self.label_groups(train))
        seed = derive_seed(run.seed, "weights")
        self.encoder = Encoder.build(self.config.encoder, train.texts, seed, run.cache).to(default_device())
        torch.manual_seed(seed)
        self.modules = self.build_modules(train).to(default_device())
        held = sum(table.weight.numel() for table in self.tables().values())
        self.table_values = int(self.shard.workers.sum(torch.tensor(held, device=default_device())))
        self.query_length = self.config.max_query_length or train.card.max_length
        label_length = self.config.max_label_length or train.card.max_label_length
        self.encoder.check_length(max(self.query_length, label_length))
        tokenizer = self.encoder.tokenizer
        queries = tokenizer.tokens(train.texts, self.query_length, run.cache)
        return queries, tokenizer.tokens(train.label_texts, label_length, run.cache)

    def embed(self, tokens: Tokens) -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off."""
        settings = self.config
        return embed_all(
            self.encoder, tokens, precision=settings.precision, micro_batch_tokens=settings.micro_batch_size
        )

    @torch.inference_mode()
    def all_query_vectors(self, tokens: Tokens) -> Tensor:
        """[N, D] vectors of the training queries, on every worker; each embeds its share."""
        workers = self.shard.workers
        places = [np.arange(rank, len(tokens), workers.size) for rank in range(workers.size)]
        with evaluating(self.modules):
            mine = self.query_vectors(self.embed(tokens.take(places[workers.rank])))
        return _in_order(workers.gather(mine), np.concatenate(places))

    @torch.inference_mode()
    def all_label_vectors(self, tokens: Tokens) -> Tensor:
        """[L, D] vectors of all labels, on every worker; each embeds the labels it holds."""
        shard = self.shard
        with evaluating(self.modules):
            mine_SD = (
                self.embed(tokens.take(shard.label_ids))
                if self.encodes_labels
                else torch.empty(len(shard.label_ids), 0, device=default_device())
            )
            mine = self.label_vectors(mine_SD, shard.label_ids)
        return _in_order(shard.workers.gather(mine), shard.everyone())

    def predict(self, texts: Texts, k: int) -> Predictions:
        tokens = self.encoder.tokenizer.tokens(texts, self.query_length)
        with torch.inference_mode(), evaluating(self.modules):
            queries_ND = self.query_vectors(self.embed(tokens))
        return build_index(self.index_LD, self.config.search).top_k(queries_ND, k)

    def module_tensors(self) -> dict[str, Tensor]:
        """State of the method's modules that every worker has alike: without the tables, whose rows are dealt out."""
        tables = tuple(f"{name}." if name else "" for name in self.tables())
        return {name: tensor for name, tensor in self.modules.state_dict().items() if not name.startswith(tables)}

    def tables(self) -> dict[str, LabelTable]:
        """The label tables among the method's modules, by name."""
        return {name: module for name, module in self.modules.named_modules() if isinstance(module, LabelTable)}

    @property
    def num_parameters(self) -> int:
        trained = sum(p.numel() for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad)
        return trained + self.table_values

    def save(self, directory: Path) -> None:
        self.encoder.save(directory)
        tensors = {f"modules.{name}": tensor.contiguous() for name, tensor in self.module_tensors().items()}
        tensors["index"] = self.index_LD.contiguous()
        save_file(tensors, directory / VECTORS, metadata={"query_length": str(self.query_length)})

    def load(self, directory: Path) -> None:
        self.encoder = Encoder.load(self.config.encoder, directory).to(default_device())
        tensors = load_file(directory / VECTORS, device=str(default_device()))
        with safe_open(directory / VECTORS, framework="pt") as file:
            self.query_length = int(file.metadata()["query_length"])
        self.index_LD = tensors.pop("index")
        self.modules = self.load_modules({name.removeprefix("modules."): tensor for name, tensor in tensors.items()})


def _in_order(rows: Tensor, places: np.ndarray) -> Tensor:
    """Rows in the order of the places they belong to, where row i belongs to `places[i]`."""
    if len(places) < 2 or bool((np.diff(places) > 0).all()):
        return rows
    return rows[torch.from_numpy(np.argsort(places)).to(rows.device)]
