"""Tokenised texts: what goes in comes out, from memory, from disk and in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data import tokens as tokens_module
from xmcbench.data.tokens import GROUP_SHARE, Tokens, micro_batches, text_hash
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory

TEXTS = ["one two", "", "drei vier fünf sechs", "x", "\x00 y"] * 3


def letters(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer: the code points, after a 1."""
    return [[1, *map(ord, text)] for text in texts]


@given(texts=st.lists(st.text(max_size=6), max_size=12), chunk=st.integers(1, 5))
def test_texts_come_back_whatever_the_chunk(texts: list[str], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens_module, "CHUNK", chunk)
        tokens = Tokens.of(texts, letters)
    assert len(tokens) == len(texts)
    assert [tokens.ids[a:b].tolist() for a, b in pairwise(tokens.flat()[1])] == letters(texts)


@given(rows=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1), pad_id=st.integers(0, 9))
def test_padding_and_mask(rows: list[int], pad_id: int) -> None:
    ids, mask = Tokens.of(TEXTS, letters).padded(np.array(rows), pad_id)
    wanted = letters([TEXTS[row] for row in rows])
    assert ids.shape == mask.shape == (len(rows), max(map(len, wanted)))
    assert (ids.dtype, mask.dtype) == (np.int64, bool)
    assert [row[here].tolist() for row, here in zip(ids, mask, strict=True)] == wanted
    assert bool((ids[~mask] == pad_id).all())
    assert bool((np.sort(mask, axis=1)[:, ::-1] == mask).all())  # padded on the right


@given(rows=st.lists(st.integers(0, len(TEXTS) - 1)))
def test_tokens_of_some_texts_lie_where_they_lay(rows: list[int]) -> None:
    whole = Tokens.of(TEXTS, letters)
    taken = whole.take(np.array(rows, np.int64))
    assert taken.ids is whole.ids
    ids, offsets = taken.flat()
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == letters([TEXTS[row] for row in rows])


def test_a_text_without_tokens_is_a_row_of_padding() -> None:
    tokens = Tokens.from_offsets(np.array([5], np.int32), np.array([0, 0, 1]))
    ids, mask = tokens.padded(np.array([0]), 9)
    assert (ids.tolist(), mask.tolist()) == ([[9]], [[False]])


def test_cached_equals_uncached_and_is_tokenised_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(texts: Sequence[str]) -> list[list[int]]:
        calls.append(len(texts))
        return letters(texts)

    plain = Tokens.of(TEXTS, letters)
    for _ in range(2):
        cached = Tokens.cached(TEXTS, counted, "letters", tmp_path)
        np.testing.assert_array_equal(cached.ids, plain.ids)
        np.testing.assert_array_equal(cached.lengths, plain.lengths)
    assert calls == [len(TEXTS)]
    Tokens.cached(TEXTS, counted, "other letters", tmp_path)
    Tokens.cached(TEXTS[1:], counted, "letters", tmp_path)
    assert len(calls) == 3
    assert not list((tmp_path / "tokens").glob(".partial-*"))


def test_of_two_writers_at_once_one_tokenises_for_both(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(texts: Sequence[str]) -> list[list[int]]:
        calls.append(len(texts))
        return letters(texts)

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: Tokens.cached(TEXTS, counted, "letters", tmp_path), range(2)))
    for tokens in made:
        np.testing.assert_array_equal(tokens.ids, Tokens.of(TEXTS, letters).ids)
    assert calls == [len(TEXTS)]


@pytest.mark.parametrize("file", ["ids.npy", "offsets.npy", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "absent"])
def test_a_damaged_token_cache_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    whole = Tokens.cached(TEXTS, letters, "letters", tmp_path)
    (path,) = tmp_path.glob(f"tokens/*/{file}")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink()  # the arrays of `whole` stay mapped to the old file
    if damage != "absent":
        path.write_bytes(content if damage == "flip" else content[:-3])
    again = Tokens.cached(TEXTS, letters, "letters", tmp_path)
    np.testing.assert_array_equal(again.ids, whole.ids)
    np.testing.assert_array_equal(again.lengths, whole.lengths)
    assert "a token cache is damaged and is written again" in caplog.text


