"""PackedTexts behaves as the list it packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data import PackedTexts
from xmcbench.data.lengths import count_tokens, count_words
from xmcbench.data.texts import TextBlocks, TextSubset, batches, in_pieces

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=12)


@given(TEXTS, st.slices(12), st.data())
def test_it_is_the_list_it_packs(texts: list[str], part: slice, data: st.DataObject) -> None:
    packed = PackedTexts.of(texts)
    assert list(packed) == texts
    assert list(packed[part]) == texts[part]
    if texts:
        ids = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=20))
        assert list(packed.take(np.array(ids, np.int64))) == [texts[i] for i in ids]
        assert packed[-1] == texts[-1]


def test_texts_are_taken_of_a_slice_and_of_a_subset() -> None:
    texts = ["rot", "", "日本", "x", "ärmel", "hut"]
    ids = np.array([5, 1, 1, 0, 4, 2, 3])
    assert list(TextSubset(PackedTexts.of(texts), ids)) == [texts[i] for i in ids]
    assert list(PackedTexts.of(["before", *texts])[1:].take(ids)) == [texts[i] for i in ids]


@given(TEXTS)
def test_a_slice_saved_and_opened_is_the_same(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    stem: Path = tmp_path_factory.mktemp("texts") / "part"
    PackedTexts.of(["before", *texts, "after"])[1:-1].save(stem)
    assert list(PackedTexts.open(stem)) == texts


@given(st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), max_size=6))
def test_join_rows_joins_words_with_spaces(rows: list[list[int]]) -> None:
    words = ["rot", "ä", "日本", "x"]
    joined = PackedTexts.of(words).join_rows(np.array(rows, np.int64).reshape(-1, 3))
    assert list(joined) == [" ".join(words[i] for i in row if i >= 0) for row in rows]


@given(TEXTS)
def test_texts_made_by_block_are_saved_as_all_at_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    whole, folder, asked = PackedTexts.of(texts), tmp_path_factory.mktemp("texts"), [0]

    def make(part: slice) -> PackedTexts:
        asked.append(part.stop - part.start)
        return whole[part]

    made = TextBlocks(len(texts), make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xmcbench.data.texts.BLOCK", 2)
        made.save(folder / "made")
    assert max(asked) <= 2
    whole.save(folder / "whole")
    for kind in ("bytes", "offsets"):
        assert (folder / f"made.{kind}.npy").read_bytes() == (folder / f"whole.{kind}.npy").read_bytes()
    assert list(made) == list(made[:]) == list(PackedTexts.of(made)) == texts
    assert [made[i] for i in range(-len(texts), 0)] == texts


@given(TEXTS)
def test_counts_by_block_are_those_of_all_at_once(texts: list[str]) -> None:
    packed = PackedTexts.of(texts)
    words = count_words(packed)
    tokens = count_tokens(packed, words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xmcbench.data.texts.BLOCK", 2)
        assert count_words(packed).tolist() == words.tolist()
        assert count_tokens(packed, words).tolist() == tokens.tolist()


@given(st.lists(st.text("ab \n", max_size=6), max_size=8))
def test_count_words_counts_what_split_finds(texts: list[str]) -> None:
    assert count_words(PackedTexts.of(texts)).tolist() == [len(text.split()) for text in texts]


@given(TEXTS)
def test_tokens_follow_from_words_or_from_characters(texts: list[str]) -> None:
    packed = PackedTexts.of(["before", *texts])[1:]  # a part, whose bytes begin later
    words_N = count_words(packed)
    for text, words, tokens in zip(texts, words_N, count_tokens(packed, words_N), strict=True):
        characters = sum(1 / 4.5 if character.isascii() else 1 for character in text)
        assert tokens == pytest.approx(2 + max(1.4 * words, characters), abs=0.5 + 1e-9)


def test_batches_hold_few_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmcbench.data.texts.BATCH_BYTES", 10)
    texts = PackedTexts.of(["a" * 4] * 4 + ["b" * 30] * 2 + ["c"] * 5)
    found = list(batches(texts, 4))
    assert [len(batch) for batch in found] == [3, 2, 1, 4, 1]
    assert [text for batch in found for text in batch] == list(texts)
    assert list(batches([])) == []


@given(st.lists(st.text("ab \n", max_size=20), max_size=4))
def test_pieces_have_the_words_of_their_texts(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xmcbench.data.texts.PIECE", 5)
        found = list(in_pieces(texts))
    assert "".join(found) == "".join(texts)
    assert [word for piece in found for word in piece.split()] == [word for text in texts for word in text.split()]
    assert all(len(piece) <= 5 or not {" ", "\n"} & set(piece[1:5]) for piece in found)


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError, match="text 2 of 2"):
        PackedTexts.of(["a", "b"])[2]


def test_half_a_surrogate_pair_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        PackedTexts.of(["\ud800"])
