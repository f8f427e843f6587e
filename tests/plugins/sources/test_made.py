"""Made datasets are what their papers say, the same everywhere, and hard in the way they are meant to be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from xmcbench.data import Dataset, content_hash, dataset_name, find_source
from xmcbench.data.draws import Draws
from xmcbench.data.prepared import load_card
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.made import ProductCatalog, Queries, make_products, make_words, size_of
from xmcbench_plugins.sources.shop import FORMS


def made(name: str) -> Dataset:
    return find_source(name).read(Path())


# A change of a generator changes what figures mean: give the source a new `version` when one of these has to change.
@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("tstar", "3398aa8d85b7edcd"),
        ("random-pairs-100", "f212a08b33b126a4"),
        ("catalog-200", "be599c778e228e20"),
        ("shop-1k", "92c41d55e61185a2"),
    ],
)
def test_the_content_is_pinned(name: str, digest: str) -> None:
    assert content_hash(made(name))[:16] == digest


def test_a_catalogue_made_by_block_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = content_hash(made("catalog-203-labels-2"))
    monkeypatch.setattr("xmcbench.data.texts.BLOCK", 7)
    assert content_hash(made("catalog-203-labels-2")) == whole
    assert load_card("catalog-203-labels-2", cache_dir=tmp_path).content_hash == whole, "the copy that is written"


def test_numpys_global_state_is_neither_used_nor_changed() -> None:
    np.random.seed(1)  # noqa: NPY002 (the global state is what is tested)
    first = content_hash(made("catalog-200"))
    after = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert after == np.random.random()  # noqa: NPY002
    assert first == content_hash(made("catalog-200"))


def test_a_word_of_the_shop_means_one_thing_and_labels_may_have_another() -> None:
    said = [phrase for form in FORMS for phrase in form[:-1]]
    assert len(set(said)) == len(said)
    assert 0.6 < np.mean([form[-1] in form[:-1] for form in FORMS]) < 0.9, "the others must be learnt from pairs"
    dataset = made("shop-1k")
    assert len(set(dataset.label_texts)) == len(dataset.label_texts)
    assert not any(word.isdigit() for text in dataset.test.texts for word in text.split()), "a model number"


def test_tstar_is_as_the_paper_says() -> None:
    dataset = made("tstar")
    train, test = dataset.train, dataset.test
    assert (len(train.texts), len(test.texts), len(dataset.label_texts)) == (1000, 1000, 5000)
    assert all(len(text.split()) == 16 for text in (*train.texts, *test.texts, *dataset.label_texts[1:]))
    assert all(text.split()[0] == "tstar" for text in (*train.texts[:100], *test.texts))
    assert not any("tstar" in text for text in (*train.texts[100:], *dataset.label_texts[1:]))
    assert dataset.label_texts[0].split()[16:] == ["tstar"]
    assert (train.targets[:100].toarray()[:, :5] == 1).all()
    assert train.targets[:100].nnz == 500
    assert (train.targets[100:].sum(axis=1) == 1).all()
    assert train.targets[100:].indices.min() >= 5
    assert (test.targets.indices == 0).all()
    assert test.targets.nnz == 1000


def test_random_pairs_pair_the_diagonal_and_test_on_train() -> None:
    dataset = made("random-pairs-300")
    assert (dataset.train.targets != dataset.test.targets).nnz == 0
    assert (dataset.train.targets.toarray() == np.eye(300)).all()
    assert list(dataset.train.texts) == list(dataset.test.texts)
    assert len(set(dataset.train.texts)) == len(set(dataset.label_texts)) == 300
    assert len(dataset.train.texts[0].split()) == 16


@pytest.mark.parametrize("n", [1, 500, 8_000, 20_000])
def test_words_are_all_different(n: int) -> None:
    assert len(set(make_words(n, Draws(0)))) == n


def test_draws_are_even_and_in_range() -> None:
    draws = Draws(7)
    counts = np.bincount(draws.integers(10, 20_000), minlength=10)
    assert counts.min() > 1_800
    assert counts.max() < 2_200
    weighted = np.bincount(draws.weighted(np.array([1.0, 0.0, 3.0]), 20_000), minlength=3) / 20_000
    assert weighted == pytest.approx([0.25, 0, 0.75], abs=0.02)
    assert sorted(draws.permutation(100)) == list(range(100))


def test_names_give_sizes() -> None:
    assert [size_of(f"catalog-{text}") for text in ("5k", "5000", "1.3m")] == [5_000, 5_000, 1_300_000]
    assert content_hash(made("catalog-200")) == content_hash(made("catalog-0.2k"))
    with pytest.raises(XMCBenchError, match="found 10 labels, expected at least 20"):
        find_source("catalog-10")
    for name in ("random-pairs-99m", f"random-pairs-{'9' * 400}", f"catalog-{'9' * 320}k"):
        with pytest.raises(XMCBenchError, match="expected 1 to 10,000,000"):
            find_source(name)


@pytest.fixture(scope="module")
def catalog() -> Dataset:
    return made("catalog-5k")


def test_the_catalogue_has_a_tail_and_labels_that_come_together(catalog: Dataset) -> None:
    per_label = np.bincount(catalog.train.targets.indices, minlength=5000)
    assert catalog.train.targets.shape == (12_000, 5_000)
    assert len(catalog.test.texts) == 3_000
    assert 0.4 < (per_label <= 5).mean() < 0.7
    assert (per_label == 0).sum() > 50
    assert (per_label >= 50).sum() > 20
    words = [len(text.split()) for text in (*catalog.train.texts, *catalog.test.texts)]
    assert min(words) >= 5
    assert max(words) <= 12
    together = (catalog.train.targets.T @ catalog.train.targets).tocoo()
    assert (together.row // 10 == together.col // 10).all()


def test_the_catalogue_separates_methods(catalog: Dataset) -> None:
    """Label text alone, neighbours, and one who knows what the words mean reach different P@1."""
    n = 1000
    queries, truth = list(catalog.test.texts[:n]), catalog.test.targets[:n].toarray()
    by_label = TfidfVectorizer().fit([*catalog.train.texts, *catalog.label_texts])
    label_scores = by_label.transform(queries) @ by_label.transform(list(catalog.label_texts)).T
    by_query = TfidfVectorizer().fit(list(catalog.train.texts))
    nearest = (by_query.transform(queries) @ by_query.transform(list(catalog.train.texts)).T).toarray().argmax(axis=1)
    neighbour_scores = catalog.train.targets[nearest]

    def precision(best: np.ndarray) -> float:
        return float(truth[np.arange(n), best].mean())

    label_match = precision(label_scores.toarray().argmax(axis=1))
    neighbour = precision(neighbour_scores.toarray().argmax(axis=1))
    assert 0.25 < label_match < 0.5
    assert 0.25 < neighbour < 0.5
    assert precision(knowing(n)) > 0.75


def knowing(n: int) -> np.ndarray:
    """The most probable anchor of each test query for one who knows every word's concept and every product."""
    products = make_products(5_000)
    stated = Queries(products, Draws(3, 5_000, 1), 3_000).stated(slice(0, n))
    log_odds = np.array([50.0, 50.0, 4.0, 4.0, 4.0])  # category and brand are never mistaken, attributes seldom
    scores = np.log(products.popularity) + sum(
        log_odds[j] * (stated[:, j : j + 1] == products.concepts[:, j]) for j in range(stated.shape[1])
    )
    return np.asarray(scores).argmax(axis=1)


