"""Methods that score by inner product: they say what is their own, and the harness trains them.

Legend: B queries of a batch, S labels of its pool, L labels, N texts, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.method import Method, Run, derive_seed
from xmcbench.models.embedding import Precision, embed_all, evaluating
from xmcbench.models.encoder import Encoder, EncoderConfig
from xmcbench.predictions import Predictions
from xmcbench.sampling.sampler import Batch, Sampler
from xmcbench.search.exact import top_k


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def micro_batch_size(settings: EmbeddingMethod.Config) -> int:
    """Padded tokens of a micro-batch: on a CPU small ones waste the least on padding, a GPU wants to be filled."""
    return settings.micro_batch_tokens or (65_536 if torch.cuda.is_available() else 2_048)


class EmbeddingMethod(Method):
    """A dual encoder: one text encoder for queries and labels, a sampler, a loss over embeddings.

    A method supplies `sampler` and `loss`. One that has modules over the embeddings (projection heads, a classifier
    table) makes them in `build_modules`, and says in `query_vectors` and `label_vectors` what it multiplies.
    """

    class Config(Method.Config):
        """Settings every trained dual encoder has."""

        encoder: EncoderConfig = EncoderConfig()
        batch_size: int = Field(1024, gt=0, description="queries a step")
        learning_rate: float = Field(3e-4, gt=0)
        weight_decay: float = Field(0.01, ge=0, description="not on biases and norms")
        warmup: float = Field(0.1, ge=0, lt=1, description="share of the budget in which the learning rate rises")
        precision: Precision = Field("float32", description="of matrix products in the encoder; bf16 is autocast")
        max_query_length: int | None = Field(None, gt=1, description="tokens; null takes the dataset card's")
        max_label_length: int | None = Field(None, gt=1, description="tokens; null takes the dataset card's")
        micro_batch_tokens: int | None = Field(
            None, gt=0, description="padded tokens through the encoder at once; null is 2,048 on a CPU, 65,536 on a GPU"
        )
        activation_gib: float = Field(4.0, ge=0, description="GiB of activations kept before a second pass is needed")

    config: EmbeddingMethod.Config
    encoder: Encoder
    modules: nn.Module
    query_length: int

    @abstractmethod
    def sampler(self, train: TrainingData, seed: int) -> Sampler:
        """Which queries make a batch, and which labels they are scored against."""

    @abstractmethod
    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
        """Scalar loss of the embeddings of a batch's queries and pool. `batch.positives` is on their device."""

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        """The method's own modules over embeddings; trained with the encoder. None by default."""
        return nn.Module()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for AdamW: decay on matrices only, the learning rate in `lr`."""
        parameters = [p for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad]
        rate, decay = self.config.learning_rate, self.config.weight_decay
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "lr": rate, "weight_decay": decay},
            {"params": [p for p in parameters if p.ndim <= 1], "lr": rate, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """What is scored for a query, from its embedding."""
        return embeddings_ND

    def label_vectors(self, embeddings_LD: Tensor) -> Tensor:
        """What is scored for every label, from the labels' embeddings."""
        return embeddings_LD

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad)

    # The harness's side: nothing below knows which method it serves.
    def prepare(self, train: TrainingData, run: Run) -> tuple[Tokens, Tokens]:
        """Build encoder and modules; return the tokenised training queries and labels."""
        with run.ledger.stage("prepare"):
            seed = derive_seed(run.seed, "weights")
            self.encoder = Encoder.build(self.config.encoder, train.texts, seed, run.cache)
            torch.manual_seed(seed)
            self.modules = self.build_modules(train)
            for module in (self.encoder, self.modules):
                module.to(default_device())
            self.query_length = self.config.max_query_length or train.card.max_length
            label_length = self.config.max_label_length or train.card.max_label_length
            tokenizer = self.encoder.tokenizer
            queries = tokenizer.tokens(train.texts, self.query_length, run.cache)
            return queries, tokenizer.tokens(train.label_texts, label_length, run.cache)

    def fit(self, train: TrainingData, run: Run) -> None:
        from xmcbench.training.trainer import Trainer

        queries, labels = self.prepare(train, run)
        Trainer(self, train, queries, labels, run).train()
        with run.ledger.stage("index"):
            self.index_LD = self.all_label_vectors(labels)

    def embed(self, tokens: Tokens) -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off."""
        settings = self.config
        return embed_all(
            self.encoder, tokens, precision=settings.precision, micro_batch_tokens=micro_batch_size(settings)
        )

    @torch.inference_mode()
    def all_query_vectors(self, tokens: Tokens) -> Tensor:
        with evaluating(self.modules):
            return self.query_vectors(self.embed(tokens))

    @torch.inference_mode()
    def all_label_vectors(self, tokens: Tokens) -> Tensor:
        with evaluating(self.modules):
            return self.label_vectors(self.embed(tokens))

    def predict(self, texts: Texts, k: int) -> Predictions:
        tokens = self.encoder.tokenizer.tokens(texts, self.query_length)
        return top_k(self.all_query_vectors(tokens), self.index_LD, k)

    def save(self, directory: Path) -> None:
        self.encoder.save(directory)
        tensors = {f"modules.{name}": tensor for name, tensor in self.modules.state_dict().items()}
        tensors["index"] = self.index_LD
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            directory / "vectors.safetensors",
            metadata={"query_length": str(self.query_length)},
        )

    def load(self, directory: Path) -> None:
        from safetensors import safe_open

        self.encoder = Encoder.load(self.config.encoder, directory).to(default_device())
        tensors = load_file(directory / "vectors.safetensors", device=str(default_device()))
        with safe_open(directory / "vectors.safetensors", framework="pt") as file:
            self.query_length = int(file.metadata()["query_length"])
        self.index_LD = tensors.pop("index")
        self.load_modules({name.removeprefix("modules."): tensor for name, tensor in tensors.items()})

    def load_modules(self, tensors: dict[str, Tensor]) -> None:
        """Rebuild what `build_modules` made from saved tensors; a method with modules of its own overrides it."""
        if tensors:
            raise NotImplementedError(f"{type(self).__name__} has modules, so it must say how to load them")
        self.modules = nn.Module()
