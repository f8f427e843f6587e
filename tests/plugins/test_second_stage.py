"""Second stages: they leave the first method as it is, keep to the budget, and do what their settings say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from fitting import assert_saved_predicts_the_same
from many_workers import on_workers
from pydantic import ValidationError
from sklearn.svm import LinearSVC
from torch.nn.functional import normalize
from toy import LABELS, QUERIES, make_run, toy_data

from xmcbench import Method, XMCBenchError, registry
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.search import index
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.errors import UnknownNameError
from xmcbench_plugins.second_stage import Classifier, SparseRanker
from xmcbench_plugins.second_stage.classifier import _rate
from xmcbench_plugins.second_stage.stage import SecondStage, standardised

STAGES: tuple[type[SecondStage], ...] = (Classifier, SparseRanker)


def first(encoder: str, method: str = "untrained", **settings: Any) -> dict[str, Any]:
    return {"method": method, "encoder": {"name": encoder, "hidden_dropout": 0.0}, **settings}


def stage(kind: type[SecondStage], encoder: str, **settings: Any) -> Any:
    return kind(kind.Config.model_validate({"first": first(encoder)} | settings))


def fitted(kind: type[SecondStage], encoder: str, data: TrainingData, root: Path, **settings: Any) -> Any:
    method = stage(kind, encoder, **settings)
    method.fit(data, make_run(root, {"steps": 10_000}))
    return method


def untrained(encoder: str, data: TrainingData, root: Path) -> Any:
    """The method that the stages above it are given."""
    method = stage(Classifier, encoder).first
    method.fit(data, make_run(root, {"steps": 1}))
    return method


def hits(method: Method, data: TrainingData) -> float:
    """Share of the training queries with labels whose best label is true."""
    best = method.predict(data.texts, 1).indices[:, 0]
    labelled = np.flatnonzero(np.diff(data.targets.indptr))
    return float(np.mean(data.targets[labelled, best[labelled]]))


# The first method -------------------------------------------------------------------------------------------------


def test_the_first_method_is_resolved_with_all_that_determines_it() -> None:
    config = Classifier.Config.model_validate({"first": {"method": "dexml", "encoder": "tiny", "batch_size": 7}})
    found = registry().method("dexml")
    assert config.first["method"] == "dexml"
    assert config.first["origin"] == found.origin.distribution
    assert config.first["batch_size"] == 7
    assert config.first["temperature"] == found.thing.Config().temperature
    assert Classifier.Config.model_validate(config.model_dump(mode="json")) == config
    assert Classifier(config).first.config.batch_size == 7


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({}, "missing key 'method'"),
        ({"method": "tfidf-nn"}, "is not a dual encoder"),
        ({"method": "classifier", "first": {"method": "untrained"}}, "is not a dual encoder"),
        ({"method": "dexml", "batch_size": "many"}, "batch_size: found 'many', expected a valid integer"),
        ({"method": "dexml", "speed": 1}, "speed: unknown key"),
        ({"method": "dexml", "negatives": "all", "shortlist": 7}, "shortlist: has no effect"),
    ],
)
def test_a_wrong_first_method_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Classifier.Config.model_validate({"first": wrong})


def test_an_unknown_or_other_first_method_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="dexmk"):
        Classifier.Config.model_validate({"first": {"method": "dexmk"}})
    with pytest.raises(XMCBenchError, match="expected other 7"):
        Classifier.Config.model_validate({"first": {"method": "dexml", "origin": "other 7"}})


# The budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_the_first_method_gets_its_share_and_the_classifier_the_rest(
    share: float, data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    settings = {"first": first(small_encoder, "dexml", batch_size=20, negatives="in-batch"), "batch_size": 20}
    method = stage(Classifier, small_encoder, share=share, epochs=100, **settings)
    run = make_run(tmp_path, {"steps": 40})
    firsts: list[int] = []
    learn = method.learn
    method.learn = lambda *given: (firsts.append(run.ledger.steps), learn(*given))
    method.fit(data, run)
    assert firsts == [40 * share]
    assert run.ledger.steps == 40
    assert not run.ledger.over(run.budget)


@pytest.mark.parametrize("kind", STAGES)
def test_looking_at_the_training_queries_is_charged(
    kind: type[SecondStage], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = stage(kind, small_encoder)
    run = make_run(tmp_path, {"device_seconds": 1000.0})
    method.fit(data, run)
    tokens = method.first.encoder.tokenizer.tokens(data.texts, data.card.max_length)
    assert run.ledger.encoder_tokens == tokens.lengths.sum()
    assert run.ledger.encoder_flops == method.first.encoder.flops(tokens.lengths)
    assert run.ledger.scoring_flops >= 2 * QUERIES * LABELS * 32
    assert run.ledger.stage_seconds["mine"] > 0
    assert run.ledger.stage_seconds["train"] > 0


@pytest.mark.parametrize("kind", STAGES)
def test_an_approximate_search_notes_its_recall_and_its_operations(
    kind: type[SecondStage], data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LARGE_SEARCH", 0)
    method, run = stage(kind, small_encoder), make_run(tmp_path, {"device_seconds": 1000.0})
    charged: list[int] = []
    learn = method.learn
    method.learn = lambda *given: (learn(*given), charged.append(run.ledger.scoring_flops))
    monkeypatch.setattr(Classifier, "_train", lambda *_: None)
    method.fit(data, run)
    assert run.ledger.shortlist_recall == pytest.approx(1.0)  # so few labels are one cluster
    assert charged == [index.search_flops(QUERIES, *method.first.index_LD.shape)]


@pytest.mark.parametrize("kind", STAGES)
def test_without_budget_left_nothing_is_learnt(
    kind: type[SecondStage], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    """Embedding the queries does not fit, so the first method answers."""
    method = stage(kind, small_encoder)
    run = make_run(tmp_path, {"encoder_tokens": 1})
    method.fit(data, run)
    assert not run.ledger.over(run.budget)
    assert (run.ledger.steps, run.ledger.encoder_tokens, run.ledger.refused_pass) == (0, 0, 1)
    wanted = untrained(small_encoder, data, tmp_path / "first").predict(data.texts, 5)
    assert np.array_equal(method.predict(data.texts, 5).indices, wanted.indices)


# Both stages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGES)
def test_the_encoder_is_frozen(kind: type[SecondStage], data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(kind, small_encoder, data, tmp_path / "both")
    alone = untrained(small_encoder, data, tmp_path / "alone")
    for name, weight in method.first.encoder.state_dict().items():
        assert torch.equal(weight, alone.encoder.state_dict()[name])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (
            Classifier,
            {
                "epochs": 80,
                "batch_size": 20,
                "dropout": 0.0,
                "table": {"learning_rate": 0.1},
                "margin": 0.02,
                "fuse": 0.0,
            },
        ),
        (SparseRanker, {"shortlist": LABELS, "c": 10.0, "weight": 10.0}),
    ],
)
def test_it_memorises_what_the_first_method_cannot(
    kind: type[SecondStage], settings: dict[str, Any], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    alone = untrained(small_encoder, data, tmp_path / "alone")
    assert hits(alone, data) < 0.2
    assert hits(fitted(kind, small_encoder, data, tmp_path / "both", **settings), data) > 0.99


@pytest.mark.parametrize("kind", STAGES)
def test_what_is_saved_predicts_the_same(
    kind: type[SecondStage], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = stage(kind, small_encoder, first=first(small_encoder, "dexml", batch_size=20))
    method.fit(data, make_run(tmp_path, {"steps": 5}))
    again = kind(method.config)
    assert_saved_predicts_the_same(method, again, data.texts, tmp_path)
    assert not (tmp_path / "saved" / "modules.json").exists()  # sentence-transformers would rank as the first does
    assert again.num_parameters == method.num_parameters > method.first.num_parameters


# The classifier ---------------------------------------------------------------------------------------------------


def test_what_the_classifier_learns_is_in_the_index(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    """Rows of length 1, and `fuse` times the first method's vectors."""
    index = untrained(small_encoder, data, tmp_path / "first").index_LD
    rows = fitted(Classifier, small_encoder, data, tmp_path / "0", fuse=0.0).first.index_LD
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(LABELS))
    for fuse in (0.5, 2.0):
        fused = fitted(Classifier, small_encoder, data, tmp_path / str(fuse), fuse=fuse).first.index_LD
        torch.testing.assert_close(fused, rows + fuse * index)


