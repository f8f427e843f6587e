"""Dual encoders: methods that rank labels by inner products of embeddings, trained or not.

A dual encoder has settings, an encoder, modules, and the vectors they make. Whole collections of texts are embedded by
all workers together: each embeds its share, and each gets all vectors.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
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

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.data.extent import NAME_TOKENS, Extent
from xmcbench.data.texts import TextSubset
from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.settings import MODULES, OWN, STATIC, WORDS, EncoderConfig, Precision
from xmcbench.engine.search.index import build_index, search_flops
from xmcbench.engine.search.kinds import Backend, VectorKind, is_approximate
from xmcbench.engine.vector_blocks import vectors_in_blocks
from xmcbench.errors import XMCBenchError, check_extra
from xmcbench.files.arrays import sort_header
from xmcbench.trial.budget import Budget, Ledger
from xmcbench.trial.meter import uncounted
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import Progress, Run, derive_seed
from xmcbench.trial.versions import ENGINE_VERSION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.charging import Charging
    from xmcbench.engine.checkpoint import Groups
    from xmcbench.engine.encoders.encoder import Encoder
    from xmcbench.engine.encoders.tokenizer import TextTokenizer
    from xmcbench.engine.losses.own_scores import Score
    from xmcbench.engine.passes import Pace
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sharding import Shard
    from xmcbench.engine.search.exact import Index
    from xmcbench.engine.tables.label_table import LabelTable
    from xmcbench.engine.vector_blocks import Vectors
    from xmcbench.engine.workers import Workers

QUIET_SECONDS = 2.0  # a pass over texts reports its progress from then on
VECTORS = "vectors.safetensors"  # in a model's directory: the index and the method's own modules
POOLING = "pooling."  # begins the names of the tensors of the method's pooling there


class DualEncoder(Method):
    """One text encoder for queries and labels, and an index of label vectors.

    A label's score for a query is the inner product of two vectors made from embeddings, unless the method defines
    another `score` of them. The attributes are set once the method is prepared or loaded; those of training while it is
    fitted.
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
        "xmcbench.engine.training.training",
    )
    _kept_index: Index | None = None

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

    config: DualEncoder.Config
    encoder: Encoder
    modules: nn.Module
    table_values: int = 0  # numbers in the label tables of all workers
    index_LD: Tensor
    query_length: int
    label_length: int
    # Set while the method is fitted.
    run: Run
    train: TrainingData  # that it is trained on
    report: Callable[[Progress], None] | None = None  # shows the progress of long passes
    shard: Shard
    charging: Charging
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

    def check_machine(self) -> None:
        """Raises XMCBenchError if the encoder's package or folder is missing, its folder is plainly no encoder, or the
        library of the search is missing. Raises it too for an approximate search by a method's own `score`.
        """
        encoder = self.config.encoder
        if self.own_score is not None and self.approximates:
            raise XMCBenchError(
                f"method {self.name!r} defines its own score, which is searched exactly: expected search: exact and "
                f"vectors: float32, found {self.config.search} and {self.config.vectors}"
            )
        encoder.check_files()
        if encoder.name not in OWN or encoder.words not in (None, *WORDS):
            from xmcbench.engine.encoders.build import check_encoder  # imports torch

            check_encoder(encoder)
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
        return None if type(self).score is DualEncoder.score else self.score

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

    def embed_for_all(
        self, tokens: Tokens, vectors: Vectors, shard: Shard | None = None, *, encode: bool = True
    ) -> Tensor:
        """[N, D] what `vectors` computes from embeddings and ids of N queries, or of the labels of `shard`.

        Every worker embeds its part and gets all. Without `encode` the embeddings of S texts are [S, 0].
        """
        import torch

        from xmcbench.engine.sampling.sharding import Shard

        stage, workers = "embed labels" if shard else "embed queries", self.shard.workers
        shard = shard or Shard(len(tokens), workers)
        with self.inference():
            empty_S0 = torch.empty(len(shard.label_ids), 0, device=default_device())
            embeddings_SD = self.embed(tokens.take(shard.label_ids), stage) if encode else empty_S0
            rows_ND = workers.gather(vectors_in_blocks(embeddings_SD, shard.label_ids, vectors))
            if workers.size == 1:
                return rows_ND
            return rows_ND[torch.from_numpy(np.argsort(shard.everyone())).to(rows_ND.device)]

    @contextmanager
    def inference(self) -> Iterator[None]:
        """No gradients, and the method's modules without dropout."""
        import torch

        from xmcbench.engine.encoders.encoder import evaluating

        with torch.inference_mode(), evaluating(self.modules):
            yield

    def tables(self) -> dict[str, LabelTable]:
        """The label tables among the method's modules, by name."""
        from xmcbench.engine.tables.label_table import LabelTable

        return {name: module for name, module in self.modules.named_modules() if isinstance(module, LabelTable)}

    def module_tensors(self) -> dict[str, Tensor]:
        """The state of the method's modules that all workers share: label tables, which are sharded, are left out."""
        tables = tuple(f"{name}." if name else "" for name in self.tables())
        return {name: tensor for name, tensor in self.modules.state_dict().items() if not name.startswith(tables)}

    def tensors(self) -> Groups:
        """The weights that all workers share, by group: for checkpoints."""
        return {"encoder": self.encoder.trained_tensors(), "modules": self.module_tensors()}

    def load_tensors(self, groups: Groups) -> None:
        """Restore what `tensors` returned."""
        self.encoder.load_state_dict({**self.encoder.state_dict(), **groups["encoder"]})
        self.modules.load_state_dict({**self.modules.state_dict(), **groups.get("modules", {})})

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, with the rows of label tables on all workers."""
        trained = sum(p.numel() for m in (self.encoder, self.modules) for p in m.parameters() if p.requires_grad)
        return trained + self.table_values

    def prepare(self, train: TrainingData, run: Run) -> None:
        """Build encoder and modules and tokenise the texts: sets `encoder`, `modules`, `shard`, `queries`, `labels`."""
        import torch
        from torch import nn

        from xmcbench.engine.encoders.build import build_encoder, tokenizer_of
        from xmcbench.engine.encoders.network import NetworkEncoder
        from xmcbench.engine.label_groups import first_groups
        from xmcbench.engine.sampling.sharding import Shard
        from xmcbench.engine.workers import current_workers

        workers, seed = current_workers(), derive_seed(run.seed, "weights")
        self.run, self.train, self.report = run, train, run.report
        torch.manual_seed(seed)
        if self.has_network:
            tokenizer = tokenizer_of(self.config.encoder, train.texts, run.cache)
            self.encoder = NetworkEncoder(self.config.encoder, tokenizer, self._network(tokenizer))
        else:
            self.encoder = build_encoder(self.config.encoder, train.texts, seed, run.cache)
        self._give_pooling()
        self.encoder = self.encoder.to(default_device())
        self.charging = self.charging_to(run.ledger, run.budget)
        self.query_length = self.config.max_query_length or train.card.max_length
        self.label_length = self.config.max_label_length or train.card.max_label_length
        self.encoder.check_length(max(self.query_length, self.label_length))
        queries, labels, cache = self.encoder.tokenizer, self.encoder.label_tokenizer, run.cache
        of_queries, of_labels = _tokenised(run, "queries", train.texts), _tokenised(run, "labels", train.label_texts)
        self.queries = queries.tokens(train.texts, self.query_length, cache, of_queries)
        self.labels = labels.tokens(train.label_texts, self.label_length, cache, of_labels)
        run.log.cut_queries = float(np.mean(self.queries.lengths >= self.query_length))
        run.log.alike_texts = max(self.queries.alike(train.texts), self.labels.alike(train.label_texts))
        # Label groups may depend on embeddings, which all workers compute together: so a plain sharding comes first.
        self.modules, self.shard = nn.Module(), Shard(train.num_labels, workers)
        torch.manual_seed(seed)
        groups_L = first_groups(run.checkpoint, lambda: self._label_groups(train), workers)
        add_modules(self, train, workers, groups_L, seed)

    def _label_groups(self, train: TrainingData) -> np.ndarray | None:
        """What `label_groups` returns; charged, as every worker repeats the same work."""
        from xmcbench.engine.flops import counting

        with counting() as spent, self.charging.stoppable():
            groups_L = self.label_groups(train, all_embeddings(self))
        if groups_L is not None:
            self.charging.charge({"scoring_flops": spent.flops, "module_flops": spent.module_flops})
        return groups_L

    @property
    def has_network(self) -> bool:
        """Whether the method makes the encoder's network itself."""
        return type(self).build_network is not DualEncoder.build_network

    def _network(self, tokenizer: TextTokenizer) -> nn.Module:
        network = self.build_network(len(tokenizer.tokenizer))
        if network is None:
            raise TypeError(f"{type(self).__name__}.build_network returned None, expected a torch module")
        return network

    def _give_pooling(self) -> None:
        if (pooling := self.build_pooling(self.encoder.dimension)) is None:
            return
        if self.config.encoder.pooling == "own":
            raise XMCBenchError(f"method {self.name!r} pools tokens itself: expected an encoder without pooling: own")
        self.encoder.pool_with(pooling)

    def all_query_vectors(self, tokens: Tokens) -> Tensor:
        """[N, D] the vectors that these queries are scored with, on every worker; each embeds its share."""
        return self.embed_for_all(tokens, lambda rows_ND, _: self.query_vectors(rows_ND))

    def all_label_vectors(self, tokens: Tokens) -> Tensor:
        """[L, D] the vectors that all labels are scored with, on every worker; each embeds the labels it holds."""
        return self.embed_for_all(tokens, self.label_vectors, self.shard, encode=self.encodes_labels)

    def index(self, labels: Tokens) -> None:
        """Compute what `predict` searches, with the current weights. `labels` are those that are trained on."""
        self.index_LD = self.all_label_vectors(labels)

    def embed_texts(self, texts: Texts) -> Tensor:
        """[N, D] the encoder's embeddings of queries that the method has not seen, as `predict` is given them."""
        return self.embed(self.encoder.tokenizer.tokens(texts, self.query_length))

    def predict(self, texts: Texts, k: int) -> Predictions:
        return self._predict(texts, k, self._kept_index or self.built_index())

    def predict_charged(self, texts: Texts, k: int, run: Run) -> Predictions:
        with self.answering(texts, run, len(self.index_LD)):
            return self.predict(texts, k)

    @contextmanager
    def answering(self, texts: Texts, run: Run, searched: int) -> Iterator[None]:
        """Charge the block, which embeds `texts` and searches so many vectors for each, to `run`.

        Raises PassTooLargeError, and charges nothing, where that does not fit into the rest of the budget.
        """
        charging = self.charging_to(run.ledger, run.budget)
        lengths_N = self.encoder.tokenizer.tokens(texts, self.query_length, run.cache).lengths
        operations = self.search_flops(len(texts), searched, self.index_LD.shape[1])
        charging.require(lengths_N, scoring_flops=operations)
        with charging.counted("mine"):
            charging.encoding(lengths_N)
            if self.approximates:  # an exact search counts its operations itself
                charging.scoring(operations)
            yield

    def predict_exactly(self, texts: Texts, k: int) -> Predictions | None:
        return self._predict(texts, k, build_index(self._held_LD())) if self.approximates else None

    def _predict(self, texts: Texts, k: int, index: Index) -> Predictions:
        with self.inference():
            queries_ND = self.query_vectors(self.embed_texts(texts))
        return index.top_k(queries_ND, k)

    @property
    def approximates(self) -> bool:
        """Whether the search that the settings ask for may miss some of the best labels."""
        return is_approximate(self.config.search, self.config.vectors)

    def built_index(self) -> Index:
        """An index of the label vectors, as the settings `search` and `vectors` say. Raises what `build_index` does."""
        return build_index(self._held_LD(), self.config.search, self.own_score, self.config.vectors)

    def _held_LD(self) -> Tensor:
        """The label vectors. Raises `XMCBenchError` if a resident model has given them up for rounded ones."""
        if self.index_LD.is_meta:
            raise XMCBenchError(f"the model keeps its label vectors in {self.config.vectors} alone: load it again")
        return self.index_LD

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Within the block one index answers all calls of `predict`, until labels are added.

        If the index rounds the label vectors, the model gives up those in float32, for good.
        """
        self._kept_index = self.built_index()
        if self.config.vectors != "float32":
            self.index_LD = self.index_LD.to("meta")
        try:
            yield
        finally:
            self._kept_index = None

    def add_labels(self, texts: Texts) -> None:
        """Embed the texts as those of the labels were. Raises XMCBenchError for labels with vectors of their own."""
        import torch

        if type(self).label_vectors is not DualEncoder.label_vectors or not self.encodes_labels:
            raise XMCBenchError(f"method {self.name!r} learns a vector of each label, and a new label has none")
        if not self.label_length:
            raise XMCBenchError(f"method {self.name!r}: the model is of an earlier version: run the trial again")
        with self.inference():
            added_LD = self.embed(self.encoder.label_tokenizer.tokens(texts, self.label_length))
        self.index_LD, self._kept_index = torch.cat([self._held_LD(), added_LD]), None

    @property
    def encoder_alone_scores(self) -> bool:
        """Whether a score is the inner product of the encoder's own embeddings, without modules or tables."""
        vectors = type(self).query_vectors, type(self).label_vectors
        plain = vectors == (DualEncoder.query_vectors, DualEncoder.label_vectors)
        return (
            plain
            and self.own_score is None
            and self.encoder.pooling is None
            and not self.has_network
            and self.encodes_labels
            and not self.module_tensors()
            and not self.tables()
        )

    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        from xmcbench.engine.encoders.encoder import limit_tokens

        self.encoder.save(directory)
        limit_tokens(directory, self.query_length)
        if self.encoder_alone_scores:
            self.encoder.write_sentence_layout(directory, self.query_length)
        tensors = {f"modules.{name}": tensor.contiguous() for name, tensor in self.module_tensors().items()}
        if self.encoder.pooling is not None:
            pooling = self.encoder.pooling.state_dict()
            tensors |= {f"{POOLING}{name}": tensor.contiguous() for name, tensor in pooling.items()}
        tensors["index"] = self.index_LD.contiguous()
        lengths = {"query_length": str(self.query_length), "label_length": str(self.label_length)}
        save_file(tensors, directory / VECTORS, metadata=lengths)
        with (directory / VECTORS).open("r+b") as file:
            sort_header(file)

    def load(self, directory: Path) -> None:
        from safetensors import safe_open

        from xmcbench.engine.encoders.build import load_encoder
        from xmcbench.engine.encoders.network import NetworkEncoder

        device = default_device()
        if self.has_network:
            network = self._network(NetworkEncoder.saved_tokenizer(self.config.encoder, directory))
            self.encoder = NetworkEncoder.load(self.config.encoder, directory, network)
        else:
            self.encoder = load_encoder(self.config.encoder, directory)
        self._give_pooling()
        self.encoder = self.encoder.to(device)
        with safe_open(directory / VECTORS, framework="pt") as file:
            lengths, names = file.metadata(), file.keys()
            tensors = {name: file.get_tensor(name).to(device) for name in names if name != "index"}
        # The index has a mapping of the file of its own, which ends when a resident model gives up the vectors.
        with safe_open(directory / VECTORS, framework="pt") as file:
            self.index_LD = file.get_tensor("index").to(device)
        self.query_length, self.label_length = int(lengths["query_length"]), int(lengths.get("label_length", 0))
        if self.encoder.pooling is not None:
            names = [name for name in tensors if name.startswith(POOLING)]
            self.encoder.pooling.load_state_dict({name.removeprefix(POOLING): tensors.pop(name) for name in names})
        self.modules = self.load_modules({name.removeprefix("modules."): tensor for name, tensor in tensors.items()})