def test_pairs_go_missing_in_train_and_test_alike(catalog: Dataset) -> None:
    products = make_products(5_000)
    targets = Queries(products, Draws(3, 5_000, 0), 12_000).targets()
    assert (targets != catalog.train.targets).nnz == 0
    empty = np.diff(catalog.train.targets.indptr) == 0
    assert 0 < empty.mean() < 0.04


def test_a_catalogue_needs_no_round_number_of_labels() -> None:
    dataset = ProductCatalog("catalog-203").read(Path())
    assert dataset.train.targets.shape[1] == len(dataset.label_texts) == 203


# Options of the catalogue -----------------------------------------------------------------------------------------


def test_the_number_of_test_queries_leaves_training_as_it_is() -> None:
    plain, larger = made("catalog-200"), made("catalog-200-test-1k")
    assert (len(plain.test.texts), len(larger.test.texts)) == (120, 1000)
    assert list(plain.train.texts) == list(larger.train.texts)
    assert (plain.train.targets != larger.train.targets).nnz == 0
    assert list(plain.label_texts) == list(larger.label_texts)


def test_a_larger_share_of_missing_pairs_leaves_fewer_of_the_same() -> None:
    datasets = [made(f"catalog-1k{option}") for option in ("", "-missing-0.2", "-missing-0.5")]
    pairs = [dataset.train.targets for dataset in datasets]
    for more, fewer in pairwise(pairs):
        assert fewer.multiply(more).nnz == fewer.nnz < more.nnz
    complete = pairs[0].nnz / 0.96
    assert [matrix.nnz / complete for matrix in pairs] == pytest.approx([0.96, 0.8, 0.5], abs=0.02)
    for dataset in datasets[1:]:
        assert list(dataset.train.texts) == list(datasets[0].train.texts)
        assert (dataset.test.targets != datasets[0].test.targets).nnz == 0


@pytest.mark.parametrize("labels", [1.5, 5.0, 8.0])
def test_labels_per_query_are_what_was_asked_for(labels: float) -> None:
    dataset = made(f"catalog-1k-labels-{labels}")
    for split in (dataset.train, dataset.test):
        assert split.targets.nnz / len(split.texts) == pytest.approx(0.96 * labels, rel=0.08)
    assert list(dataset.train.texts) == list(made("catalog-1k").train.texts)


def test_options_are_given_by_name_or_as_a_mapping() -> None:
    assert dataset_name({"name": "catalog-1k", "labels": 6, "test": "20k"}) == "catalog-1k-test-20k-labels-6"
    assert dataset_name({"name": "tstar"}) == "tstar"
    card = find_source("catalog-1k-test-20k-missing-0.2-labels-6").draft
    assert (card.num_train, card.num_test, card.num_labels) == (2400, 20_000, 1000)
    assert len(made("catalog-1k-train-300").train.texts) == 300


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "catalog-1k", "tests": 5}, r"of dataset catalog-1k: unknown option 'tests' \(did you mean 'test'"),
        ({"name": "tstar", "test": 5}, "unknown option 'test'"),
        ({"name": "catalog-1k", "missing": 1.5}, "dataset catalog-1k-missing-1.5: a value is not one of catalog-<n>"),
        ({"test": 5}, "found None as name"),
        ({"name": "catalogue-1k", "test": 5}, "unknown dataset 'catalogue-1k'"),
    ],
)
def test_options_that_do_not_exist_are_named(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(XMCBenchError, match=message):
        dataset_name(entry)


def test_too_many_labels_per_query_are_refused() -> None:
    with pytest.raises(XMCBenchError, match=r"found 12, expected 1.2 to 9 labels per query"):
        find_source("catalog-1k-labels-12")
