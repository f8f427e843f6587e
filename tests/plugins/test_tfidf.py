"""The baselines that match words against dense matrices and loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fitting import assert_saved_predicts_the_same
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from toy import LABELS, QUERIES, make_run, make_words, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.trial.method import Method
from xmcbench_plugins import tfidf
from xmcbench_plugins.tfidf import BM25LabelMatch, LabelMatch, NearestNeighbours

DATA = toy_data()
METHODS = [NearestNeighbours, LabelMatch, BM25LabelMatch]
UNSEEN = [*DATA.texts[:5], "", "zzz qqq", " ".join(make_words(3, np.random.default_rng(9))), *DATA.label_texts[:7]]


def fitted(kind: type[Method], root: Path, data: TrainingData = DATA, **settings: object) -> Method:
    method = kind(kind.Config.model_validate(settings))
    method.fit(data, make_run(root, {"steps": 1}))
    return method


def rows_of(texts: list[str]) -> np.ndarray:
    """Dense TF-IDF rows, in float64."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    vectorizer.fit([*DATA.texts, *DATA.label_texts])
    return np.asarray(vectorizer.transform(texts).todense())


def neighbour_scores(texts: list[str], neighbours: int, power: float) -> np.ndarray:
    similar = rows_of(texts) @ rows_of(list(DATA.texts)).T
    scores = np.zeros((len(texts), LABELS))
    for row, of_row in enumerate(similar):
        for query in np.lexsort((np.arange(QUERIES), -of_row.astype(np.float32)))[:neighbours]:
            scores[row] += max(0.0, of_row[query]) ** power * DATA.targets.toarray()[query]
    return scores


def label_scores(texts: list[str]) -> np.ndarray:
    return rows_of(texts) @ rows_of(list(DATA.label_texts)).T


def bm25_scores(texts: list[str], k1: float, b: float) -> np.ndarray:
    """The definition, a pair of texts at a time."""
    split = CountVectorizer().build_analyzer()
    labels = [split(text) for text in DATA.label_texts]
    mean = np.mean([len(words) for words in labels])
    scores = np.zeros((len(texts), LABELS))
    for row, text in enumerate(texts):
        for label, words in enumerate(labels):
            for word in split(text):
                within = sum(word in others for others in labels)
                idf = np.log(1 + (LABELS - within + 0.5) / (within + 0.5))
                times = words.count(word)
                if not times:
                    continue
                scores[row, label] += idf * times * (k1 + 1) / (times + k1 * (1 - b + b * len(words) / mean))
    return scores


def assert_ranked(method: Method, scores: np.ndarray, k: int) -> None:
    """Predictions are the positive scores, best first, and pads; labels may swap only where scores all but tie."""
    found = method.predict(UNSEEN, k)
    assert found.indices.shape == (len(scores), k)
    for row, of_row in enumerate(scores):
        labels = found.indices[row][found.indices[row] >= 0]
        assert len(labels) == len(set(labels)) == min(k, int((of_row > 1e-9).sum()))
        assert np.all(found.scores[row, len(labels) :] == -np.inf)
        np.testing.assert_allclose(found.scores[row, : len(labels)], of_row[labels], rtol=1e-4)
        np.testing.assert_allclose(of_row[labels], np.sort(of_row)[::-1][: len(labels)], rtol=1e-4)


@pytest.mark.parametrize("power", [1.0, 3.0])
@pytest.mark.parametrize("neighbours", [1, 5, QUERIES])
def test_neighbours_vote_by_similarity(tmp_path: Path, neighbours: int, power: float) -> None:
    method = fitted(NearestNeighbours, tmp_path, neighbours=neighbours, power=power)
    for k in (3, LABELS):
        assert_ranked(method, neighbour_scores(UNSEEN, neighbours, power), k)


def test_labels_match_by_cosine(tmp_path: Path) -> None:
    method = fitted(LabelMatch, tmp_path)
    for k in (3, LABELS):
        assert_ranked(method, label_scores(UNSEEN), k)
    own = method.predict(DATA.label_texts, 1)
    np.testing.assert_allclose(own.scores[:, 0], 1, rtol=1e-5)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 0.75), (2.0, 0.0), (1.2, 1.0)])
def test_labels_match_by_bm25(tmp_path: Path, k1: float, b: float) -> None:
    method = fitted(BM25LabelMatch, tmp_path, k1=k1, b=b)
    for k in (3, LABELS):
        assert_ranked(method, bm25_scores(UNSEEN, k1, b), k)


@pytest.mark.parametrize("kind", [LabelMatch, BM25LabelMatch])
def test_matching_label_texts_needs_no_annotation(kind: type[Method], tmp_path: Path) -> None:
    method, blind = fitted(kind, tmp_path), fitted(kind, tmp_path, DATA.unannotated("x"))
    wanted, found = method.predict(UNSEEN, 7), blind.predict(UNSEEN, 7)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)


@pytest.mark.parametrize("kind", [LabelMatch, BM25LabelMatch])
def test_of_many_equal_labels_the_first_are_predicted(kind: type[Method], tmp_path: Path) -> None:
    same = [number for number in range(LABELS) if number % 8]
    texts = [DATA.label_texts[0] if number in same else text for number, text in enumerate(DATA.label_texts)]
    found = fitted(kind, tmp_path, replace(DATA, label_texts=texts)).predict([DATA.label_texts[0]], 5)
    assert len(same) > 5 + tfidf.SPARE
    assert found.indices.tolist() == [[0, *same[:4]]]


@pytest.mark.parametrize("kind", METHODS)
def test_chunks_change_nothing(kind: type[Method], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fitted(kind, tmp_path)
    whole = method.predict(UNSEEN, 5)
    monkeypatch.setattr(tfidf, "CHUNK", 2)
    parts = method.predict(UNSEEN, 5)
    assert np.array_equal(whole.indices, parts.indices)
    assert np.array_equal(whole.scores, parts.scores)


@pytest.mark.parametrize("kind", METHODS)
def test_what_is_saved_predicts_the_same(kind: type[Method], tmp_path: Path) -> None:
    assert_saved_predicts_the_same(fitted(kind, tmp_path), kind(kind.Config()), UNSEEN, tmp_path)


@pytest.mark.parametrize("kind", METHODS)
def test_training_is_charged(kind: type[Method], tmp_path: Path) -> None:
    run = make_run(tmp_path, {"steps": 1})
    kind(kind.Config()).fit(DATA, run)
    assert run.ledger.device_seconds > 0


def test_texts_without_words_are_one_line(tmp_path: Path) -> None:
    silent = replace(DATA, texts=[""] * QUERIES, label_texts=["?"] * LABELS)
    with pytest.raises(XMCBenchError, match="toy: tfidf-label finds no word in the texts"):
        fitted(LabelMatch, tmp_path, silent)
    with pytest.raises(XMCBenchError, match="toy: bm25-label finds no word in the texts"):
        fitted(BM25LabelMatch, tmp_path, silent)
