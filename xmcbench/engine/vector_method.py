"""What makes the vectors of a dual encoder: its settings, what a method may define, and what all of it costs.

Legend: B queries, L labels, S labels that this worker holds, N texts, M texts of a micro-batch of W tokens, H the width
of a token's state, D dimensions of embeddings, V of vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from xmcbench.data.dataset import DatasetCard, TrainingData
from xmcbench.data.extent import NAME_TOKENS, Extent
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import MODULES, OWN, STATIC, WORDS, EncoderConfig, Precision
from xmcbench.engine.search.index import build_index, search_flops
from xmcbench.engine.search.kinds import CODES, Backend, VectorKind, is_approximate
from xmcbench.errors import XMCBenchError, check_extra
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.meter import uncounted
from xmcbench.trial.method import Method
from xmcbench.trial.run import Progress
from xmcbench.trial.versions import ENGINE_VERSION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.charging import Charging
    from xmcbench.engine.encoders.encoder import Encoder
    from xmcbench.engine.losses.own_scores import Score
    from xmcbench.engine.passes import Pace
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sharding import Shard

QUIET_SECONDS = 2.0  # a pass over texts reports its progress from then on


class VectorMethod(Method):
    """One text encoder for queries and labels, and modules that make vectors of its embeddings.

    A label's score for a query is the inner product of two vectors, unless the method defines another `score` of them.
    """

    many_workers: ClassVar[bool] = True
    late_imports: ClassVar[tuple[str, ...]] = (
        "transformers.generation.utils",
        "transformers.masking_utils",
        "transformers.modeling_layers",
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
        "xmcbench.engine.charging",
        "xmcbench.engine.encoders.build",
        "xmcbench.engine.encoders.network",
        "xmcbench.engine.label_groups",
        "xmcbench.engine.sampling.embeddings",
        "xmcbench.engine.sampling.sharding",
        "xmcbench.engine.search.rounded",
        "xmcbench.engine.search.scored",
        "xmcbench.engine.search.twins",
        "xmcbench.engine.timing",
        "xmcbench.engine.training.checkpoints",
    )
    encodes_labels: ClassVar[bool] = True
    """Whether label texts go through the encoder; without, the embeddings of S labels are [S, 0]."""

    class Config(Method.Config):
        """Settings every dual encoder has."""

        encoder: EncoderConfig = Field(
            EncoderConfig(), description="the text encoder: a name, or a mapping of the settings of encoders"
        )
        precision: Precision = Field(
            "float32",
            description="precision of matrix products in the encoder; bf16 is autocast; embeddings, scores and "
            "losses are float32, whose products in a training step on a GPU are then of TF32",
        )
        max_query_length: int | None = Field(
            None, gt=1, description="tokens to which queries are truncated; null: the dataset card's `max_length`"
        )
        max_label_length: int | None = Field(
            None, gt=1, description="tokens to which labels are truncated; null: the card's `max_label_length`"
        )
        search: Backend = Field(
            "exact",
            description="search of predictions: exact, or faiss-hnsw (a graph) or faiss-ivf (clusters), which miss "
            "some labels",
        )
        vectors: VectorKind = Field(
            "float32",
            exclude_if=lambda vectors: vectors == "float32",  # keys are those of settings that do not know it
            description="how the search keeps label vectors: in bf16, int8 or pq (product-quantised) they take a half, "
            "a quarter or a sixteenth of the bytes, and labels are ranked by the rounded vectors",
        )
        micro_batch_tokens: int | None = Field(
            None,
            gt=0,
            description="padded tokens in one pass of the encoder; null: 2,048 on a CPU (bf16: 8,192), 16,384 on a "
            "GPU, 65,536 for static",
        )

        def micro_batch_on(self, kind: str) -> int:
            """Padded tokens through the encoder at once on a device of that kind: `cpu`, or that of a GPU.

            A GPU needs large micro-batches to be busy; those of 16,384 tokens keep 5.6 GB of a DistilBERT in float32.
            On a CPU small micro-batches waste the least on padding, but in bf16 each new shape of a product has a
            setup cost, so fewer and larger micro-batches are faster. A static encoder pads nothing and keeps a vector
            a text.
            """
            if self.encoder.name == STATIC:
                size = 65_536
            elif kind != "cpu":
                size = 16_384
            else:
                size = 8_192 if self.precision == "bf16" else 2_048
            return self.micro_batch_tokens or size

    config: VectorMethod.Config
    encoder: Encoder
    modules: nn.Module
    # Set while the method is fitted.
    report: Callable[[Progress], None] | None = None  # shows the progress of long passes
    shard: Shard
    queries: Tokens  # of the training queries
    labels: Tokens

    @cached_property
    def micro_batch_tokens(self) -> int:
        """Padded tokens through the encoder at once, on this process's device."""
        return self.config.micro_batch_on(default_device().type)

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        return {**super().versions(config), "engine": ENGINE_VERSION}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: Extent, budget: Budget) -> dict[str, Any]:
        """Derive the lengths to which texts are cut from the data, if neither suite nor card sets them.

        Averaged words of a description hide the name of a label. Where one label dominates, that keeps all others from
        being told apart from it: a static encoder reads names alone.
        """
        limits = {"max_query_length": data.query_limit, "max_label_length": data.label_limit}
        described = data.dominated and data.label_tokens > NAME_TOKENS
        if described and cls.Config.model_validate(given).encoder.name == STATIC:
            limits["max_label_length"] = NAME_TOKENS
        stated = {name: limit for name, limit in limits.items() if limit is not None}
        return stated | super().following(given, data, budget)

    def notes(self) -> list[str]:
        """What a folder of sentence-transformers defines and the settings do not use."""
        encoder = self.config.encoder
        if encoder.pooling == "own" or encoder.name == STATIC or not (Path(encoder.place) / MODULES).is_file():
            return []
        from xmcbench.engine.encoders.own_modules import unused_modules  # imports torch

        unused = unused_modules(Path(encoder.place), encoder)
        note = f"encoder {encoder.name!r}: {' and '.join(unused)} of its folder are not used: pooling: own takes them"
        return [note] if unused else []

    def skip(self, card: DatasetCard) -> str | None:
        few = self.config.vectors == "pq" and card.num_labels < CODES
        return f"vectors: pq needs at least {CODES} labels, found {card.num_labels:,}" if few else None

    def check_machine(self) -> None:
        """Raises XMCBenchError if the encoder's package or folder is missing, its folder is plainly no encoder, or its
        search is not possible.
        """
        self.check_search()
        encoder = self.config.encoder
        encoder.check_files()
        if encoder.name not in OWN or encoder.words not in (None, *WORDS):
            from xmcbench.engine.encoders.build import check_encoder  # imports torch

            check_encoder(encoder)

    def check_search(self) -> None:
        """Raises XMCBenchError if the library of the search is missing, or for an approximate search by a method's own
        `score`.
        """
        if self.own_score is not None and self.approximates:
            raise XMCBenchError(
                f"method {self.name!r} defines its own score, which is searched exactly: expected search: exact and "
                f"vectors: float32, found {self.config.search} and {self.config.vectors}"
            )
        if self.approximates:
            check_extra("faiss", "cpu", f"search: {self.config.search} with vectors: {self.config.vectors}")

    def charging_to(self, ledger: Ledger, budget: Budget | None = None) -> Charging:
        """The `Charging` that enters the costs of this model's encoder and scores into `ledger`, within `budget`."""
        from xmcbench.engine.charging import Charging
        from xmcbench.engine.workers import current_workers

        return Charging(ledger, self.encoder.flops, current_workers(), budget, self._pace)

    @cached_property
    def _pace(self) -> Pace:
        from xmcbench.engine.passes import Pace

        return Pace(time_encoding=self._time_encoding, time_scoring=self._time_scoring)

    def _time_encoding(self, clock: Callable[[], float]) -> float:
        """Seconds per operation of the encoder, measured on a micro-batch of the training queries."""
        from xmcbench.engine.timing import seconds_of, spread_sample

        sample = spread_sample(self.queries, self.micro_batch_tokens)
        with uncounted(), self.inference():
            seconds = seconds_of(lambda: self.embed(sample), clock)
        return seconds / max(1, self.encoder.flops(sample.lengths))

    def _time_scoring(self, clock: Callable[[], float]) -> float:
        """Seconds per operation of a search for random queries among random labels."""
        from xmcbench.engine.flops import counting
        from xmcbench.engine.timing import SAMPLED_NEIGHBOURS, SAMPLED_OWN, random_vectors, seconds_of

        width, score = self.encoder.dimension, self.own_score
        queries_ND, labels_LD = random_vectors(len(self.labels), width)
        if score is not None:
            ids_S = self.shard.label_ids[:SAMPLED_OWN]
            with self.inference():
                queries_ND = self.query_vectors(queries_ND)
                labels_LD = self.label_vectors(labels_LD[: len(ids_S), : width * self.encodes_labels], ids_S)
        index, k = build_index(labels_LD, score=score), min(SAMPLED_NEIGHBOURS, len(labels_LD))
        with counting():
            seconds = seconds_of(lambda: index.top_k(queries_ND, k), clock)
        return seconds / max(1, self.search_flops(len(queries_ND), *labels_LD.shape))

    def build_network(self, vocabulary: int) -> nn.Module | None:  # noqa: ARG002
        """A network of the method's own in place of the one that the setting `encoder` names, whose tokenizer stays.

        It is called with token ids [M, W] (int64, below `vocabulary`) of M texts, and bool [M, W], which is true for
        real tokens, and returns their states [M, W, H].
        """
        return None

    def build_pooling(self, width: int) -> nn.Module | None:  # noqa: ARG002
        """What makes a text's embedding of its token states, as a part of the encoder; None: the settings' pooling.

        It is called with the states [M, W, H] (float32, H is `width`) of M texts, bool [M, W], which is true for real
        tokens, and their token ids [M, W] (int64). It returns [M, D], or [M, ...], which is flattened: as many numbers
        for every text, whatever its length. It is neither normalised nor dropped out. Parameters are the encoder's.
        """
        return None

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        """The method's own modules over embeddings, trained with the encoder. None by default."""
        from torch import nn

        return nn.Module()

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The modules that `build_modules` made, from their saved tensors. A method with modules overrides both."""
        from torch import nn

        if tensors:
            raise TypeError(f"{type(self).__name__} has modules of its own, so it has to define load_modules")
        return nn.Module()

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] that queries are scored with, from their embeddings [N, D], on one device."""
        return embeddings_ND

    def label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:  # noqa: ARG002
        """The vectors [S, V] that labels are scored with, from their embeddings [S, D] and ids [S] (numpy, int)."""
        return embeddings_SD

    def score(self, queries_BV: Tensor, labels_SV: Tensor) -> Tensor:
        """The scores [B, S] of queries and labels, given their vectors [B, V] and [S, V]: their inner products.

        A method that scores otherwise defines this, differentiably and for any number of either. Losses, samplers and
        predictions then score so. Each pair's score follows from its two vectors and the method's modules alone.
        """
        return queries_BV @ labels_SV.T

    @property
    def own_score(self) -> Score | None:
        """`score` where the method defines it; None where scores are inner products."""
        return None if type(self).score is VectorMethod.score else self.score

    def mining_query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        """The vectors [N, V] of queries that samplers search with: by default those for scoring."""
        return self.query_vectors(embeddings_ND)

    def mining_label_vectors(self, embeddings_SD: Tensor, label_ids: np.ndarray) -> Tensor:
        """The vectors [S, V] of the labels `label_ids` [S] among which samplers search."""
        return self.label_vectors(embeddings_SD, label_ids)

    @cached_property
    def vector_flops(self) -> tuple[int, int]:
        """The operations of modules that make the vector of a query, and of a label, that samplers search with.

        They are counted for one text; every worker asks for them.
        """
        import torch

        from xmcbench.engine.flops import counting

        width, device, ids_S = self.encoder.dimension, default_device(), self.shard.label_ids[:1]  # of none: no label
        with self.inference(), counting() as of_query:
            self.mining_query_vectors(torch.zeros(1, width, device=device))
        with self.inference(), counting() as of_label:
            self.mining_label_vectors(torch.zeros(len(ids_S), width * self.encodes_labels, device=device), ids_S)
        largest = self.shard.workers.largest
        return int(largest(of_query.module_flops)), int(largest(of_label.module_flops))

    def pair_flops(self, label_width: int) -> int:
        """The operations of the score of one query and one label, of a method that defines its own."""
        import torch

        from xmcbench.engine.flops import counting

        device = default_device()
        with self.inference(), counting() as counted:
            query_1V = self.query_vectors(torch.zeros(1, self.encoder.dimension, device=device))
            of_vector = counted.module_flops
            self.score(query_1V, torch.zeros(1, label_width, device=device))
        return counted.module_flops - of_vector

    def search_flops(self, num_queries: int, num_labels: int, dimension: int) -> int:
        """The operations of a search for shortlists or predictions among label vectors of so many dimensions."""
        if self.own_score is None:
            return search_flops(num_queries, num_labels, dimension)
        return num_queries * num_labels * self.pair_flops(dimension)

    def label_groups(self, train: TrainingData, embeddings: Embeddings) -> np.ndarray | None:  # noqa: ARG002
        """[L] group numbers: labels of one group are held by one worker. None puts each label into its own group.

        For a method whose labels share vectors; `shard.groups_L` has the groups afterwards. `embeddings` are those of
        the encoder before training. Every worker calls this; a resumed run reuses the groups of its first start.
        """
        return None

    def embed(self, tokens: Tokens, stage: str = "embed queries") -> Tensor:
        """[N, D] embeddings of tokenised texts, dropout off. A long pass is reported as `stage`."""
        from xmcbench.engine.encoders.encoder import embed_all

        started = time.monotonic()

        def progress(finished: int) -> None:
            if self.report is not None and time.monotonic() - started > QUIET_SECONDS:
                self.report(Progress(stage, finished / len(tokens)))

        return embed_all(
            self.encoder,
            tokens,
            precision=self.config.precision,
            micro_batch_tokens=self.micro_batch_tokens,
            progress=progress,
        )

    @contextmanager
    def inference(self) -> Iterator[None]:
        """No gradients, and the method's modules without dropout."""
        import torch

        from xmcbench.engine.encoders.encoder import evaluating

        with torch.inference_mode(), evaluating(self.modules):
            yield

    @property
    def approximates(self) -> bool:
        """Whether the search that the settings ask for may miss some of the best labels."""
        return is_approximate(self.config.search, self.config.vectors)
