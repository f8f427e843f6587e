"""Tokenizers: of a pretrained encoder, or trained on the data."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data.draws import Draws
from xmcbench.data.texts import TextSubset, batches, head, in_pieces, take
from xmcbench.data.tokens import Progress, Tokenize, Tokens, text_hash
from xmcbench.files.manifest import open_or_make

TINY_VOCABULARY = 6000
TINY_SAMPLE = 200_000  # texts that a tokenizer is trained on, at most
HEAD = 16  # characters for each token that a text may have: of a longer text that many are tokenised first


def train_tokenizer(texts: Sequence[str], vocabulary: int = TINY_VOCABULARY) -> Any:
    """A lower-case WordPiece tokenizer of about `vocabulary` pieces: a pure function of `texts`, or of a sample of more
    than `TINY_SAMPLE`, drawn with a fixed seed."""
    from tokenizers import models, processors
    from transformers import PreTrainedTokenizerFast

    if len(texts) > TINY_SAMPLE:
        texts = take(texts, np.sort(Draws(7, len(texts)).permutation(len(texts))[:TINY_SAMPLE]))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    # The trainer numbers inner letters (##a) in the order of a hash map that differs between processes, and breaks ties
    # by number. Named as special tokens they are numbered in the order given here; the real model is made from the
    # vocabulary alone, so that they are not special in it.
    pieces = _train(texts, vocabulary, special + _inner_letters(texts))
    tokenizer = _wordpiece(models.WordPiece(vocab=pieces, unk_token="[UNK]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def _train(texts: Sequence[str], vocabulary: int, special: list[str]) -> Any:
    """The vocabulary of a WordPiece model trained on `texts`, with its ids."""
    from tokenizers import models, trainers

    tokenizer = _wordpiece(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(batches(in_pieces(texts)), trainer)
    return tokenizer.get_vocab()


def _wordpiece(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _inner_letters(texts: Sequence[str]) -> list[str]:
    """`##` and each letter that some word has after its first letter, sorted: a vocabulary without merged pieces."""
    return sorted(piece for piece in _train(texts, 0, []) if len(piece) == 3 and piece.startswith("##"))


def trained_tokenizer(texts: Sequence[str], cache: Path, vocabulary: int = TINY_VOCABULARY) -> Any:
    """The tokenizer trained on `texts`, or on all texts of which they are a subset; cached in the folder `cache`."""
    from transformers import PreTrainedTokenizerFast

    if isinstance(texts, TextSubset):
        texts = texts.whole
    directory = cache / "tokenizers" / text_hash(texts, f"tiny:{vocabulary}:{TINY_SAMPLE}")
    return open_or_make(
        directory,
        PreTrainedTokenizerFast.from_pretrained,
        lambda made: train_tokenizer(texts, vocabulary).save_pretrained(made),
        "a trained tokenizer",
    )


class TextTokenizer:
    """A transformers tokenizer with an identity, which is the key under which its tokens are cached on disk.

    Without `special_tokens` a text has its own word pieces only, not those that mark its start and end. `prompt` is put
    before every text.
    """

    def __init__(self, tokenizer: Any, *, special_tokens: bool = True, prompt: str = "") -> None:
        self.tokenizer = tokenizer
        self.special_tokens, self.prompt = special_tokens, prompt
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._truncating: dict[int, Any] = {}  # copies of it by length: one takes longer than reading a text
        content = json.dumps(tokenizer.get_vocab(), sort_keys=True) if self._backend is None else self._backend.to_str()
        self.identity = sha256(content.encode()).hexdigest() + ("" if special_tokens else ":text alone")
        self.identity += f":after {prompt!r}" if prompt else ""

    def after(self, prompt: str) -> TextTokenizer:
        """This tokenizer with a prompt before every text."""
        if prompt == self.prompt:
            return self
        return TextTokenizer(self.tokenizer, special_tokens=self.special_tokens, prompt=prompt)

    def at(self, max_length: int) -> Tokenize:
        """A function from texts to token ids, truncated to `max_length` tokens."""
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer

        def tokenize(texts: Sequence[str]) -> list[list[int]]:
            encoding = self.tokenizer(
                [self.prompt + text for text in texts],
                add_special_tokens=self.special_tokens,
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
                verbose=False,
            )
            ids: list[list[int]] = encoding["input_ids"]
            return ids

        if self._backend is None:
            return tokenize
        # Asked for ids alone: the wrapper of transformers takes longer than tokenising.
        if max_length not in self._truncating:
            self._truncating[max_length] = self.backend(max_length)
        encode = partial(self._truncating[max_length].encode_batch_fast, add_special_tokens=self.special_tokens)

        def tokenize_heads(texts: Sequence[str], size: int) -> list[list[int]]:
            heads = [head(text, size) for text in texts]
            tokens = [encoding.ids for encoding in encode(heads)]
            short = [i for i, ids in enumerate(tokens) if len(ids) < max_length and len(heads[i]) < len(texts[i])]
            longer = tokenize_heads([texts[i] for i in short], 4 * size) if short else []
            for i, ids in zip(short, longer, strict=True):
                tokens[i] = ids
            return tokens

        # In BERT's tokenizers the first tokens of a text are those of its beginning, up to any space. Others may read a
        # whole text at once; theirs is never shortened before it is tokenised.
        parts = type(self._backend.normalizer), type(self._backend.pre_tokenizer), self.tokenizer.truncation_side
        first = HEAD * max_length if parts == (BertNormalizer, BertPreTokenizer, "right") else sys.maxsize
        return lambda texts: tokenize_heads([self.prompt + text for text in texts], first)

    def backend(self, max_length: int) -> Any:
        """A copy of the Rust tokenizer that truncates to `max_length` tokens."""
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str(self._backend.to_str())
        backend.enable_truncation(max_length, direction=self.tokenizer.truncation_side)
        backend.no_padding()
        return backend

    def tokens(
        self, texts: Sequence[str], max_length: int, cache: Path | None = None, progress: Progress = int
    ) -> Tokens:
        """`texts` tokenised; read from and written to the folder `cache` where one is given.

        Tokens of a subset are cached with those of all texts.
        """
        if cache is None:
            return Tokens.of(texts, self.at(max_length), progress)
        if isinstance(texts, TextSubset):
            return self.tokens(texts.whole, max_length, cache, progress).take(texts.ids)
        return Tokens.cached(texts, self.at(max_length), f"{self.identity}:{max_length}", cache, progress)

    def save(self, directory: Path) -> None:
        self.tokenizer.save_pretrained(directory)
