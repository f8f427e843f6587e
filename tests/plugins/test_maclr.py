"""MACLR: its pool, clusters and losses by their equations, the proposed labels by brute force, killed and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fitting import Killed, assert_saved_predicts_the_same, fit_and_kill
from sklearn.feature_extraction.text import TfidfVectorizer
from toy import LABELS, make_run, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling import Batch, Embeddings
from xmcbench.engine.training import checkpoints
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import HeldOut, Progress
from xmcbench_plugins.maclr import MACLR, Pretraining
from xmcbench_plugins.maclr.parts import FinerClusters

DATA = toy_data(ignored=2)
SETTINGS: dict[str, Any] = {"batch_size": 20, "learning_rate": 1e-3, "cluster_size": 8, "cluster_every": 1}


def maclr(encoder: str, **settings: Any) -> MACLR:
    return MACLR(MACLR.Config.model_validate({"encoder": encoder, **SETTINGS, **settings}))


def pretraining(**settings: Any) -> Pretraining:
    return Pretraining(Pretraining.Config.model_validate({"encoder": "nano", **SETTINGS, **settings}))


def prepared(method: Pretraining, clusters: np.ndarray) -> tuple[TrainingData, Batch]:
    """The data that a method is trained on, and its first batch; `clusters` are of all documents."""
    made = method.training_data(DATA)
    sampler = method.sampler(made, 0)
    method._clusters.clusters_Q = clusters
    return made, sampler.batch(0, 0)


def test_a_pool_has_the_titles_the_views_and_some_labels() -> None:
    made, batch = prepared(pretraining(random_labels=0.5), np.zeros(len(DATA.texts)))
    documents = len(made.texts)
    assert list(made.label_texts[documents:]) == [*made.texts, *DATA.label_texts]
    for text, title in zip(made.texts, made.label_texts, strict=False):
        assert f"{title} {text}" in DATA.texts or set(text.split()) | set(title.split()) in [
            set(whole.split()) for whole in DATA.texts
        ]
    own, others = batch.label_ids[batch.label_ids < 2 * documents], batch.label_ids[batch.label_ids >= 2 * documents]
    assert set(own) == {*batch.query_ids, *(documents + batch.query_ids)}
    assert len(others) == 10  # a half for each of 20 queries
    assert not np.isin(others, made.targets.indices).any()


@pytest.mark.parametrize("clustered", [True, False])
def test_the_loss_is_that_of_the_equation(clustered: bool) -> None:
    """The mean over documents of -mean log softmax: of titles over titles, of views over views and labels."""
    method = pretraining(temperature=0.1, regularisation=0.7)
    made = method.training_data(DATA)
    documents = len(made.texts)
    clusters = np.random.default_rng(0).integers(5, size=documents) if clustered else np.arange(documents)
    made, batch = prepared(method, clusters)
    generator = torch.Generator().manual_seed(0)
    vectors = {"query": batch.query_ids, "label": batch.label_ids}
    queries, labels = (
        torch.randn(len(ids), 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for ids in vectors.values()
    )
    found = method.loss(queries, labels, batch)

    def contrast(pool: list[int]) -> torch.Tensor:
        terms = []
        for row, query in enumerate(batch.query_ids):
            scores = torch.stack([queries[row] @ labels[column] / 0.1 for column in pool])
            of_pool = [batch.label_ids[column] for column in pool]
            mates = [
                place
                for place, label in enumerate(of_pool)
                if label < 2 * documents and clusters[label % documents] == clusters[query]
            ]
            assert mates
            terms.append(-(scores[mates] - scores.exp().sum().log()).mean())
        return torch.stack(terms).mean()

    titles = [column for column, label in enumerate(batch.label_ids) if label < documents]
    wanted = contrast(titles) + 0.7 * contrast([c for c in range(len(batch.label_ids)) if c not in titles])
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)  # weights are float32
    for mine, its in zip(
        torch.autograd.grad(found, (queries, labels)), torch.autograd.grad(wanted, (queries, labels)), strict=True
    ):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-7)


def test_clusters_halve_in_size_until_each_document_is_by_itself() -> None:
    vectors = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    spent = SimpleNamespace(now=0.0)
    clusters = FinerClusters(16, every=1, clustered=0.5, spent=lambda: spent.now)
    clusters.attach(SimpleNamespace(query_ids=np.arange(64), rng=lambda *_: np.random.default_rng(0)))  # type: ignore[arg-type]
    found = {}
    for epoch, spent.now in enumerate([0.0, 0.09, 0.1, 0.2, 0.3, 0.49, 0.5, 0.9]):
        clusters.refresh(epoch, Embeddings(lambda: vectors, lambda: vectors))
        assert clusters.clusters_Q is not None
        found[spent.now] = int(np.bincount(clusters.clusters_Q).max())
        assert sorted(clusters.arrange(epoch)) == list(range(64))
    assert found == {0.0: 16, 0.09: 16, 0.1: 8, 0.2: 4, 0.3: 2, 0.49: 1, 0.5: 1, 0.9: 1}


def test_proposed_labels_are_those_of_words_and_of_the_surest_documents(small_encoder: str, tmp_path: Path) -> None:
    method = maclr(small_encoder, confident=0.25)
    first = Pretraining(method.config)
    first.fit(DATA, make_run(tmp_path, {"steps": 2}))
    found = method._proposed(first, DATA, make_run(tmp_path / "b", {"steps": 9})).toarray()
    wanted = np.zeros_like(found)
    ignored = DATA.ignore.toarray() > 0
    scores = (first.embed_texts(DATA.texts) @ first.index_LD.T).numpy()
    scores[ignored] = -np.inf
    for document in np.argsort(-scores.max(1))[: len(DATA.texts) // 4]:
        wanted[document, scores[document].argmax()] = 1
    words = TfidfVectorizer(sublinear_tf=True).fit([*DATA.texts, *DATA.label_texts])
    cosines = (words.transform(DATA.texts) @ words.transform(DATA.label_texts).T).toarray()
    cosines[ignored] = 0
    for document, best in enumerate(cosines.max(1)):
        if best > 0:
            wanted[document, cosines[document].argmax()] = 1
    assert np.array_equal(found, wanted)
    assert 0 < (cosines.max(1) > 0).sum() < len(DATA.texts)


def test_no_annotation_is_read_and_what_is_saved_predicts_the_same(small_encoder: str, tmp_path: Path) -> None:
    trained, annotated = maclr(small_encoder), maclr(small_encoder)
    data = toy_data()
    trained.fit(data.unannotated("x"), make_run(tmp_path / "a", {"steps": 6}))
    annotated.fit(data, make_run(tmp_path / "b", {"steps": 6}))
    found, same = trained.predict(DATA.texts, LABELS), annotated.predict(DATA.texts, LABELS)
    assert np.array_equal(found.scores, same.scores)
    assert_saved_predicts_the_same(trained, maclr(small_encoder), DATA.texts, tmp_path)
    assert trained.encoder_alone_scores


def test_an_encoder_with_a_trained_tokenizer_keeps_it(tmp_path: Path) -> None:
    """Titles are cut out of what the first stage reads, so another tokenizer would be trained for the second."""
    method = maclr("nano")
    method.fit(DATA, make_run(tmp_path, {"steps": 4}))
    assert_saved_predicts_the_same(method, maclr("nano"), DATA.texts, tmp_path)


def in_second_stage(progress: Progress) -> None:
    if progress.fraction > 0.6 and "step" in progress.metrics:
        raise Killed


@pytest.mark.parametrize("stage", [1, 2])
def test_killed_and_resumed_equals_unbroken(
    stage: int, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", -1.0)
    unbroken, resumed = maclr(small_encoder), maclr(small_encoder)
    whole, killed = make_run(tmp_path / "a", {"steps": 10}), make_run(tmp_path / "b", {"steps": 10})
    unbroken.fit(DATA, whole)
    if stage == 1:
        fit_and_kill(3, maclr(small_encoder), DATA, killed)
    else:
        with pytest.raises(Killed):
            maclr(small_encoder).fit(DATA, replace(killed, report=in_second_stage))
    again = make_run(tmp_path / "b", {"steps": 10})
    resumed.fit(DATA, again)
    found, wanted = resumed.predict(DATA.texts, 10), unbroken.predict(DATA.texts, 10)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)
    assert again.ledger.steps == whole.ledger.steps == 10
    assert again.ledger.encoder_tokens == whole.ledger.encoder_tokens


def test_stages_keep_within_the_budget_and_the_last_weights_are_evaluated(small_encoder: str, tmp_path: Path) -> None:
    shapes = []

    def score(predictions: Any) -> dict[str, float]:
        shapes.append(predictions.indices.shape)
        return {"nDCG@5": 1.0}

    run = make_run(tmp_path, {"encoder_tokens": 12_000}, held_out=HeldOut(DATA.texts[:4], score))
    maclr(small_encoder).fit(DATA, run)
    assert 12_000 <= run.ledger.encoder_tokens <= 12_000 + run.ledger.largest_step["encoder_tokens"]
    assert shapes == [(4, LABELS)]
    assert [point["fraction"] for point in run.log.curve] == [1.0]


def test_a_budget_without_room_for_self_training_is_one_line(small_encoder: str, tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match=r"takes .* encoder tokens, .* are left"):
        maclr(small_encoder, self_training=0.01).fit(DATA, make_run(tmp_path, {"encoder_tokens": 6000}))
