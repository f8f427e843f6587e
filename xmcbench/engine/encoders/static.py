"""Static encoders: the mean of a text's word vectors, which no context changes; `StaticEmbedding` or model2vec to
others. As there, word pieces are those of a text alone, without a tokenizer's special tokens.

Only the pieces that occur get a gradient. Both passes are sums over bags, without padding: forward, a text is a bag of
pieces; backward, a piece is a bag of the texts it is in.

Tables of words come with their tokenizers from packages, folders, or the training queries. `WordTable` is the table of
a transformer, whose gradient costs only the rows that a micro-batch reads: torch makes it as a whole table, zeros
mostly, and adds it, for 30,522 words of 384 dimensions 47 MB to clear and 47 MB to add for each micro-batch.

Legend: V word pieces, H dimensions of a word vector, D dimensions of an embedding, N texts, M texts of a micro-batch,
T word pieces in all of them, U different ones; `*` any shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import embedding, embedding_bag, pad

from xmcbench.data.tokens import Tokens, micro_batches
from xmcbench.engine.encoders.encoder import Encoder, TextFlops, products_of
from xmcbench.engine.encoders.own_modules import PROMPTS, Dense, SentenceModule, saved_modules, saved_prompts
from xmcbench.engine.encoders.settings import (
    MINILM,
    MODULES,
    RANDOM,
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    WORDLLAMA,
    WORDS,
    EncoderConfig,
    check_word_file,
    words_folder,
)
from xmcbench.engine.encoders.tokenizer import TextTokenizer, trained_tokenizer
from xmcbench.engine.flops import by_formula
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.errors import XMCBenchError
from xmcbench.files.pretrained import UnfitModelError
from xmcbench.trial.meter import encoded

RANDOM_VOCABULARY, RANDOM_DIMENSION = 30_000, 256
# Of the vectors in a safetensors file: of sentence-transformers, of model2vec, of a BERT.
VECTORS = "embedding.weight"
KEYS = (VECTORS, "embeddings", "embeddings.word_embeddings.weight")
MAPPING, OF_IDS = "mapping", "weights"  # of model2vec
OVER_WORDS = ("StaticEmbedding", "Dense", "Normalize")  # modules of sentence-transformers, in their order
LINEAR = "1_Dense"


@dataclass(frozen=True)
class WordFiles:
    """The two files of a table of words: a tokenizer, and the vectors as safetensors."""

    tokenizer_file: Path
    weights_file: Path

    @classmethod
    def of(cls, name: str) -> WordFiles:
        """Those of `minilm`, `wordllama`, or a folder that sentence-transformers or model2vec saved.

        Raises XMCBenchError if there is no package or folder of this name.
        """
        folder = words_folder(name)
        if name == WORDLLAMA:
            return cls(
                folder / "tokenizers" / "l2_supercat_tokenizer_config.json",
                folder / "weights" / "l2_supercat_256.safetensors",
            )
        if (folder / MODULES).exists():
            folder /= next((m.folder for m in saved_modules(folder) if m.kind == "StaticEmbedding"), "")
        return cls(folder / TOKENIZER, folder / WEIGHTS)

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer. Raises XMCBenchError if there is none."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        check_word_file(self.tokenizer_file)
        try:
            tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        except Exception as problem:  # tokenizers raises no class of its own
            raise UnfitModelError(f"{self.tokenizer_file}: not a tokenizer: {problem}") from problem
        return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), special_tokens=False)

    def vectors(self) -> Tensor:
        """The vectors [V, H] in float32, a row per id of the tokenizer. Raises XMCBenchError if there are none.

        A table of model2vec may have fewer rows than ids, which `mapping` gives their rows, and `weights` of ids.
        """
        with self._opened() as (tensors, names):
            vectors_VH: Tensor = tensors.get_tensor(names[0]).float()
            if MAPPING in names:
                rows_V = tensors.get_tensor(MAPPING).long()
                if len(rows_V) and not 0 <= int(rows_V.min()) <= int(rows_V.max()) < len(vectors_VH):
                    raise UnfitModelError(
                        f"{self.weights_file}: {MAPPING}: expected rows of {len(vectors_VH):,} vectors"
                    )
                vectors_VH = vectors_VH[rows_V]
            if OF_IDS in names:
                weights_V = tensors.get_tensor(OF_IDS).float()
                if weights_V.shape != vectors_VH.shape[:1]:
                    found = f"found {list(weights_V.shape)}, expected a number for each of {len(vectors_VH):,} ids"
                    raise UnfitModelError(f"{self.weights_file}: {OF_IDS}: {found}")
                vectors_VH = vectors_VH * weights_V[:, None]
        if not vectors_VH.isfinite().all():
            raise UnfitModelError(f"{self.weights_file}: a word vector has a number that is not finite")
        return vectors_VH

    def shape(self) -> tuple[int, int]:
        """V and H, without reading the vectors. Raises XMCBenchError if there are none."""
        with self._opened() as (tensors, names):
            shape = tensors.get_slice(names[0]).get_shape()
            if len(shape) != 2 or not shape[1]:
                raise UnfitModelError(
                    f"{self.weights_file}: {names[0]}: found {shape}, expected a vector for each word"
                )
            return tensors.get_slice(MAPPING if MAPPING in names else names[0]).get_shape()[0], shape[1]

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, list[str]]]:
        """The file of the vectors, and the names in it that mean something here, that of the vectors first."""
        check_word_file(self.weights_file)
        try:
            with safe_open(self.weights_file, framework="pt") as tensors:
                keys = set(tensors.keys())
                names = [name for name in (*KEYS, MAPPING, OF_IDS) if name in keys]
                if not names or names[0] not in KEYS:
                    raise UnfitModelError(f"{self.weights_file}: no word vectors: expected one of {', '.join(KEYS)}")
                yield tensors, names
        except SafetensorError as problem:
            raise UnfitModelError(f"{self.weights_file}: not a safetensors file: {problem}") from problem


def words_tokenizer(config: EncoderConfig, texts: Sequence[str], cache: Path) -> TextTokenizer:
    """The tokenizer of the words that `config` names; `texts` train that of random ones. Raises XMCBenchError."""
    if config.words == RANDOM:
        return TextTokenizer(trained_tokenizer(texts, cache, RANDOM_VOCABULARY), special_tokens=False)
    return WordFiles.of(config.words or MINILM).tokenizer()


def vectors_shape(config: EncoderConfig, vocabulary: int) -> tuple[int, int]:
    """V and H of the words that `config` names; `vocabulary` is V of random ones. Raises XMCBenchError."""
    if config.words == RANDOM:
        return vocabulary, config.dimension or RANDOM_DIMENSION
    return WordFiles.of(config.words or MINILM).shape()


def first_vectors(config: EncoderConfig, tokenizer: TextTokenizer, seed: int) -> Tensor:
    """[V, H] the vectors before training; random ones have length 1 on average.

    Raises XMCBenchError if there are none, or none for some of the tokenizer's ids.
    """
    vocabulary = len(tokenizer.tokenizer)
    rows, size = vectors_shape(config, vocabulary)
    if vocabulary > rows:
        raise UnfitModelError(
            f"words {config.words!r}: the tokenizer is of another vocabulary: it has {vocabulary:,} word pieces, "
            f"the table {rows:,} rows"
        )
    if config.words != RANDOM:
        files = WordFiles.of(config.words or MINILM)
        vectors_VH = files.vectors()
        if rows > 1 and bool((vectors_VH == vectors_VH[:1]).all()):
            raise UnfitModelError(f"{files.weights_file}: all words have the same vector: expected a trained model's")
        return vectors_VH
    return torch.empty(rows, size).normal_(0, size**-0.5, generator=torch.Generator().manual_seed(seed))


def first_linear(config: EncoderConfig) -> nn.Linear | None:
    """The linear layer over the words in a folder of sentence-transformers, if there is one.

    Raises XMCBenchError where the folder has a module or prompts that are not known here, or a layer of other
    dimensions than the settings.
    """
    folder = Path(config.words or "")
    if config.words in (None, MINILM, WORDLLAMA, RANDOM) or not (folder / MODULES).exists():
        return None
    modules = saved_modules(folder)
    kinds = [module.kind for module in modules]
    if unknown := [kind for kind in kinds if kind not in OVER_WORDS]:
        where = f"{folder / MODULES}: module {unknown[0]!r}"
        raise XMCBenchError(f"{where} is not known over words: expected {', '.join(OVER_WORDS)}")
    layers = [Dense(folder / module.folder) for module in modules if module.kind == "Dense"]
    plain = all(isinstance(layer.activation, nn.Identity) for layer in layers)
    if not plain or kinds != [kind for kind in OVER_WORDS if kind in kinds]:
        raise XMCBenchError(
            f"{folder / MODULES}: expected StaticEmbedding, at most one Dense without an activation, and Normalize, "
            f"found {', '.join(kinds)}"
        )
    if any(saved_prompts(folder).values()):
        raise XMCBenchError(f"{folder / PROMPTS}: prompts are not known over words: expected none")
    if not layers:
        return None
    linear, columns = layers[0].linear, WordFiles.of(str(config.words)).shape()[1]
    if linear.out_features != config.linear:
        raise XMCBenchError(
            f"words {config.words!r} have a linear layer: expected linear: {linear.out_features}, found {config.linear}"
        )
    if linear.in_features != columns:
        raise XMCBenchError(
            f"{folder / MODULES}: the Dense module reads {linear.in_features} dimensions, words have {columns}"
        )
    return linear


class WordTable(nn.Embedding):
    """`nn.Embedding` that on a CPU adds its rows' gradients to `weight.grad` itself.

    So autograd sees no gradient of the table: `torch.autograd.grad` and hooks on `weight` do not serve here.
    """

    @classmethod
    def of(cls, table: nn.Embedding) -> WordTable:
        """A table of this kind with the same parameter."""
        made = cls(table.num_embeddings, table.embedding_dim, table.padding_idx, _weight=table.weight.detach())
        made.weight = table.weight
        return made

    def forward(self, input: Tensor) -> Tensor:
        if not input.is_cpu:  # where clearing the table is quick, and finding the words that occur waits for the device
            return super().forward(input)
        vectors: Tensor = _Rows.apply(self.weight, input, self.padding_idx)  # type: ignore[no-untyped-call]
        return vectors


class _Rows(Function):
    @staticmethod
    def forward(ctx: Any, table_VH: Tensor, words: Tensor, padding: int | None) -> Tensor:
        ctx.table, ctx.padding = table_VH, padding
        ctx.save_for_backward(words)
        return embedding(words, table_VH)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        words_U, places = ctx.saved_tensors[0].unique(return_inverse=True)
        rows_UH = torch.ops.aten.embedding_dense_backward(grads[0], places, len(words_U), -1, False)
        if ctx.padding is not None:
            rows_UH[words_U == ctx.padding] = 0
        if ctx.table.grad is None:
            ctx.table.grad = torch.zeros_like(ctx.table)
        ctx.table.grad.index_add_(0, words_U, rows_UH)
        return None, None, None


class WordBags(nn.Module):
    """The mean over a text's pieces of their vectors [V, H], each times its weight if there are `weights` [V]."""

    def __init__(self, vectors_VH: Tensor, weights_V: Tensor | None = None) -> None:
        super().__init__()
        self.vectors = TouchedRows(vectors_VH)
        self.weights = None if weights_V is None else TouchedRows(weights_V)

    @property
    def folded_VH(self) -> Tensor:
        """The vectors times their weights, which have the same means without weights."""
        vectors_VH = self.vectors.weight.detach()
        return vectors_VH if self.weights is None else vectors_VH * self.weights.weight.detach()[:, None]

    def forward(self, ids_T: Tensor, starts_M: Tensor) -> Tensor:
        """[M, H] the means; text i has the pieces from `ids_T[starts_M[i]]` on. That of no pieces is zero."""
        if self.weights is None and not torch.is_grad_enabled():
            return embedding_bag(ids_T, self.vectors.weight, starts_M, mode="mean")
        # An input that needs a gradient, so that the backward pass is called.
        means_MH: Tensor = _Means.apply(self.vectors.weight, self, ids_T, starts_M)  # type: ignore[no-untyped-call]
        return means_MH


