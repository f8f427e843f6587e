"""Static encoders: the mean of a text's word vectors, which no context changes.

sentence-transformers calls such an encoder `StaticEmbedding`, others model2vec. Word pieces are those of a text alone,
without a tokenizer's special tokens, as there. Texts are bags of word pieces, without padding, and only the pieces that
occur get a gradient. Both passes are sums over bags: forward, a text is a bag of pieces; backward, a piece is a bag of
the texts it is in.

Legend: V word pieces, H dimensions of a word vector, D dimensions of an embedding, N texts, M texts of a micro-batch,
T word pieces in all of them, U different ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import embedding_bag, pad

from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders.encoder import Encoder, TextFlops
from xmcbench.engine.encoders.own_modules import SentenceModule
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.encoders.words import WordFiles, first_linear, first_vectors, words_tokenizer
from xmcbench.engine.tables.touched_rows import TouchedRows
from xmcbench.trial.meter import encoded

LINEAR = "1_Dense"


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
            weights_U1 = bags.weights.weight.detach()[words_U, None]
            bags.weights.add_gradient(words_U, (bags.vectors.weight.detach()[words_U] * rows_UH).sum(1))
            rows_UH *= weights_U1
        bags.vectors.add_gradient(words_U, rows_UH)
        return None, None, None, None


WEIGHTS, VECTORS = "model.safetensors", "embedding.weight"  # names of sentence-transformers


class StaticEncoder(Encoder):
    """A table of word vectors, perhaps with a weight each, their mean, and perhaps a linear layer."""

    def __init__(self, config: EncoderConfig, tokenizer: TextTokenizer, vectors_VH: Tensor) -> None:
        super().__init__(config, tokenizer)
        self.bags = WordBags(vectors_VH, torch.ones(len(vectors_VH)) if config.word_weights else None)
        self.linear = None if config.linear is None else nn.Linear(vectors_VH.shape[1], config.linear)
        self.dimension = config.linear or vectors_VH.shape[1]

    @classmethod
    def build(cls, config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> StaticEncoder:
        """The encoder `config` describes; `texts` (training queries) train the tokenizer of `words: random`, once.

        A linear layer is that of the words' folder or starts orthogonal: with as many dimensions as the words have it
        then changes no inner product.
        Raises XMCBenchError if the words cannot be loaded.
        """
        tokenizer = words_tokenizer(config, texts, cache)
        encoder = cls(config, tokenizer, first_vectors(config, tokenizer, seed))
        if (saved := first_linear(config)) is not None:
            encoder.linear = saved
        elif encoder.linear is not None:
            nn.init.orthogonal_(encoder.linear.weight, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(encoder.linear.bias)
        return encoder

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path) -> StaticEncoder:
        """The encoder that `save` wrote, with weights of 1: the vectors are multiplied with what was learnt."""
        words = WordFiles.of(str(directory))
        encoder = cls(config, words.tokenizer(), words.vectors())
        if encoder.linear is not None:
            tensors = load_file(directory / LINEAR / WEIGHTS)
            encoder.linear.load_state_dict({name.removeprefix("linear."): tensors[name] for name in tensors})
        return encoder

    def micro_batches(self, lengths_N: np.ndarray, token_budget: int) -> list[np.ndarray]:
        """Groups of texts in their order, cut wherever another `token_budget` tokens are full."""
        cuts = np.flatnonzero(np.diff((np.cumsum(lengths_N) - lengths_N) // token_budget)) + 1
        return np.split(np.arange(len(lengths_N)), cuts) if len(lengths_N) else []

    def collate(self, tokens: Tokens, rows_M: np.ndarray) -> tuple[np.ndarray, ...]:
        """Token ids [T] of all texts end to end, and where each text starts [M]."""
        ids_T, offsets = tokens.take(rows_M).flat()
        return ids_T.astype(np.int64), offsets[:-1]

    def forward(self, ids_T: Tensor, starts_M: Tensor) -> Tensor:  # type: ignore[override]
        """Embeddings [M, D] in float32."""
        encoded(len(starts_M), len(ids_T))
        means_MH = self.bags(ids_T, starts_M)
        return self.finished(means_MH if self.linear is None else self.linear(means_MH).float())

    @cached_property
    def flops_of_a_text(self) -> TextFlops:
        """A mean is a product of the vectors with their share; the linear layer is a product per text."""
        size = self.bags.vectors.weight.shape[1]
        return TextFlops(0 if self.linear is None else 2 * size * self.dimension, 2 * size, 0)

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
        modules = [SentenceModule("StaticEmbedding", files={"tokenizer.json": tokenizer})]
        if self.linear is not None:
            settings = {
                "in_features": self.linear.in_features,
                "out_features": self.linear.out_features,
                "bias": self.linear.bias is not None,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            modules.append(SentenceModule("Dense", LINEAR, {"config.json": settings}))
        return modules
