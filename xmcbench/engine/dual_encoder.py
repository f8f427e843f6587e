"""Methods that rank labels by an inner product of embeddings; whether and how they are trained is another matter.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from xmcbench.engine import checkpoint
from xmcbench.engine.encoders.embedding import Precision, embed_all, evaluating
from xmcbench.engine.encoders.encoder import Encoder, EncoderConfig
from xmcbench.engine.encoders.sentence_layout import write_sentence_layout
from xmcbench.engine.flops import counting
from xmcbench.engine.sampling.embeddings import Embeddings
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.search.index import Backend, build_index
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.workers import current_workers
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.budget import Ledger
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import Run, derive_seed
from xmcbench.trial.versions import ENGINE_VERSION

VECTORS = "vectors.safetensors"  # in a model's directory: the index and the method's own modules
GROUPS = "label_groups.npy"  # beside the checkpoints


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class DualEncoder(Method):
    """One text encoder for queries and labels, an index of label vectors."""

    many_workers: ClassVar[bool] = True
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
            None,
            gt=0,
            description="padded tokens in the encoder at once; null: 2,048 on a CPU (bf16: 8,192), 65,536 on a GPU",
        )

        @property
        def micro_batch_size(self) -> int:
            """Padded tokens through the encoder at once, here."""
            return self.micro_batch_on(default_device().type)

        def micro_batch_on(self, kind: str) -> int:
            """Padded tokens through the encoder at once, on a device of that kind.

            Results depend on it only by rounding, so the default is the fastest: large on a GPU, small on a CPU, where
            small micro-batches hold the least padding. In bf16 a CPU prepares its products anew for each shape, so
            larger micro-batches are faster. The dropout of a compiled encoder does depend on its micro-batches, so
            their size is the same on all devices.
            """
            if self.encoder.compile:
                return self.micro_batch_tokens or 8_192
            on_cpu = 8_192 if self.precision == "bf16" else 2_048
            return self.micro_batch_tokens or (65_536 if kind == "cuda" else on_cpu)

    config: DualEncoder.Config
    encoder: Encoder
    modules: nn.Module
    index_LD: Tensor
    query_length: int
    shard: Shard  # which labels this worker holds, while it trains
    table_values: int = 0  # numbers in the label tables of all workers

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        return {**super().versions(config), "engine": ENGINE_VERSION}

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

    def mining_query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """What a sampler sees of a query when it looks for neighbours: what is scored, by default."""
        return self.query_vectors(embeddings_ND)

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """What a sampler sees of the labels `label_ids` [S] when it looks for neighbours."""
        return self.label_vectors(embeddings_SD, label_ids)

    def label_groups(self, train: TrainingData, embeddings: Embeddings) -> np.ndarray | None:  # noqa: ARG002
        """[L] labels with the same number lie with one worker; None, the default, puts no label with another.

        For a method whose labels share vectors; it finds them in `shard.groups_L`. `embeddings` are those of the
        encoder before training. Called on every worker, and not again when a run is resumed.
        """
        return None

    def prepare(self, train: TrainingData, run: Run) -> tuple[Tokens, Tokens]:
        """Build encoder and modules; return the tokenised training queries and labels."""
        workers, seed = current_workers(), derive_seed(run.seed, "weights")
        self.encoder = Encoder.build(self.config.encoder, train.texts, seed, run.cache).to(default_device())
        self.query_length = self.config.max_query_length or train.card.max_length
        label_length = self.config.max_label_length or train.card.max_label_length
        self.encoder.check_length(max(self.query_length, label_length))
        tokenizer = self.encoder.tokenizer
        queries = tokenizer.tokens(train.texts, self.query_length, run.cache)
        labels = tokenizer.tokens(train.label_texts, label_length, run.cache)
        # Which labels lie together may depend on embeddings, which each worker makes of some of them.
        self.modules, self.shard = nn.Module(), Shard(train.num_labels, workers)
        torch.manual_seed(seed)
        groups_L = self._groups(train, self.embeddings(queries, labels, run.ledger), run)
        self.shard = Shard(train.num_labels, workers, groups_L)
        torch.manual_seed(seed)
        self.modules = self.build_modules(train).to(default_device())
        held = sum(table.weight.numel() for table in self.tables().values() if table.learns)
        self.table_values = int(workers.sum(torch.tensor(held, device=default_device())))
        return queries, labels

    def _groups(self, train: TrainingData, embeddings: Embeddings, run: Run) -> np.ndarray | None:
        """What `label_groups` says; in a resumed run, on however many workers, what it said at first.

        Embeddings depend on the number of workers by rounding, and so might the groups: the table rows of a
        checkpoint lie by what it said at first. Where workers disagree, worker 0 is right.
        """
        kept = run.checkpoint / GROUPS
        if kept.exists() and checkpoint.newest(run.checkpoint):
            found: np.ndarray = np.load(kept, allow_pickle=False)
            return found
        with counting() as scored:
            groups_L = self.label_groups(train, embeddings)
        if groups_L is None:
            return None
        run.ledger.scoring_flops += scored.flops
        workers = self.shard.workers
        mine_L = torch.from_numpy(groups_L.astype(np.int64)).to(default_device())
        agreed_L: np.ndarray = workers.max(mine_L if workers.rank == 0 else torch.zeros_like(mine_L)).cpu().numpy()
        if workers.rank == 0:
            with atomic_write(kept) as file:
                np.save(file, agreed_L, allow_pickle=False)
        return agreed_L

    def embed(self, tokens: Tokens) -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off."""
        settings = self.config
        return embed_all(
            self.encoder, tokens, precision=settings.precision, micro_batch_tokens=settings.micro_batch_size
        )

    def embeddings(self, queries: Tokens, labels: Tokens, ledger: Ledger, *, mining: bool = False) -> Embeddings:
        """Those of all texts as the encoder gives them, or with `mining` what samplers see; charged when asked for.

        The encoder gives label texts' embeddings to a method too that does not encode them in training.
        """

        def charged(vectors: Callable[[Tokens], Tensor], tokens: Tokens, encodes: bool) -> Tensor:
            if encodes:
                ledger.encoder_tokens += int(tokens.lengths.sum())
                ledger.encoder_flops += self.encoder.flops(tokens.lengths)
            return vectors(tokens)

        of_queries = partial(self._of_queries, lambda embeddings_ND: embeddings_ND)
        of_labels = partial(self._of_labels, lambda embeddings_SD, _: embeddings_SD, encodes=True)
        if mining:
            of_queries = partial(self.all_query_vectors, mining=True)
            of_labels = partial(self.all_label_vectors, mining=True)
        return Embeddings(
            queries=partial(charged, of_queries, queries, True),
            labels=partial(charged, of_labels, labels, self.encodes_labels or not mining),
            workers=self.shard.workers,
            stage=ledger.stage,
        )

    def all_query_vectors(self, tokens: Tokens, *, mining: bool = False) -> Tensor:
        """[N, D] vectors of the training queries, on every worker; each embeds its share.

        They are what is scored, or with `mining` what samplers see.
        """
        return self._of_queries(self.mining_query_vectors if mining else self.query_vectors, tokens)

    def all_label_vectors(self, tokens: Tokens, *, mining: bool = False) -> Tensor:
        """[L, D] vectors of all labels, on every worker; each embeds the labels it holds.

        They are what is scored, or with `mining` what samplers see.
        """
        vectors = self.mining_label_vectors if mining else self.label_vectors
        return self._of_labels(vectors, tokens, encodes=self.encodes_labels)

    @torch.inference_mode()
    def _of_queries(self, vectors: Callable[[Tensor], Tensor], tokens: Tokens) -> Tensor:
        workers = self.shard.workers
        places = [np.arange(rank, len(tokens), workers.size) for rank in range(workers.size)]
        with evaluating(self.modules):
            mine = vectors(self.embed(tokens.take(places[workers.rank])))
        return _in_order(workers.gather(mine), np.concatenate(places))

    @torch.inference_mode()
    def _of_labels(self, vectors: Callable[[Tensor, np.ndarray], Tensor], tokens: Tokens, *, encodes: bool) -> Tensor:
        shard = self.shard
        with evaluating(self.modules):
            mine_SD = (
                self.embed(tokens.take(shard.label_ids))
                if encodes
                else torch.empty(len(shard.label_ids), 0, device=default_device())
            )
            mine = vectors(mine_SD, shard.label_ids)
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

    @property
    def encoder_alone_scores(self) -> bool:
        """Whether a score is the inner product of two embeddings as they are: nothing is made of them first."""
        kind = type(self)
        as_they_are = (kind.query_vectors, kind.label_vectors) == (DualEncoder.query_vectors, DualEncoder.label_vectors)
        return as_they_are and self.encodes_labels and not self.module_tensors() and not self.tables()

    def save(self, directory: Path) -> None:
        self.encoder.save(directory)
        if self.encoder_alone_scores:
            write_sentence_layout(directory, self.encoder.config, self.encoder.dimension, self.query_length)
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