@pytest.mark.parametrize("offsets", [[0, 5, 3, 9], [1, 2, 3, 9], [0, 2, 3, 8], [0, 2, 9]])
def test_offsets_of_cached_tokens_fit_the_ids(tmp_path: Path, offsets: list[int]) -> None:
    np.save(tmp_path / "ids.npy", np.zeros(9, np.int32))
    np.save(tmp_path / "offsets.npy", np.array([0, 2, 3, 9]))
    assert len(Tokens.open(tmp_path, 3)) == 3
    np.save(tmp_path / "offsets.npy", np.array(offsets))
    with pytest.raises(ValueError, match="offsets"):
        Tokens.open(tmp_path, 3)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("452639 requested and 194528 written")  # what numpy says

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(XMCBenchError, match=r"a token cache cannot be written \(452639 requested .*bytes of its disk"):
        Tokens.cached(["a"], lambda texts: [[1] for _ in texts], "x", tmp_path)
    monkeypatch.undo()
    assert len(Tokens.cached(["a"], lambda texts: [[1] for _ in texts], "x", tmp_path)) == 1


def test_a_folder_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_directory(tmp_path / "made") as partial:
            (partial / "half").write_text("x")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text("a\x00", max_size=4), max_size=4), st.lists(st.text("a\x00", max_size=4), max_size=4))
def test_other_texts_have_another_hash(one: list[str], other: list[str]) -> None:
    assert (text_hash(one, "") == text_hash(other, "")) == (one == other)


@given(lengths=st.lists(st.integers(0, 40), max_size=60), budget=st.integers(1, 100))
def test_micro_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = micro_batches(np.array(lengths, np.int64), budget)
    assert sorted(int(i) for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[i] for i in group)
        assert len(group) == 1 or len(group) * longest <= budget
    assert all(min(lengths[i] for i in group) >= max(lengths[i] for i in after) for group, after in pairwise(groups))


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=30), budget=st.integers(8, 400))
def test_micro_batches_cost_no_more_than_any_other_cuts(lengths: list[int], budget: int) -> None:
    """Padded tokens, and what a group costs beside them, against every way to cut the sorted texts between lengths."""
    found = micro_batches(np.array(lengths), budget)
    cost = sum(len(group) * max(lengths[i] for i in group) + budget / GROUP_SHARE for group in found)
    distinct = sorted(set(lengths), reverse=True)
    for number in range(len(distinct)):
        for longest in combinations(distinct[1:], number):
            other = 0.0
            for top, below in pairwise((distinct[0], *longest, 0)):
                count = sum(below < length <= top for length in lengths)
                other += count * top - (-count // (budget // top)) * budget / GROUP_SHARE
            assert cost <= other + 1e-9


def test_many_texts_of_each_length_are_not_padded() -> None:
    lengths = np.repeat([3, 4, 5, 9], 100)
    assert all(len(set(lengths[group])) == 1 for group in micro_batches(lengths, 512))


def read(texts: list[str]) -> Tokens:
    """By a tokenizer that knows lower-case ASCII letters only; all others are one unknown piece."""
    return Tokens.of(texts, lambda rows: [[ord(c) if "a" <= c <= "z" else 0 for c in text] for text in rows])


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (["cat", "dog", "cat"], 0.0),  # an equal text is no other text
        (["好", "人", "a", "b"], 0.25),
        (["好", "人", "山", "川"], 0.75),
        ([], 0.0),
    ],
)
def test_texts_that_a_tokenizer_cannot_read_are_alike(texts: list[str], share: float) -> None:
    assert read(texts).alike(texts) == share