class _Means(Function):
    @staticmethod
    def forward(ctx: Any, vectors_VH: Tensor, bags: WordBags, ids_T: Tensor, starts_M: Tensor) -> Tensor:
        ctx.bags = bags
        ctx.save_for_backward(ids_T, starts_M)
        if bags.weights is None:
            return embedding_bag(ids_T, vectors_VH, starts_M, mode="mean")
        # As a saved model has them: vectors and weights multiplied.
        words_U, places_T = torch.unique(ids_T, return_inverse=True)
        folded_UH = vectors_VH[words_U] * bags.weights.weight[words_U, None]
        return embedding_bag(places_T.to(starts_M.dtype), folded_UH, starts_M, mode="mean")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        bags, (ids_T, starts_M) = ctx.bags, ctx.saved_tensors
        lengths_M = pad(starts_M, (0, 1), value=len(ids_T)).diff()
        sorted_T, order_T = ids_T.sort(stable=True)
        words_U, counts_U = torch.unique_consecutive(sorted_T, return_counts=True)
        texts_T = torch.searchsorted(starts_M, order_T, right=True) - 1  # of the sorted pieces
        shares_MH = grads[0] / lengths_M.clamp(min=1)[:, None]
        rows_UH = embedding_bag(texts_T, shares_MH, counts_U.cumsum(0) - counts_U, mode="sum")
        words_U = words_U.long()
        if bags.weights is not None:
            bags.weights.add_gradient(words_U, (bags.vectors.weight.detach()[words_U] * rows_UH).sum(1))
            rows_UH *= bags.weights.weight.detach()[words_U, None]
        bags.vectors.add_gradient(words_U, rows_UH)
        return None, None, None, None


