"""Dual encoders: methods that rank labels by inner products of embeddings, trained or not.

The vectors are those of `xmcbench/engine/vector_method.py`. Whole collections of texts are embedded by all workers
together: each embeds its share, and each gets all vectors.

Legend: L labels, S labels that this worker holds, N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.data.texts import TextSubset
from xmcbench.engine.device import default_device
from xmcbench.engine.search.index import build_index
from xmcbench.engine.vector_blocks import vectors_in_blocks
from xmcbench.engine.vector_method import VectorMethod
from xmcbench.errors import XMCBenchError
from xmcbench.files.arrays import sort_header
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import Progress, Run, derive_seed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xmcbench.data.tokens import Tokens
    from xmcbench.engine.charging import Charging
    from xmcbench.engine.checkpoint import Groups
    from xmcbench.engine.encoders.tokenizer import TextTokenizer
    from xmcbench.engine.sampling.embeddings import Embeddings
    from xmcbench.engine.sampling.sharding import Shard
    from xmcbench.engine.search.exact import Index
    from xmcbench.engine.tables.label_table import LabelTable
    from xmcbench.engine.vector_blocks import Vectors
    from xmcbench.engine.workers import Workers

VECTORS = "vectors.safetensors"  # in a model's directory: the index and the method's own modules
POOLING = "pooling."  # begins the names of the tensors of the method's pooling there


class DualEncoder(VectorMethod):
    """An encoder with an index of label vectors: it embeds, searches, and is saved.

    The attributes are set once the method is prepared or loaded; those of training while it is fitted.
    """

    _kept_index: Index | None = None
    table_values: int = 0  # numbers in the label tables of all workers
    index_LD: Tensor
    query_length: int
    label_length: int
    # Set while the method is fitted.
    run: Run
    train: TrainingData  # that it is trained on
    charging: Charging

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