def test_rows_start_from_the_index(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    still = {"table": {"optimizer": "sgd", "learning_rate": 1e-12}, "fuse": 0.0}
    found = fitted(Classifier, small_encoder, data, tmp_path, **still).first.index_LD
    index = untrained(small_encoder, data, tmp_path / "first").index_LD
    torch.testing.assert_close(found, normalize(index, dim=1))


def test_negatives_come_from_the_index_and_are_not_true(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = stage(Classifier, small_encoder, batch_size=1, shortlist=4, negatives_per_query=2, positives_per_query=1)
    run = make_run(tmp_path, {"steps": 1})
    method.first.fit(data, run)
    tokens = method.first.encoder.tokenizer.tokens(data.texts, data.card.max_length)
    queries = method.first.all_query_vectors(tokens)
    sampler = method._sampler(data, queries, run)
    known = (data.targets + data.ignore).toarray() > 0
    scores = (queries @ method.first.index_LD.T).numpy()
    for number in range(10):
        batch = sampler.batch(0, number)
        (query,) = batch.query_ids
        nearest = np.argsort(-np.where(known[query], -np.inf, scores[query]), kind="stable")[:4]
        drawn = [label for label in batch.label_ids if not data.targets[query, label]]
        assert len(drawn) == 2
        assert set(drawn) <= set(nearest)
        assert len(batch.label_ids) == 3


def test_a_budget_of_whole_epochs_is_kept_to_the_step(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = stage(Classifier, small_encoder, epochs=20, batch_size=20)
    run = make_run(tmp_path, {"epochs": 5})
    run.ledger.epochs = 4.0  # as a first method leaves it
    method.fit(data, run)
    assert run.ledger.epochs == 5  # 4 + 1/3 + 1/3 + 1/3 is a little less


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 1},
        {"batch_size": 7},
        {"table": {"learning_rate": 0.1}},
        {"dropout": 0.1},
        {"margin": 0.05},
        {"hardest": 1},
        {"positives_per_query": 1},
        {"negatives_per_query": 1},
        {"shortlist": 2},
        {"batches": "clusters"},
        {"warmup": 0.5},
    ],
    ids=lambda other: next(iter(other)),
)
def test_each_setting_of_the_classifier_changes_its_rows(
    other: dict[str, Any], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    common = {"epochs": 3, "batch_size": 10, "margin": 0.5, "negatives_per_query": 3, "shortlist": 10}
    plain, changed = (
        fitted(Classifier, small_encoder, data, tmp_path / name, **(common | settings)).first.index_LD
        for name, settings in (("plain", {}), ("changed", other))
    )
    assert not torch.equal(plain, changed)


def test_the_classifiers_rate_rises_and_falls() -> None:
    rates = [_rate(place, 0.25) for place in (0.0, 0.125, 0.25, 0.625, 1.0)]
    assert rates == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert [_rate(place, 0.0) for place in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.0]


def test_clustered_batches_are_of_queries_that_lie_close(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    """Two far groups of queries meet in batches of their own, where shuffled batches mix them."""
    group_N = np.arange(QUERIES) % 2
    far_ND = torch.eye(32)[group_N] + 0.01 * torch.rand(QUERIES, 32, generator=torch.Generator().manual_seed(0))
    same = {}
    for batches in ("clusters", "shuffled"):
        settings = {"batches": batches, "cluster_size": 4} if batches == "clusters" else {}
        method, run = stage(Classifier, small_encoder, **settings), make_run(tmp_path / batches, {"steps": 1})
        method.first.fit(data, run)
        groups = group_N[method._sampler(data, far_ND, run).arranged(0)]
        same[batches] = np.mean(groups[1:] == groups[:-1])
    assert same["shuffled"] < 0.7 < same["clusters"]


# The sparse ranker ------------------------------------------------------------------------------------------------


def tfidf_ND(texts: Sequence[str]) -> np.ndarray:
    """TF-IDF written out: 1 + log of a word's count, times 1 + log((1 + N) / (1 + texts with it)), rows of length 1."""
    split = [re.findall(r"\w\w+", text.lower()) for text in texts]
    words = sorted({word for text in split for word in text})
    counts = np.array([[text.count(word) for word in words] for text in split], float)
    weights = np.log((1 + len(texts)) / (1 + (counts > 0).sum(axis=0))) + 1
    rows = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * weights
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_the_ranker_equals_dense_classifiers_of_one_label_each(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = fitted(SparseRanker, small_encoder, data, tmp_path, shortlist=6, weight=2.0)
    words, true, ignored = tfidf_ND(data.texts), data.targets.toarray() > 0, data.ignore.toarray() > 0
    ranked = method.first.predict(data.texts, LABELS).indices
    shown = true.copy()
    for query, labels in enumerate(ranked):
        shown[query, [label for label in labels if not ignored[query, label]][:6]] = True
    margins = np.full(true.shape, np.nan)
    for label in range(LABELS):
        own = np.flatnonzero(shown[:, label])
        if 0 < true[own, label].sum() < len(own):
            learnt = LinearSVC(random_state=0).fit(words[own], true[own, label])
            margins[:, label] = words @ learnt.coef_[0] + learnt.intercept_[0]
    assert np.isfinite(margins).sum() > 0
    found = method.scores(data.texts, np.tile(np.arange(LABELS), (len(words), 1)))
    np.testing.assert_allclose(found, margins, rtol=1e-3, atol=1e-3)
    listed = method.first.predict(data.texts, 6)
    both = standardised(listed.scores) + 2.0 * standardised(np.take_along_axis(found, listed.indices, axis=1))
    wanted = np.take_along_axis(listed.indices, np.argsort(-both, axis=1, kind="stable"), axis=1)
    assert np.array_equal(method.predict(data.texts, 6).indices, wanted)


def solved(method: Any, data: TrainingData, words_NV: sp.csr_array) -> dict[int, int]:
    """By label that the ranker learnt from shortlists of six: what a solver of our own says of its operations."""
    listed = method.first.predict(data.texts, LABELS)
    true, ignored = data.targets.toarray() > 0, data.ignore.toarray() > 0
    found = {}
    for label in np.flatnonzero(~np.isnan(method.intercepts_L)).tolist():
        near = [label in row[~ignored[query, row]][:6] for query, row in enumerate(listed.indices)]
        rows = np.flatnonzero(true[:, label] | np.array(near))
        learnt = LinearSVC(dual=True, random_state=0).fit(words_NV[rows], true[rows, label])
        found[label] = 4 * int(learnt.n_iter_) * (words_NV[rows].nnz + len(rows))
    return found


def test_the_linear_solver_is_charged_and_stops_at_a_spent_budget(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    """Each label costs its solver's products; a budget that ends among the labels leaves the rare ones unlearnt."""
    whole = stage(SparseRanker, small_encoder, shortlist=6)
    run = make_run(tmp_path / "whole", {"flops": 1e12})
    whole.fit(data, run)
    costs = solved(whole, data, sp.csr_array(tfidf_ND(data.texts)))
    assert run.ledger.solver_flops == sum(costs.values()) > 0
    assert run.ledger.flops == run.ledger.encoder_flops + run.ledger.scoring_flops + run.ledger.solver_flops
    before = run.ledger.flops - run.ledger.solver_flops
    short = stage(SparseRanker, small_encoder, shortlist=6)
    ended = make_run(tmp_path / "short", {"flops": before + sum(costs.values()) / 2})
    short.fit(data, ended)
    learnt = np.flatnonzero(~np.isnan(short.intercepts_L)).tolist()
    assert 0 < len(learnt) < len(costs)
    assert ended.ledger.solver_flops == sum(costs[label] for label in learnt)
    assert ended.ledger.fraction(ended.budget) >= 1
    assert not ended.ledger.over(ended.budget)
    counts_L = np.asarray(data.targets.sum(axis=0)).ravel()
    assert counts_L[learnt].min() >= counts_L[[*costs.keys() - {*learnt}]].max(), "frequent labels come first"


def test_the_linear_solver_stops_where_the_seconds_are_spent(
    data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only the solver moves, by a second a label, on a budget of ten."""
    now = [0.0]

    class Slow(LinearSVC):
        def fit(self, *given: Any) -> Any:
            now[0] += 1.0
            return super().fit(*given)

    monkeypatch.setattr("sklearn.svm.LinearSVC", Slow)
    method, run = stage(SparseRanker, small_encoder, shortlist=6), make_run(tmp_path, {"device_seconds": 10.0})
    run.ledger._cpu_clock = lambda: now[0]
    method.fit(data, run)
    assert (~np.isnan(method.intercepts_L)).sum() == 10
    assert run.ledger.device_seconds == 10.0


def test_without_weight_the_ranker_leaves_the_order(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(SparseRanker, small_encoder, data, tmp_path, weight=0.0)
    wanted = method.first.predict(data.texts, LABELS)
    assert np.array_equal(method.predict(data.texts, LABELS).indices, wanted.indices)


def test_over_a_first_method_in_bf16_an_answer_does_not_depend_on_other_queries(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    settings = {"first": first(small_encoder, precision="bf16"), "shortlist": LABELS // 4}
    method = fitted(SparseRanker, small_encoder, data, tmp_path, **settings)
    together = method.predict(data.texts, 5)
    alone = np.stack([method.predict([text], 5).indices[0] for text in data.texts])
    assert np.array_equal(together.indices, alone)
    in_bf16 = method.first.predict(data.texts, LABELS).scores
    assert not np.array_equal(in_bf16, method._exact_first.predict(data.texts, LABELS).scores)


def test_the_ranker_ranks_the_shortlist_and_nothing_below_it(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = fitted(SparseRanker, small_encoder, data, tmp_path, shortlist=6, weight=3.0)
    found, before = method.predict(data.texts, 10), method.first.predict(data.texts, 10)
    assert not np.array_equal(found.indices[:, :6], before.indices[:, :6])
    assert np.array_equal(np.sort(found.indices[:, :6]), np.sort(before.indices[:, :6]))
    assert np.array_equal(found.indices[:, 6:], before.indices[:, 6:])
    few = method.predict(data.texts, 2)
    assert np.array_equal(few.indices, found.indices[:, :2])


def test_regularisation_makes_small_weights(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    sizes = [
        abs(fitted(SparseRanker, small_encoder, data, tmp_path / str(c), c=c).weights_LV).sum() for c in (0.01, 1.0)
    ]
    assert sizes[0] < sizes[1]


def test_a_label_that_cannot_be_learnt_has_no_say(small_encoder: str, tmp_path: Path) -> None:
    plain = toy_data()
    kept = plain.targets.toarray()
    kept[:, 3] = 0
    data = TrainingData(plain.card, plain.texts, sp.csr_array(kept), plain.label_texts, plain.ignore)
    method = fitted(SparseRanker, small_encoder, data, tmp_path, shortlist=LABELS)
    assert np.flatnonzero(np.isnan(method.intercepts_L)).tolist() == [3]
    labels = np.tile(np.arange(LABELS), (len(data.texts), 1))
    assert np.all(standardised(method.scores(data.texts, labels))[:, 3] == 0)


def test_standardised_counts_what_is_known() -> None:
    found = standardised(np.array([[1.0, np.nan, 3.0], [np.nan] * 3, [2.0, 2.0, 2.0]], np.float32))
    np.testing.assert_allclose(found, [[-1, 0, 1], [0, 0, 0], [0, 0, 0]], atol=1e-6)


def test_texts_without_words_are_told(small_encoder: str, tmp_path: Path) -> None:
    plain = toy_data()
    data = TrainingData(plain.card, ["?"] * QUERIES, plain.targets, plain.label_texts, plain.ignore)
    with pytest.raises(XMCBenchError, match="toy: TF-IDF finds no word"):
        fitted(SparseRanker, small_encoder, data, tmp_path)


# Several workers --------------------------------------------------------------------------------------------------


def outcome(_workers: Workers, name: str, encoder: str, root: str) -> tuple[np.ndarray, dict[str, float]]:
    """What is predicted for the training queries after a trained first stage and the second; and what was spent."""
    kind = {kind.name: kind for kind in STAGES}[name]
    data, trained = toy_data(), first(encoder, "dexml", negatives="in-batch", batch_size=20)
    settings = {"epochs": 2, "batch_size": 20, "dropout": 0.0} if kind is Classifier else {}
    method, run = stage(kind, encoder, first=trained, **settings), make_run(Path(root), {"steps": 20})
    method.fit(data, run)
    return method.predict(data.texts, LABELS).scores, {name: run.ledger.spent(name) for name in ("steps", "flops")}


@pytest.mark.parametrize("name", [kind.name for kind in STAGES])
def test_two_workers_end_as_one(name: str, small_encoder: str, tmp_path: Path) -> None:
    wanted, spent = outcome(ALONE, name, small_encoder, str(tmp_path / "alone"))
    for found, charged in on_workers(2, outcome, name, small_encoder, str(tmp_path / "two")):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4)
        assert charged == spent
