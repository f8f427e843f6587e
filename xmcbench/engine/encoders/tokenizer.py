"""Tokenizers: of a pretrained encoder, or trained on the data for `tiny`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from xmcbench.data.tokens import Tokenize, Tokens, made_once, text_hash

TINY_VOCABULARY = 6000


def train_tokenizer(texts: Sequence[str]) -> Any:
    """A lower-case WordPiece tokenizer of about `TINY_VOCABULARY` pieces: a pure function of `texts`."""
    from tokenizers import models, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    scratch = _wordpiece(models.WordPiece(unk_token="[UNK]"))
    # The trainer numbers inner letters (##a) in the order of a hash map that differs between processes, and breaks ties
    # by number. Named as special tokens they are numbered in the order given here; the real model is made from the
    # vocabulary alone, so that they are not special in it.
    trainer = trainers.WordPieceTrainer(
        vocab_size=TINY_VOCABULARY, special_tokens=special + _inner_letters(texts, scratch), show_progress=False
    )
    scratch.train_from_iterator((texts[i] for i in range(len(texts))), trainer)
    tokenizer = _wordpiece(models.WordPiece(vocab=scratch.get_vocab(), unk_token="[UNK]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def _wordpiece(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _inner_letters(texts: Sequence[str], tokenizer: Any) -> list[str]:
    """`##` and each letter that a word has after its first, sorted."""
    letters: set[str] = set()
    for i in range(len(texts)):
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(texts[i])):
            letters.update(word[1:])
    return [f"##{letter}" for letter in sorted(letters)]


def tiny_tokenizer(texts: Sequence[str], cache: Path) -> Any:
    """The tokenizer trained on `texts`, from `cache` where it was trained before: trials share one."""
    from transformers import PreTrainedTokenizerFast

    directory = cache / "tokenizers" / text_hash(texts, f"tiny:{TINY_VOCABULARY}")
    if not directory.is_dir():
        with made_once(directory) as partial:
            train_tokenizer(texts).save_pretrained(partial)
    return PreTrainedTokenizerFast.from_pretrained(directory)


class TextTokenizer:
    """A transformers tokenizer with an identity, so that what it made can be found again on disk."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.pad_id = int(tokenizer.pad_token_id or 0)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        content = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
        self.identity = sha256(content.encode()).hexdigest()

    def at(self, max_length: int) -> Tokenize:
        """A function from texts to token ids, special tokens included, cut at `max_length` tokens."""

        def tokenize(texts: Sequence[str]) -> list[list[int]]:
            made = self.tokenizer(
                list(texts), truncation=True, max_length=max_length, return_attention_mask=False, verbose=False
            )
            ids: list[list[int]] = made["input_ids"]
            return ids

        return tokenize

    def tokens(self, texts: Sequence[str], max_length: int, cache: Path | None = None) -> Tokens:
        """`texts` tokenised, through the cache on disk where one is given."""
        if cache is None:
            return Tokens.of(texts, self.at(max_length))
        return Tokens.cached(texts, self.at(max_length), f"{self.identity}:{max_length}", cache)

    def save(self, directory: Path) -> None:
        self.tokenizer.save_pretrained(directory)
