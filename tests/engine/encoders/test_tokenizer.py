"""Tokenizers: the same in every process, and found again on disk."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Encoding, models
from toy import make_words, toy_data
from transformers import AutoTokenizer

from xmcbench.data import PackedTexts
from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders import tokenizer as tokenizer_module
from xmcbench.engine.encoders.encoder import limit_tokens
from xmcbench.engine.encoders.tokenizer import TextTokenizer, train_tokenizer, trained_tokenizer
from xmcbench.runs.fitting import hold_out
from xmcbench.runs.held_out import Answers
from xmcbench.trial.trial import Selection

TRAIN = """
import sys
from xmcbench.engine.encoders.tokenizer import TextTokenizer, train_tokenizer
print(TextTokenizer(train_tokenizer(sys.stdin.read().splitlines())).identity)
"""
SENTENCES = [" ".join(make_words(5, np.random.default_rng(seed))) + " Ünï-x 中文" for seed in range(700)]


def test_training_is_the_same_in_every_process() -> None:
    """With enough words for ties and for more than one thread."""
    fresh = [subprocess.Popen([sys.executable, "-c", TRAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
             for _ in range(2)]  # fmt: skip
    identities = {process.communicate("\n".join(SENTENCES))[0].strip() for process in fresh}
    assert identities == {TextTokenizer(train_tokenizer(SENTENCES)).identity}


def test_pieces_are_ordinary_words_and_four_are_special() -> None:
    tokenizer = train_tokenizer(SENTENCES)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]) == [0, 1, 2, 3]
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3]
    assert len(tokenizer) > 500
    assert tokenizer.get_added_vocab().keys() == {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    # "##a" in a text is two signs and a letter, not a piece of a word.
    assert tokenizer.convert_tokens_to_ids("##a") not in tokenizer("##a")["input_ids"]


def test_a_known_text_comes_back_lower_case_without_unknown_pieces() -> None:
    tokenizer = train_tokenizer(SENTENCES)
    for text in SENTENCES[:20]:
        ids = tokenizer(text.upper())["input_ids"]
        assert (ids[0], ids[-1]) == (2, 3)
        assert 1 not in ids
    plain = make_words(4, np.random.default_rng(0))
    assert tokenizer.decode(tokenizer(" ".join(plain))["input_ids"], skip_special_tokens=True) == " ".join(plain)


STRANGE = ["word", "\u0301", "\x1c", "\u3000", "\n", "  ", "中", "Ünï-x", "[SEP]", "e\u0301", "\u200b", "a" * 120]


@pytest.mark.parametrize(("prompt", "special"), [("", True), ("find: a ", True), ("", False)])
@pytest.mark.parametrize("length", [3, 16, 40])
def test_a_long_text_has_the_tokens_of_all_of_it(
    length: int, prompt: str, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(length)
    texts = [" ".join(STRANGE[i] for i in rng.integers(0, len(STRANGE), 300)) for _ in range(60)]
    texts += ["".join(STRANGE[i] for i in rng.integers(0, len(STRANGE), 300)) for _ in range(60)]
    texts += [" " * 5000 + "late", "\n" * 5000, "", "x" * 5000]
    tokenizer = TextTokenizer(train_tokenizer(SENTENCES), special_tokens=special, prompt=prompt)
    monkeypatch.setattr(tokenizer_module, "HEAD", sys.maxsize)
    whole = tokenizer.at(length)(texts)
    for characters in (1, 2, 16):
        monkeypatch.setattr(tokenizer_module, "HEAD", characters)
        assert tokenizer.at(length)(texts) == whole


def test_of_a_long_text_only_the_beginning_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = TextTokenizer(train_tokenizer(SENTENCES)), []

    class Reading:
        def encode_batch_fast(self, texts: list[str], **_: object) -> list[Encoding]:
            read.extend(map(len, texts))
            return backend.encode_batch_fast(texts)

    backend = tokenizer.backend(8)
    monkeypatch.setattr(TextTokenizer, "backend", lambda *_: Reading())
    tokens = tokenizer.at(8)(["garden hose " * 100_000, "garden hose"])
    assert max(read) <= 16 * 8
    assert [len(ids) for ids in tokens] == [8, len(tokens[1])]
    left = TextTokenizer(train_tokenizer(SENTENCES))
    left.tokenizer.truncation_side = "left"
    left.at(8)(["garden hose " * 1000])
    assert max(read) == 12_000


def test_a_tokenizer_is_the_same_whether_its_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = TextTokenizer(train_tokenizer(SENTENCES)).identity
    monkeypatch.setattr("xmcbench.data.texts.PIECE", 20)
    assert TextTokenizer(train_tokenizer([" ".join(SENTENCES)])).identity == identity


def test_frequent_words_are_one_piece() -> None:
    tokenizer = train_tokenizer(["garden hose"] * 50 + SENTENCES)
    assert len(tokenizer.tokenize("garden hose")) == 2


def test_texts_are_cut_at_the_maximum() -> None:
    tokenizer = TextTokenizer(train_tokenizer(SENTENCES))
    (whole,), (cut,) = tokenizer.at(99)(SENTENCES[:1]), tokenizer.at(5)(SENTENCES[:1])
    assert len(whole) > 5 == len(cut)
    assert cut == [*whole[:4], 3]


def test_the_cache_gives_what_was_trained(tmp_path: Path) -> None:
    data = toy_data()
    first, second = (TextTokenizer(trained_tokenizer(data.texts, tmp_path)) for _ in range(2))
    assert len(list((tmp_path / "tokenizers").glob("*/"))) == 1
    assert first.identity == second.identity
    direct = TextTokenizer(train_tokenizer(data.texts))
    assert first.at(16)(data.label_texts) == direct.at(16)(data.label_texts)
    trained_tokenizer(data.label_texts, tmp_path)
    assert len(list((tmp_path / "tokenizers").glob("*/"))) == 2


def test_trials_that_hold_queries_out_share_tokenizer_and_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy_data()
    tokenizer = TextTokenizer(trained_tokenizer(data.texts, tmp_path))
    tokenizer.tokens(data.texts, 16, tmp_path)
    monkeypatch.setattr(Tokens, "of", lambda *_: pytest.fail("tokenised again"))
    for seed in range(2):
        _, remaining, _ = hold_out(data, Selection(queries=9, metric="P@1"), seed, ["P@1"], Answers("P@1"))
        shared = TextTokenizer(trained_tokenizer(remaining.texts, tmp_path))
        assert shared.identity == tokenizer.identity
        ids, offsets = shared.tokens(remaining.texts, 16, tmp_path).flat()
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == tokenizer.at(16)(remaining.texts)


def test_a_damaged_tokenizer_is_trained_again_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = toy_data()
    first = TextTokenizer(trained_tokenizer(data.texts, tmp_path))
    (path,) = tmp_path.glob("tokenizers/*/tokenizer.json")
    content = path.read_text()
    path.write_text(content.replace('"[UNK]"', '"[unk]"'))  # as long as before, and a tokenizer still
    assert TextTokenizer(trained_tokenizer(data.texts, tmp_path)).identity == first.identity
    assert "a trained tokenizer is damaged and is written again" in caplog.text


def test_an_identity_does_not_change_with_use() -> None:
    tokenizer = train_tokenizer(SENTENCES)
    wrapped = TextTokenizer(tokenizer)
    before = wrapped.tokens(SENTENCES, 9).ids
    assert np.array_equal(wrapped.tokens(SENTENCES, 9).ids, before)
    wrapped.at(3)(SENTENCES)
    assert wrapped.identity == TextTokenizer(train_tokenizer(SENTENCES)).identity


def test_inner_letters_are_those_that_words_have_after_their_first() -> None:
    texts = ["Straße 12, ÄRMEL", "a b", "日本語 ##x", ""]
    scratch = tokenizer_module._wordpiece(models.WordPiece(unk_token="[UNK]"))
    words = [
        word
        for text in texts
        for word, _ in scratch.pre_tokenizer.pre_tokenize_str(scratch.normalizer.normalize_str(text))
    ]
    assert tokenizer_module._inner_letters(texts) == sorted({f"##{letter}" for word in words for letter in word[1:]})


def test_of_many_texts_a_fixed_sample_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TextTokenizer(train_tokenizer(SENTENCES)).identity
    monkeypatch.setattr(tokenizer_module, "TINY_SAMPLE", len(SENTENCES) // 2)
    one, other = (TextTokenizer(train_tokenizer(texts)).identity for texts in (SENTENCES, PackedTexts.of(SENTENCES)))
    assert one == other != whole


@pytest.mark.parametrize("length", [3, 8, 500])
def test_token_ids_are_those_of_the_transformers_tokenizer(length: int) -> None:
    wrapped = TextTokenizer(train_tokenizer(SENTENCES))
    texts = [*SENTENCES, "", "unknown ☃ word " * 50]
    assert wrapped.at(length)(texts) == wrapped.tokenizer(texts, truncation=True, max_length=length)["input_ids"]


def test_a_saved_tokenizer_says_where_texts_were_cut(tmp_path: Path) -> None:
    TextTokenizer(train_tokenizer(SENTENCES[:50])).save(tmp_path)
    limit_tokens(tmp_path, 32)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened.model_max_length == 32
    assert len(opened(" ".join(SENTENCES), truncation=True)["input_ids"]) == 32
    limit_tokens(tmp_path / "nowhere", 32)