class StaticEncoder(Encoder):
    """A table of word vectors, perhaps with a weight each, their mean, and perhaps a linear layer."""

    def __init__(self, config: EncoderConfig, tokenizer: TextTokenizer, vectors_VH: Tensor) -> None:
        super().__init__(config, tokenizer)
        self.bags = WordBags(vectors_VH, torch.ones(len(vectors_VH)) if config.word_weights else None)
        self.linear = None if config.linear is None else nn.Linear(vectors_VH.shape[1], config.linear)
        self.dimension = config.linear or vectors_VH.shape[1]

    @classmethod
    def build(cls, config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> StaticEncoder:
        """As `build_encoder`; `texts` train the tokenizer of `words: random`.

        A linear layer is that of the words' folder or starts orthogonal: with as many dimensions as the words have it
        then changes no inner product.
        """
        tokenizer = words_tokenizer(config, texts, cache)
        encoder = cls(config, tokenizer, first_vectors(config, tokenizer, seed))
        if (saved := first_linear(config)) is not None:
            encoder.linear = saved
        elif encoder.linear is not None:
            with by_formula():  # what a training starts from costs nothing
                nn.init.orthogonal_(encoder.linear.weight, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(encoder.linear.bias)
        return encoder

    @classmethod
    def check(cls, config: EncoderConfig) -> None:
        """Raises XMCBenchError unless the folder of words can be loaded whole; words of packages are not read."""
        if config.words not in (None, *WORDS):
            cls.build(config, [], 0, Path())

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path) -> StaticEncoder:
        """The encoder that `save` wrote, with weights of 1: the vectors are multiplied with what was learnt."""
        words = WordFiles.of(str(directory))
        encoder = cls(config, words.tokenizer(), words.vectors())
        if encoder.linear is not None:
            saved = load_file(directory / LINEAR / WEIGHTS)
            tensors = {name.removeprefix("linear."): tensor for name, tensor in saved.items()}
            if "bias" not in tensors:
                encoder.linear.register_parameter("bias", None)
            encoder.linear.load_state_dict(tensors)
        return encoder

    def micro_batches(self, lengths_N: np.ndarray, token_budget: int) -> list[np.ndarray]:
        """Groups of texts in their order, cut wherever another `token_budget` tokens are full; for a method's pooling,
        which pads, of similar length.
        """
        if self.pooling is not None:
            return micro_batches(lengths_N, token_budget)
        cuts = np.flatnonzero(np.diff((np.cumsum(lengths_N) - lengths_N) // token_budget)) + 1
        return np.split(np.arange(len(lengths_N)), cuts) if len(lengths_N) else []

    def collate(self, tokens: Tokens, rows_M: np.ndarray) -> tuple[np.ndarray, ...]:
        """Token ids [T] of all texts end to end, and where each text starts [M]; for a method's pooling also the place
        of each token [M, W] among the T, which is T for padding.
        """
        ids_T, offsets = tokens.take(rows_M).flat()
        texts = ids_T.astype(np.int64), offsets[:-1]
        if self.pooling is None:
            return texts
        places_MW = offsets[:-1, None] + np.arange(max(1, np.diff(offsets).max(initial=0)))
        return *texts, np.where(places_MW < offsets[1:, None], places_MW, len(ids_T))

    def forward(  # type: ignore[override]
        self, ids_T: Tensor, starts_M: Tensor, places_MW: Tensor | None = None
    ) -> Tensor:
        """Embeddings [M, D] in float32."""
        encoded(len(starts_M), len(ids_T))
        if places_MW is not None:
            # The mean of a single piece is its vector.
            vectors_TH = self.bags(ids_T, torch.arange(len(ids_T), dtype=starts_M.dtype, device=ids_T.device))
            vectors_TH = vectors_TH if self.linear is None else self.linear(vectors_TH).float()
            states_MWH = embedding(places_MW, pad(vectors_TH, (0, 0, 0, 1)))
            return self.pooled(states_MWH, places_MW < len(ids_T), pad(ids_T, (0, 1))[places_MW])
        means_MH = self.bags(ids_T, starts_M)
        return self.finished(means_MH if self.linear is None else self.linear(means_MH).float())

    @cached_property
    def flops(self) -> TextFlops:
        """A mean is a product of the vectors with their share; the linear layer is a product per text."""
        size = self.bags.vectors.weight.shape[1]
        if self.pooling is not None:
            return self._pooling_flops(size)
        return TextFlops(0 if self.linear is None else 2 * size * self.dimension, 2 * size, 0)

    def _pooling_flops(self, size: int) -> TextFlops:
        """Of a sum for each word piece, the linear layer for each, and the method's pooling."""
        assert self.pooling is not None
        linear = 2 * size * (1 if self.linear is None else 1 + self.linear.out_features)
        device, counts = self.bags.vectors.weight.device, []
        for tokens in (1, 2, 3):
            states_1WH = torch.ones(1, tokens, size if self.linear is None else self.linear.out_features, device=device)
            mask_1W = states_1WH[:, :, 0].bool()
            counts.append(linear * tokens + products_of(self.pooling, states_1WH, mask_1W, mask_1W.long()))
        return TextFlops.of(*counts)

    def save(self, directory: Path) -> None:
        """Write vectors, linear layer and tokenizer where sentence-transformers looks for them."""
        save_file({VECTORS: self.bags.folded_VH.contiguous()}, directory / WEIGHTS)
        if self.linear is not None:
            (directory / LINEAR).mkdir(exist_ok=True)
            tensors = {f"linear.{name}": tensor.contiguous() for name, tensor in self.linear.state_dict().items()}
            save_file(tensors, directory / LINEAR / WEIGHTS)
        self.tokenizer.save(directory)

    def sentence_modules(self, max_length: int) -> list[SentenceModule]:
        tokenizer = json.loads(self.tokenizer.backend(max_length).to_str())
        words = SentenceModule("StaticEmbedding", files={TOKENIZER: tokenizer})
        if self.linear is None:
            return [words]
        settings = {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        return [words, SentenceModule("Dense", LINEAR, {SETTINGS: settings})]
