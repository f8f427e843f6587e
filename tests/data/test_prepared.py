"""`load` by name: the prepared copy equals what is read, and is made anew when the source changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from xmcbench.data import Dataset, PackedTexts, content_hash, find_source, load
from xmcbench.data.prepared import read_copy
from xmcbench.data.source import FolderSource, own_source
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.manifest import write_manifest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def assert_same(left: Dataset, right: Dataset) -> None:
    assert [list(t) for t in texts(left)] == [list(t) for t in texts(right)]
    for a, b in zip(matrices(left), matrices(right), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert (a != b).nnz == 0


def texts(dataset: Dataset) -> tuple:
    return dataset.train.texts, dataset.test.texts, dataset.label_texts


def matrices(dataset: Dataset) -> tuple:
    return dataset.train.targets, dataset.test.targets, dataset.ignore_train, dataset.ignore_test


def copies(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "datasets").iterdir() if path.is_dir())


def test_the_prepared_copy_is_what_was_read(raw: Path, cache: Path, small: Dataset) -> None:
    first, second = load("small", raw.parent, cache), load("small", raw.parent, cache)
    assert_same(first, small)
    assert_same(second, small)
    assert first.card == second.card
    assert first.card.content_hash == content_hash(small)
    assert len(copies(cache)) == 1


def test_texts_are_mapped_and_matrices_can_be_worked_with(raw: Path, cache: Path, small: Dataset) -> None:
    dataset = load("small", raw.parent, cache)
    assert isinstance(dataset.train.texts, PackedTexts)
    assert isinstance(dataset.train.texts.data, np.memmap)
    ids = np.array([4, 0])
    part = dataset.training_data().rows(ids)
    assert list(part.texts) == ["日本", "ein Ärmel"]
    assert (part.targets.toarray() == small.train.targets[ids].toarray()).all()
    product = dataset.train.targets @ dataset.train.targets.T
    assert (product != small.train.targets @ small.train.targets.T).nnz == 0


def test_a_second_load_reads_no_source(raw: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("small", raw.parent, cache)
    monkeypatch.setattr(FolderSource, "read", lambda *_: pytest.fail("read again"))
    load("small", raw.parent, cache)


def test_a_relative_and_an_absolute_path_have_one_copy(raw: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("small", raw.parent, cache)
    monkeypatch.chdir(raw.parent)
    load("small", Path(), cache)
    assert len(copies(cache)) == 1


def test_changed_files_are_read_again(raw: Path, cache: Path) -> None:
    before = load("small", raw.parent, cache).card.content_hash
    (raw / "Y.txt").write_text("rot\ngrün\nblau\nweiß\ngelb\n")
    after = load("small", raw.parent, cache)
    assert after.label_texts[4] == "gelb"
    assert after.card.content_hash != before
    os.utime(raw / "Y.txt", ns=(1, 1))
    assert load("small", raw.parent, cache).card.content_hash == after.card.content_hash
    assert len(copies(cache)) == 3


@pytest.mark.parametrize("how", ["written over", "moved there"])
def test_a_file_of_equal_size_and_time_is_read_again(raw: Path, cache: Path, tmp_path: Path, how: str) -> None:
    load("small", raw.parent, cache)
    path, state = raw / "Y.txt", (raw / "Y.txt").stat()
    other = path if how == "written over" else tmp_path / "other.txt"
    other.write_text(path.read_text().replace("rot", "lot"))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert load("small", raw.parent, cache).label_texts[0] == "lot"


@pytest.mark.parametrize("name", ["trn_X.txt", "trn_X_Y.txt", "tst_X_Y.txt", "tst_filter_labels.txt", "card.yaml"])
@pytest.mark.parametrize("how", ["in place", "a link to another", "a hard link"])
def test_every_file_of_a_dataset_is_read_again(raw: Path, cache: Path, tmp_path: Path, name: str, how: str) -> None:
    """Replaced with equal size and time; a byte of the content differs."""
    path = raw / name
    own = {"tst_filter_labels.txt": "0 0\n", "card.yaml": "max_length: 31\n"}
    if name in own:
        path.write_text(own[name])
    before, state = load("small", raw.parent, cache).card.content_hash, path.stat()
    changes = {"trn_X.txt": (" ", "_"), "card.yaml": ("31", "30"), "tst_filter_labels.txt": ("0 0", "0 1")}
    old, new = changes.get(name, ("0:", "3:"))
    content = path.read_text().replace(old, new, 1)
    assert content != path.read_text()
    other = path if how == "in place" else tmp_path / "other"
    other.write_text(content)
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    if how == "a link to another":
        path.unlink()
        path.symlink_to(other)
    elif how == "a hard link":
        path.unlink()
        path.hardlink_to(other)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert load("small", raw.parent, cache).card.content_hash != before


def test_the_hash_is_of_the_content_and_not_of_the_place(raw: Path, cache: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "other-name"
    moved.parent.mkdir()
    here = load("small", raw.parent, cache)
    raw.rename(moved)
    there = load("other-name", moved.parent, cache)
    assert here.card.content_hash == there.card.content_hash


@pytest.mark.parametrize("part", ["text", "boundary", "target", "ignored"])
def test_the_hash_sees_every_part(small: Dataset, part: str) -> None:
    before = content_hash(small)
    if part == "text":
        small.label_texts.data.flags.writeable or setattr(small.label_texts, "data", small.label_texts.data.copy())
        small.label_texts.data[0] += 1
    elif part == "boundary":
        small.label_texts.offsets[1] += 1
    else:
        matrix = small.test.targets if part == "target" else small.ignore_test
        matrix.indices[0] += 1
    assert content_hash(small) != before


def test_many_at_once_make_one_copy(raw: Path, cache: Path, small: Dataset) -> None:
    with ThreadPoolExecutor(4) as pool:
        for dataset in pool.map(lambda _: load("small", raw.parent, cache), range(8)):
            assert_same(dataset, small)
    assert len(copies(cache)) == 1


def test_a_failed_write_leaves_nothing(raw: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: Iterator[int] = iter(range(100))

    def full(*_: object) -> None:
        if next(saves) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(XMCBenchError, match=r"cannot be written \(No space left on device; [0-9,]+ bytes of its disk"):
        load("small", raw.parent, cache)
    assert copies(cache) == []
    monkeypatch.undo()
    load("small", raw.parent, cache)


@pytest.mark.parametrize("case", range(24))
def test_a_damaged_copy_is_made_again_with_a_warning(
    raw: Path, cache: Path, small: Dataset, caplog: pytest.LogCaptureFixture, case: int
) -> None:
    load("small", raw.parent, cache)
    (damaged,) = copies(cache)
    rng = np.random.default_rng(case)
    path = sorted(damaged.iterdir())[case % len(list(damaged.iterdir()))]
    content = bytearray(path.read_bytes())
    if case % 3 == 0:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    else:
        content = content[: rng.integers(len(content))]
    path.write_bytes(content)
    assert_same(load("small", raw.parent, cache), small)
    assert "is damaged and is written again" in caplog.text
    caplog.clear()
    assert_same(load("small", raw.parent, cache), small)
    assert not caplog.text


@pytest.mark.parametrize("part", ["train_targets.indptr.npy", "train_targets.indices.npy", "labels.offsets.npy"])
def test_structure_is_checked_even_where_digests_fit(raw: Path, cache: Path, part: str) -> None:
    load("small", raw.parent, cache)
    (copy,) = copies(cache)
    np.save(copy / part, np.load(copy / part)[::-1] + 100)
    write_manifest(copy)
    with pytest.raises(ValueError, match=r"offsets|row pointers|labels|texts"):
        read_copy(copy)


def test_an_unknown_name_suggests_names_and_folders(raw: Path, cache: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown dataset 'smal' .did you mean 'small'"):
        load("smal", raw.parent, cache)
    with pytest.raises(UnknownNameError, match="lf-amazontitles-131k"):
        load("lf-amazontitle-131k", raw.parent, cache)


def test_a_name_is_no_path(raw: Path) -> None:
    with pytest.raises(UnknownNameError):
        find_source("../small", raw.parent / "small")


def test_what_is_not_on_disk_says_where_to_get_it(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(XMCBenchError) as caught:
        load("lf-amazontitles-131k", tmp_path, cache)
    message = str(caught.value)
    assert "manikvarma.org" in message
    assert str(tmp_path / "lf-amazontitles-131k") in message
    assert "trn.json" in message
    assert "\n" not in message


def test_sizes_that_are_not_the_cards_are_an_error(raw: Path, cache: Path) -> None:
    raw.rename(raw.parent / "eurlex-4k")
    with pytest.raises(XMCBenchError, match="found num_train = 7, expected 15449 by the card of eurlex-4k"):
        load("eurlex-4k", raw.parent, cache)
    assert copies(cache) == []


def test_card_yaml_overrides_what_is_inferred(raw: Path, cache: Path) -> None:
    (raw / "card.yaml").write_text("propensity_a: 0.6\nlicence: mine\nnum_train: 7\ntail_at_most: 1\n")
    card = load("small", raw.parent, cache).card
    assert (card.propensity_a, card.propensity_b, card.licence, card.tail_at_most) == (0.6, 1.5, "mine", 1)
    assert (card.num_train, card.num_test, card.num_labels) == (7, 3, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("licence: x\npropensity_z: 1\n", "card.yaml:2: propensity_z: unknown key .did you mean 'propensity_"),
        ("name: other\n", "card.yaml:1: name: unknown key"),
        ("licence: x\nmax_length: long\n", "card.yaml:2: max_length: found 'long'"),
        ("text: body\n", "card.yaml:1: text: found 'body'"),
        ("num_labels: 6\n", "found num_labels = 5, expected 6"),
    ],
)
def test_a_bad_card_is_one_line(raw: Path, cache: Path, content: str, message: str) -> None:
    (raw / "card.yaml").write_text(content)
    with pytest.raises(XMCBenchError, match=message):
        load("small", raw.parent, cache)


def test_an_own_card_may_name_the_fields_of_a_text(json_folder: Path) -> None:
    (json_folder / "card.yaml").write_text("text: title\n")
    assert own_source(json_folder).draft.text == "title"


@pytest.mark.parametrize(
    ("name", "sizes", "untrained", "labels_per_query"),
    [
        ("lf-tate-titles-16k", (44_694, 14_107, 16_455), 1_674, 6.1),
        ("lf-tibkat-15k", (36_743, 3_123, 14_623), 562, 2.2),
    ],
)
def test_the_real_datasets_are_as_documented(
    shared: Path, cache: Path, name: str, sizes: tuple[int, int, int], untrained: int, labels_per_query: float
) -> None:
    dataset = load(name, shared / "datasets", cache)
    train, test = dataset.train.targets, dataset.test.targets
    assert (len(dataset.train.texts), len(dataset.test.texts), len(dataset.label_texts)) == sizes
    assert train.shape[1] - len(np.unique(train.indices)) == untrained
    assert round((train.nnz + test.nnz) / (sizes[0] + sizes[1]), 1) == labels_per_query


@pytest.mark.parametrize("name", ["\ud800", "a" * 5000, "\0", "..", "*"])
def test_a_name_that_no_file_has_is_no_dataset(tmp_path: Path, name: str) -> None:
    with pytest.raises(XMCBenchError, match="unknown dataset"):
        load(name, tmp_path)