def add_modules(
    method: DualEncoder, train: TrainingData, workers: Workers, groups_L: np.ndarray | None, seed: int
) -> None:
    """Shard the labels over `workers` by their groups, and build the method's modules for this worker's labels."""
    import torch

    from xmcbench.engine.sampling.sharding import Shard

    method.shard = Shard(train.num_labels, workers, groups_L)
    torch.manual_seed(seed)
    method.modules = method.build_modules(train).to(default_device())
    own_values = sum(table.weight.numel() for table in method.tables().values() if table.learns)
    (method.table_values,) = workers.totals(own_values)


def all_embeddings(method: DualEncoder, *, mining: bool = False) -> Embeddings:
    """The encoder's own embeddings of all training queries and labels, also of labels that training does not encode.

    With `mining` the vectors that samplers search instead. They are charged when asked for.
    """
    from xmcbench.engine.sampling.embeddings import Embeddings

    queries, labels, charging = method.queries, method.labels, method.charging
    encode = method.encodes_labels or not mining
    label_lengths_L = labels.lengths if encode else labels.lengths[:0]
    of_query, of_label = method.vector_flops if mining else (0, 0)
    of_all = of_query * len(queries), of_label * len(labels)

    def query_vectors(rows_ND: Tensor, _: np.ndarray) -> Tensor:
        return method.mining_query_vectors(rows_ND) if mining else rows_ND

    def label_vectors(rows_SD: Tensor, ids_S: np.ndarray) -> Tensor:
        return method.mining_label_vectors(rows_SD, ids_S) if mining else rows_SD

    def embed_labels() -> Tensor:
        return method.embed_for_all(labels, label_vectors, method.shard, encode=encode)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        method.run.report(Progress(name, 0.0))
        with charging.ledger.stage(name):
            yield

    ledger, budget = method.run.ledger, charging.budget or method.run.budget
    return Embeddings(
        charging.on_demand(lambda: method.embed_for_all(queries, query_vectors), queries.lengths, of_all[0]),
        charging.on_demand(embed_labels, label_lengths_L, of_all[1]),
        timed=lambda operations: charging.timed("scoring", operations),
        workers=method.shard.workers,
        stage=stage,
        require=charging.requirement(queries.lengths, label_lengths_L, vector_flops=of_all),
        note_recall=charging.ledger.note_recall,
        train=method.train,
        spent=lambda: method.shard.workers.of_worker_0(ledger.fraction(budget)),
        score=method.own_score,
        search_flops=method.search_flops,
        progress=lambda share: method.run.report(Progress("mine", share)),
    )


def _tokenised(run: Run, kind: str, texts: Texts) -> Callable[[int], object]:
    """A callback that reports how many of `texts`, which are `kind`, are tokenised: of a subset all texts are."""
    total = len(texts.whole if isinstance(texts, TextSubset) else texts)
    return lambda done: run.report(Progress(f"tokenise {kind}", done / total))
