"""ICT and RTS: which texts are pairs, that no annotation is needed, and that what is predicted are the real labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import assert_saved_predicts_the_same
from toy import LABELS, make_run, toy_data

from xmcbench import losses
from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import HeldOut
from xmcbench_plugins.pseudo_labels import ICT, METHODS, RTS, PseudoLabels

LONG = [f"w{n}" for n in range(40)]


def method_of(kind: type[PseudoLabels], **settings: Any) -> PseudoLabels:
    return kind(kind.Config.model_validate({"encoder": "tiny", "batch_size": 20} | settings))


def pairs_of(method: PseudoLabels, words: list[str], count: int = 300) -> list[tuple[list[str], list[str]]]:
    rng = np.random.default_rng(0)
    return [method.pair(words, rng) for _ in range(count)]


def pseudo_data(method: PseudoLabels, data: TrainingData, tmp_path: Path, seed: int = 0) -> TrainingData:
    method._rng = make_run(tmp_path, {"steps": 1}, seed).rng("pairs")
    return method.training_data(data)


def contained(span: list[str], words: list[str]) -> bool:
    return any(words[i : i + len(span)] == span for i in range(len(words)))


@pytest.mark.parametrize("size", [2, 3, 7, 40])
def test_ict_takes_a_span_out_of_the_document(size: int) -> None:
    words = LONG[:size]
    starts = set()
    for query, label in pairs_of(method_of(ICT, span_words=8), words):
        start = words.index(label[0])
        assert label == words[start : start + len(label)]
        assert query == words[:start] + words[start + len(label) :]
        assert len(label) == min(8, size // 2)
        starts.add(start)
    assert starts == set(range(size - min(8, size // 2) + 1))


def test_the_opening_is_where_a_title_stands() -> None:
    assert pairs_of(method_of(ICT, span="opening", span_words=5), LONG, 3) == [(LONG[5:], LONG[:5])] * 3


@pytest.mark.parametrize("size", [2, 3, 40])
def test_rts_takes_two_spans_that_share_no_word(size: int) -> None:
    words = LONG[:size]
    order = set()
    for query, label in pairs_of(method_of(RTS, span_words=6), words):
        assert 1 <= min(len(query), len(label)) <= max(len(query), len(label)) <= 6
        assert contained(query, words)
        assert contained(label, words)
        assert not set(query) & set(label)
        order.add(words.index(query[0]) < words.index(label[0]))
    assert order == {True, False}


@pytest.mark.parametrize("kind", METHODS)
def test_a_pair_is_a_query_with_one_label_and_equal_labels_are_one(kind: type[PseudoLabels], tmp_path: Path) -> None:
    data = toy_data()
    made = pseudo_data(method_of(kind, pairs_per_document=3), data, tmp_path)
    cut = sum(len(text.split()) > 1 for text in data.texts)
    assert len(made.texts) == 3 * cut < 3 * len(data.texts)
    assert np.all(np.diff(made.targets.indptr) == 1)
    assert len(set(made.label_texts)) == len(made.label_texts) < len(made.texts)
    again, other = (pseudo_data(method_of(kind, pairs_per_document=3), data, tmp_path, seed) for seed in (0, 1))
    assert list(made.texts) == list(again.texts) != list(other.texts)


def test_the_loss_is_the_softmax_over_the_batch(tmp_path: Path) -> None:
    data = toy_data()
    method = method_of(RTS, temperature=0.1)
    batch = method.sampler(pseudo_data(method, data, tmp_path), 0).batch(0, 0)
    generator = torch.Generator().manual_seed(0)
    queries, labels = (torch.randn(n, 8, generator=generator) for n in (len(batch.query_ids), len(batch.label_ids)))
    wanted = losses.softmax(queries, labels, batch.positives, batch.positives.every(), temperature=0.1)
    assert method.loss(queries, labels, batch).item() == pytest.approx(wanted.item())
    colder = method_of(RTS, temperature=0.05).loss(queries, labels, batch)
    assert colder.item() != pytest.approx(wanted.item())


@pytest.mark.parametrize("kind", METHODS)
def test_it_learns_without_annotations_and_predicts_the_real_labels(
    kind: type[PseudoLabels], small_encoder: str, tmp_path: Path
) -> None:
    data = toy_data()
    trained, annotated = (method_of(kind, encoder=small_encoder, learning_rate=1e-3) for _ in range(2))
    trained.fit(data.unannotated("x"), make_run(tmp_path / "a", {"steps": 3}))
    annotated.fit(data, make_run(tmp_path / "b", {"steps": 3}))
    found, same = trained.predict(data.texts, LABELS), annotated.predict(data.texts, LABELS)
    assert sorted(found.indices[0].tolist()) == list(range(LABELS))
    assert np.array_equal(found.indices, same.indices)
    assert_saved_predicts_the_same(trained, method_of(kind, encoder=small_encoder), data.texts, tmp_path)
    assert trained.encoder_alone_scores


def test_the_best_of_several_evaluations_predicts(small_encoder: str, tmp_path: Path) -> None:
    """Held-out queries are answered with the real labels, not with those that are trained on."""
    data = toy_data()
    shapes = []

    def select(predictions: Any) -> dict[str, float]:
        shapes.append((predictions.indices.shape, int(predictions.indices.max())))
        return {"nDCG@5": 1.0}

    run = make_run(tmp_path, {"steps": 2}, held_out=HeldOut(data.texts[:4], select, evaluations=2))
    method_of(ICT, encoder=small_encoder).fit(data, run)
    assert shapes == [((4, LABELS), LABELS - 1)] * 2


def test_documents_of_one_word_are_one_line(tmp_path: Path) -> None:
    data = toy_data()
    silent = TrainingData(data.card, ["word"] * len(data.texts), data.targets, data.label_texts, data.ignore)
    with pytest.raises(XMCBenchError, match="toy: no document has two words, expected at least one to split"):
        pseudo_data(method_of(ICT), silent, tmp_path)
