"""The sizes that settings follow: of prepared data, of cards, and how texts are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmcbench.data.extent import Extent, extent
from xmcbench.data.lengths import share_cut


def write(folder: Path, words: list[int], card: str = "") -> None:
    """A dataset whose training queries have so many words."""
    folder.mkdir()
    (folder / "Y.txt").write_text("one\ntwo words\n")
    for part in ("trn", "tst"):
        (folder / f"{part}_X.txt").write_text("".join(" ".join(["word"] * n) + "\n" for n in words))
        (folder / f"{part}_X_Y.txt").write_text(f"{len(words)} 2\n" + "0:1\n" * len(words))
    if card:
        (folder / "card.yaml").write_text(card)


@pytest.mark.parametrize(
    ("words", "card", "limit"),
    [
        ([5] * 10, "", None),  # the usual limit holds them
        ([5] * 8 + [40, 40], "", 64),  # 2 + 1.4 * 40 = 58
        ([5] * 19 + [400], "", None),  # one in twenty is cut
        ([500] * 10, "", 128),
        ([500] * 10, "max_length: 50\n", None),  # the card says it
    ],
)
def test_a_limit_holds_nine_texts_of_ten(tmp_path: Path, words: list[int], card: str, limit: int | None) -> None:
    write(tmp_path / "own", words, card)
    found = extent("own", tmp_path, tmp_path / "cache")
    assert found is not None
    assert (found.queries, found.labels, found.query_limit, found.label_limit) == (len(words), 2, limit, None)
    assert found.head == 1
    longest = limit or (50 if card else 32)
    assert found.query_tokens == min(longest, round(2 + 1.4 * sum(words) / len(words)))


def test_only_queries_with_a_label_are_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "own", [5] * 10)
    (tmp_path / "own" / "trn_X_Y.txt").write_text("10 2\n" + "0:1\n" * 2 + "1:1\n" + "\n" * 7)
    found = extent("own", tmp_path, tmp_path / "cache")
    assert found is not None
    assert (found.queries, found.head) == (3, pytest.approx(0.2))
    (tmp_path / "own" / "trn_X_Y.txt").write_text("10 2\n" + "\n" * 10)
    assert (without := extent("own", tmp_path, tmp_path / "cache")) is not None
    assert without.queries == 10


def test_what_is_not_on_disk_has_the_sizes_of_its_card(tmp_path: Path) -> None:
    assert extent("lf-amazontitles-1.3m", tmp_path) == Extent(2_248_619, 1_305_265, 14, 14)


@pytest.mark.parametrize(
    ("text", "limit"), [("語" * 60, 64), ("слово " * 10, 56), ("Beschriftungsmaschinenbetriebsanleitung " * 5, 48)]
)
def test_a_limit_holds_texts_whose_words_are_many_tokens(tmp_path: Path, text: str, limit: int) -> None:
    write(tmp_path / "own", [5] * 10)
    (tmp_path / "own" / "trn_X.txt").write_text(f"{text}\n" * 10, encoding="utf-8")
    found = extent("own", tmp_path, tmp_path / "cache")
    assert found is not None
    assert found.query_limit == limit


def test_the_share_that_is_cut() -> None:
    tokens = [16] * 70 + [58] * 31
    assert share_cut(tokens, 32) == pytest.approx(0.31)
    assert share_cut(tokens, 58) == 0


@pytest.mark.parametrize("content", [None, "{}"])
def test_statistics_that_are_gone_or_damaged_are_made_again(tmp_path: Path, content: str | None) -> None:
    write(tmp_path / "own", [5] * 10)
    whole = extent("own", tmp_path, tmp_path / "cache")
    (statistics,) = tmp_path.glob("cache/datasets/*/statistics.json")
    statistics.unlink()
    if content:
        statistics.write_text(content)
    assert extent("own", tmp_path, tmp_path / "cache") == whole
