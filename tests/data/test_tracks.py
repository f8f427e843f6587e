"""Derived datasets against their rules, one query and one pair at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xmcbench.data import Dataset, content_hash, dataset_name, find_source, load
from xmcbench.data.draws import Draws
from xmcbench.data.prepared import source_folders
from xmcbench.errors import XMCBenchError

BASE = "catalog-200"


@pytest.fixture(scope="module")
def base() -> Dataset:
    return find_source(BASE).read(Path())


def derived(track: str) -> Dataset:
    return find_source(f"{BASE}+{track}").read(Path())


def rows(dataset: Dataset, split: str = "train") -> list[tuple[str, frozenset[int]]]:
    """Text and labels of each query."""
    part = dataset.train if split == "train" else dataset.test
    labels = np.split(part.targets.indices, part.targets.indptr[1:-1])
    return [(text, frozenset(own.tolist())) for text, own in zip(part.texts, labels, strict=True)]


def same_test(first: Dataset, second: Dataset) -> bool:
    same_ignored = (first.ignore_test != second.ignore_test).nnz == 0
    return rows(first, "test") == rows(second, "test") and same_ignored


# Each rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [1, 4, 16])
def test_few_shot_keeps_what_a_walk_over_the_queries_needs(shots: int, base: Dataset) -> None:
    """A walk in the drawn order that takes a query while one of its labels has fewer than `shots`."""
    whole, had, kept = rows(base), dict.fromkeys(range(200), 0), []
    for query in Draws(0).permutation(len(whole)).tolist():
        labels = whole[query][1]
        if any(had[label] < shots for label in labels):
            kept.append(query)
            for label in labels:
                had[label] += 1
    found = derived(f"few-shot-{shots}")
    assert rows(found) == [whole[query] for query in sorted(kept)]
    assert same_test(found, base)
    full = np.bincount(base.train.targets.indices, minlength=200)
    assert (np.bincount(found.train.targets.indices, minlength=200) >= np.minimum(full, shots)).all()


def test_fewer_shots_are_among_more() -> None:
    kept = [set(rows(derived(f"few-shot-{shots}"))) for shots in (1, 4, 16)]
    assert kept[0] < kept[1] < kept[2]


def test_new_labels_have_no_training_query_and_no_other_label_loses_one(base: Dataset) -> None:
    found = derived("new-labels-0.1")
    new = set(Draws(0).permutation(200)[:20].tolist())
    wanted = [(text, labels - new) for text, labels in rows(base)]
    assert rows(found) == [row for row, (_, before) in zip(wanted, rows(base), strict=True) if row[1] or not before]
    assert same_test(found, base)
    assert list(found.label_texts) == list(base.label_texts)
    counts = np.bincount(found.train.targets.indices, minlength=200)
    assert (counts[sorted(new)] == 0).all()


def test_missing_labels_are_a_share_of_the_pairs_and_nested(base: Dataset) -> None:
    few, many = derived("missing-labels-0.2"), derived("missing-labels-0.6")
    for found, share in ((few, 0.2), (many, 0.6)):
        left = found.train.targets.nnz / base.train.targets.nnz
        assert abs(left - (1 - share)) < 0.05
        assert [text for text, _ in rows(found)] == [text for text, _ in rows(base)]
        assert same_test(found, base)
    for (_, least), (_, more), (_, whole) in zip(rows(many), rows(few), rows(base), strict=True):
        assert least <= more <= whole


@pytest.mark.parametrize("split", ["train", "test"])
def test_completion_gives_some_labels_and_asks_for_the_others(split: str, base: Dataset) -> None:
    found = derived("completion-0.5")
    ignored = found.ignore_train if split == "train" else found.ignore_test
    before = base.ignore_train if split == "train" else base.ignore_test
    whole = [(i, row) for i, row in enumerate(rows(base, split)) if split == "train" or len(row[1]) > 1]
    assert len(whole) == len(rows(found, split))
    given_some = 0
    for place, ((query, (text, labels)), (shown, left)) in enumerate(zip(whole, rows(found, split), strict=True)):
        own, hidden = set(ignored[[place]].indices.tolist()), set(before[[query]].indices.tolist())
        given = own - hidden
        assert given | left == labels
        assert not given & left
        if len(labels) < 2:
            assert (shown, given) == (text, set())
            continue
        given_some += 1
        assert len(given) == max(1, len(labels) // 2)
        assert left
        names = "; ".join(base.label_texts[label] for label in sorted(given))
        assert shown == f"{names} | {text}"
    assert given_some > 50


# Names and seeds --------------------------------------------------------------------------------------------------


def test_a_seed_changes_the_draw_and_none_is_seed_0() -> None:
    first, same, other = (derived(f"new-labels-0.1{seed}") for seed in ("", "-seed-0", "-seed-1"))
    assert content_hash(first) == content_hash(same) != content_hash(other)


# A change of a rule changes what figures mean: raise `VERSION` in tracks.py when one of these has to change.
@pytest.mark.parametrize(
    ("track", "digest"),
    [
        ("few-shot-4", "7d393f7b5ebbd55f"),
        ("new-labels-0.1", "2d4e44285f7187c9"),
        ("completion-0.5", "f0c19afe64d6c816"),
        ("missing-labels-0.2", "2e33e34d62405460"),
    ],
)
def test_the_content_is_pinned(track: str, digest: str) -> None:
    assert content_hash(derived(track))[:16] == digest


def test_tracks_follow_each_other_and_can_be_written_as_a_mapping(base: Dataset) -> None:
    found = derived("few-shot-4+missing-labels-0.2")
    assert [text for text, _ in rows(found)] == [text for text, _ in rows(derived("few-shot-4"))]
    assert found.card.name == f"{BASE}+few-shot-4+missing-labels-0.2"
    entry = {"name": "catalog-1k", "missing": 0.2, "track": "few-shot-4"}
    assert dataset_name(entry) == "catalog-1k-missing-0.2+few-shot-4"
    assert base.card.num_train > found.card.num_train


def test_a_derived_dataset_is_loaded_like_any_other(tmp_path: Path, base: Dataset) -> None:
    name = f"{BASE}+few-shot-1"
    found = load(name, tmp_path, tmp_path / "cache")
    assert (found.card.name, found.card.num_test) == (name, base.card.num_test)
    assert found.card.content_hash == content_hash(derived("few-shot-1"))
    folders = source_folders(find_source(name, tmp_path), tmp_path, tmp_path / "cache")
    copy = [path for path in folders if path.name.startswith(f"{BASE}-")]
    assert set(folders) == {tmp_path / name, tmp_path / BASE, *copy}
    assert len(copy) == 1


def test_a_folder_never_takes_the_place_of_a_track(tmp_path: Path) -> None:
    for name in (f"{BASE}+few-shot-1", "mine+yours"):
        (tmp_path / name).mkdir()
        for file in ("trn.json", "tst.json", "lbl.json"):
            (tmp_path / name / file).write_text("{}\n")
    with pytest.raises(XMCBenchError, match=r"a folder with the name of a track of catalog-200: rename it"):
        find_source(f"{BASE}+few-shot-1", tmp_path)
    assert find_source("mine+yours", tmp_path).name == "mine+yours"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "catalog-200+fewshot-4",
            "dataset catalog-200+fewshot-4: unknown track 'fewshot-4' (did you mean 'few-shot-N'",
        ),
        ("catalog-200+", "dataset catalog-200+: unknown track ''"),
        ("catalog-200+few-shot-0", "found 0 after few-shot, expected a whole number from 1 on"),
        ("catalog-200+few-shot-1.5", "found 1.5 after few-shot, expected a whole number"),
        ("catalog-200+new-labels-1", "found 1 after new-labels, expected a share above 0 and below 1"),
        ("catalog-200+missing-labels-0.20", "found 0.20 after missing-labels, expected a share"),
        ("catalog-20x+few-shot-4", "unknown dataset 'catalog-20x'"),
        ("catalog-\u0968\u0966\u0966", "unknown dataset 'catalog-\u0968"),  # digits, which int() reads
        ("random-pairs-20+completion-0.5", "no test query is left: random-pairs-20 has none with two labels"),
        ("random-pairs-20+missing-labels-0.99+few-shot-1", "training queries, expected at least 3"),
    ],
)
def test_what_cannot_be_derived_is_one_line(name: str, complaint: str) -> None:
    with pytest.raises(XMCBenchError) as raised:
        find_source(name).read(Path())
    assert complaint in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
