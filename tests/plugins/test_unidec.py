"""UniDEC: the loss is that of Algorithm 1, each setting does what it says, and it memorises what it is shown.

Legend: B queries, S labels of the pool, L labels, H size of the encoder's vectors, D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from toy import LABELS, QUERIES, make_run

from xmcbench import sampling, tables
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.dual_encoder import all_embeddings
from xmcbench_plugins.unidec import UniDEC

H, D = 32, 16  # of the small encoder, and here
Make = Callable[..., UniDEC]


def unidec(**settings: Any) -> UniDEC:
    small = {"encoder": "tiny", "batch_size": 20, "dimension": D, "head_dropout": 0.0}
    return UniDEC(UniDEC.Config(**(small | settings)))


@pytest.fixture
def prepared(data: TrainingData, small_encoder: str, tmp_path: Path) -> Make:
    """Makes a `UniDEC` with encoder, heads and classifier, but untrained."""

    def make(**settings: Any) -> UniDEC:
        encoder = {"name": small_encoder, "normalize": False, "hidden_dropout": 0.0}
        method = unidec(encoder=encoder, **settings)
        method.prepare(data, make_run(tmp_path, {"steps": 1}))
        return method

    return make


# The loss ---------------------------------------------------------------------------------------------------------


def both_ways(queries_BD: Tensor, labels_SD: Tensor, true_BS: Tensor, tau: float, settings: UniDEC.Config) -> Tensor:
    """Half the loss of queries over labels and half that of labels over queries, with whole score matrices."""

    def one_way(scores: Tensor, true: Tensor) -> Tensor:
        terms = -(log_softmax(scores, dim=1) * true).sum(1)
        return terms / true.sum(1) if settings.loss == "psl" else terms

    scores_BS = queries_BD @ labels_SD.T / tau
    there = one_way(scores_BS, true_BS).mean()
    if settings.directions == "query-to-label":
        return there
    asked_for = true_BS.sum(0) > 0
    back = one_way(scores_BS.T[asked_for], true_BS.T[asked_for])
    return (there + (back.mean() if settings.over_labels == "mean" else back.sum() / len(true_BS))) / 2


def reference(method: UniDEC, data: TrainingData, batch: sampling.Batch, leaves: dict[str, Tensor]) -> Tensor:
    """The loss of Algorithm 1 in float64, where extra positives are all of a query's labels."""
    settings = method.config
    true_BL = torch.from_numpy(data.targets[batch.query_ids].toarray()).double()

    def head(name: str, vectors: Tensor) -> Tensor:
        return vectors @ leaves[f"{name}.0.weight"].T + leaves[f"{name}.0.bias"]

    queries_BD, labels_SD = (normalize(torch.tanh(head("de", leaves[name])), dim=1) for name in ("queries", "labels"))
    of_de = both_ways(queries_BD, labels_SD, true_BL[:, batch.label_ids], settings.temperature, settings)
    if settings.heads == "de":
        return of_de
    pool = torch.zeros(LABELS, dtype=torch.bool)
    pool[batch.label_ids] = True
    if settings.extra_positives:
        pool |= true_BL.sum(0) > 0
    tau = settings.classifier_temperature
    of_clf = both_ways(head("clf", leaves["queries"]), leaves["rows"][pool], true_BL[:, pool], tau, settings)
    return settings.de_weight * of_de + (1 - settings.de_weight) * of_clf


LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": "pal"},
    {"directions": "query-to-label"},
    {"over_labels": "mean"},
    {"heads": "de"},
    {"heads": "de", "loss": "pal"},
    {"de_weight": 0.9},
    {"temperature": 0.2},
    {"classifier_temperature": 0.3},
    {"extra_positives": 50},
]


@pytest.mark.parametrize("settings", LOSSES, ids=str)
def test_value_and_every_gradient_equal_algorithm_1(
    settings: dict[str, Any], data: TrainingData, prepared: Make
) -> None:
    method = prepared(**settings)
    batch = method.sampler(data, 3).batch(0, 0)
    draws = torch.Generator().manual_seed(0)
    queries_BH, labels_SH = (
        torch.randn(len(ids), H, generator=draws).requires_grad_() for ids in (batch.query_ids, batch.label_ids)
    )
    named = {"queries": queries_BH, "labels": labels_SH, **dict(method.modules.named_parameters())}
    leaves = {name: tensor.detach().double().requires_grad_() for name, tensor in named.items()}
    tables = method.tables()
    if tables:
        leaves["rows"] = tables["classifier"].weight.detach().double().requires_grad_()
    wanted = reference(method, data, batch, leaves)
    wanted.backward()
    found = method.loss(queries_BH, labels_SH, batch)
    found.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    for name, tensor in named.items():
        torch.testing.assert_close(tensor.grad, leaves[name].grad.float(), rtol=1e-4, atol=1e-6, msg=name)
    if tables:
        rows, gradient_SD = tables["classifier"]._gradient()
        torch.testing.assert_close(gradient_SD, leaves["rows"].grad[rows].float(), rtol=1e-4, atol=1e-6)


def test_extra_positives_are_that_many_and_need_no_text(data: TrainingData, prepared: Make) -> None:
    sizes = []
    for extra in (0, 1, 2, 50):
        method = prepared(extra_positives=extra, positives_per_query=1, batch_size=5)
        batch = method.sampler(data, 3).batch(0, 0)
        label_ids, positives = method._classifier_pool(batch)
        true_BL = data.targets[batch.query_ids].toarray() > 0
        pairs = set(zip(positives.rows_P.tolist(), label_ids[positives.columns_P.numpy()].tolist(), strict=True))
        assert pairs == {(b, label) for b, label in np.argwhere(true_BL).tolist() if label in label_ids}
        assert set(batch.label_ids) <= set(label_ids) <= set(batch.label_ids) | set(np.flatnonzero(true_BL.any(0)))
        sizes.append(len(label_ids))
    assert sizes[0] < sizes[1] < sizes[3]
    assert sizes[0] == len(batch.label_ids)


def test_dropout_is_in_both_heads(prepared: Make) -> None:
    method = prepared(head_dropout=0.5)
    vectors = torch.ones(4, H)
    for name in ("de", "clf"):
        assert bool((method.modules[name](vectors) == 0).any())
        assert not bool((method.modules.eval()[name](vectors) == 0).any())
        method.modules.train()


# Pools and batches ------------------------------------------------------------------------------------------------


def refreshed(data: TrainingData, epoch: int = 0, **settings: Any) -> sampling.Sampler:
    """Its sampler after the look at embeddings that comes before an epoch."""
    sampler = unidec(**settings).sampler(data, 0)
    vectors = [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in data.targets.shape]
    sampler.refresh(epoch, sampling.Embeddings(lambda: vectors[0], lambda: vectors[1]))
    return sampler


def pool_size(data: TrainingData, **settings: Any) -> int:
    return len(refreshed(data, batch_size=5, **settings).batch(0, 0).label_ids)


def test_beta_and_eta_change_the_pool(data: TrainingData) -> None:
    alone = {"negatives_per_query": 0}
    assert pool_size(data, **alone, positives_per_query=1) < pool_size(data, **alone, positives_per_query=4)
    sizes = [pool_size(data, positives_per_query=1, negatives_per_query=eta) for eta in (0, 1, 6)]
    assert sizes == sorted(set(sizes))


def test_hard_negatives_come_from_a_list_of_eta_times_the_refresh_period(data: TrainingData) -> None:
    for settings, size in (({"negatives_per_query": 2, "refresh_every": 3}, 6), ({"shortlist": 4}, 4)):
        (nearest,) = refreshed(data, **settings).negatives
        assert isinstance(nearest, sampling.Nearest)
        assert nearest.nearest_NK is not None
        assert nearest.nearest_NK.shape == (QUERIES, size)
    assert refreshed(data, negatives_per_query=0).negatives == ()


def test_clusters_change_which_queries_meet(data: TrainingData) -> None:
    vectors = normalize(torch.randn(QUERIES, 4, generator=torch.Generator().manual_seed(QUERIES)), dim=1).numpy()

    def likeness(**settings: Any) -> float:
        sampler = refreshed(data, batch_size=8, **settings)
        batches = [sampler.batch(0, index).query_ids for index in range(sampler.num_batches(0))]
        return float(np.mean([np.mean(vectors[ids] @ vectors[ids].T) for ids in batches if len(ids) == 8]))

    shuffled, small, whole = likeness(batches="shuffled"), likeness(cluster_size=2), likeness()
    assert shuffled < small < whole
    assert likeness(cluster_size=8) == whole


def test_clusters_and_lists_are_renewed_when_they_say(data: TrainingData) -> None:
    due = [bool(refreshed(data, epoch, refresh_start=2, refresh_every=3).state()) for epoch in range(7)]
    assert due == [False, False, True, False, False, True, False]
    assert refreshed(data, 0).state()


def test_neighbours_are_those_of_the_first_head_whatever_is_scored(prepared: Make) -> None:
    vectors, label_ids = torch.randn(LABELS, H), np.arange(LABELS)
    for inference in ("both", "clf"):
        method = prepared(inference=inference)
        mined = normalize(method.modules["de"](vectors), dim=1)
        torch.testing.assert_close(method.mining_query_vectors(vectors), mined)
        torch.testing.assert_close(method.mining_label_vectors(vectors, label_ids), mined)


# Learning rates, inference, settings ------------------------------------------------------------------------------


def test_encoder_heads_and_classifier_have_rates_of_their_own(prepared: Make) -> None:
    method = prepared(learning_rate=0.1, head_learning_rate=0.2, classifier_learning_rate=0.3)
    rates = {id(p): group["lr"] for group in method.parameter_groups() for p in group["params"]}
    assert {rates.pop(id(p)) for p in method.modules.parameters()} == {0.2}
    assert {rates.pop(id(p)) for p in method.encoder.parameters()} == {0.1}
    assert not rates
    decays = {id(p): group["weight_decay"] for group in method.parameter_groups() for p in group["params"]}
    assert all((decays[id(p)] > 0) == (p.ndim > 1) for p in method.modules.parameters())
    assert method.tables()["classifier"].config.learning_rate == 0.3
    assert prepared(heads="de").tables() == {}


def test_inference_scores_one_head_the_other_or_the_sum_of_their_cosines(prepared: Make) -> None:
    queries, labels, label_ids = torch.randn(3, H), torch.randn(LABELS, H), np.arange(LABELS)
    scores = {}
    for inference in ("de", "clf", "both"):
        method = prepared(inference=inference)
        of_queries, of_labels = method.query_vectors(queries), method.label_vectors(labels, label_ids)
        assert of_queries.shape[1] == of_labels.shape[1] == 2 * D  # one index serves every inference
        scores[inference] = of_queries @ of_labels.T
    table = method.tables()["classifier"]
    assert isinstance(table, tables.LabelTable)
    cosines = normalize(method.modules["clf"](queries), dim=1) @ normalize(table.weight, dim=1).T
    torch.testing.assert_close(scores["clf"], cosines)
    torch.testing.assert_close(scores["both"], scores["de"] + scores["clf"])
    torch.testing.assert_close(prepared(heads="de").query_vectors(queries), method.query_vectors(queries)[:, :D])


def test_fusion_weighs_the_cosines(prepared: Make) -> None:
    queries, labels, label_ids = torch.randn(3, H), torch.randn(LABELS, H), np.arange(LABELS)

    def scores(**settings: Any) -> Tensor:
        method = prepared(**settings)
        return method.query_vectors(queries) @ method.label_vectors(labels, label_ids).T

    of_de, of_clf = (scores(inference=inference) for inference in ("de", "clf"))
    for fusion in (0.0, 0.3, 1.0):
        torch.testing.assert_close(scores(fusion=fusion), 2 * fusion * of_de + 2 * (1 - fusion) * of_clf)


def test_training_is_the_same_whatever_scores(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    """Weights and index are those of any inference, as `scoring_settings` says."""
    found = []
    for number, settings in enumerate(({}, {"inference": "clf"}, {"fusion": 0.9})):
        method = unidec(encoder={"name": small_encoder, "normalize": False}, **settings)
        method.fit(data, make_run(tmp_path / str(number), {"steps": 4}))
        found.append({**method.modules.state_dict(), "index": method.index_LD})
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[name], tensor) for name, tensor in found[0].items())


def test_rows_may_start_from_label_texts(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = unidec(encoder={"name": small_encoder, "normalize": False}, rows="label-embeddings")
    run = make_run(tmp_path, {"steps": 1})
    method.prepare(data, run)
    labels = method.labels
    with torch.no_grad():
        method.begin(all_embeddings(method))
        method.modules.eval()
        wanted = normalize(method.modules["clf"](method.embed(labels)), dim=1)
    torch.testing.assert_close(method.tables()["classifier"].weight, wanted)
    assert run.ledger.encoder_tokens == labels.lengths.sum()


MINED = {"shortlist", "refresh_start", "refresh_every"}
CLASSIFIER = {
    "inference",
    "fusion",
    "rows",
    "de_weight",
    "extra_positives",
    "classifier_temperature",
    "classifier_learning_rate",
}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({}, set()),
        ({"heads": "de"}, CLASSIFIER),
        ({"negatives_per_query": 0}, {"shortlist"}),
        ({"batches": "shuffled"}, {"cluster_size"}),
        ({"directions": "query-to-label"}, {"over_labels"}),
        ({"batches": "shuffled", "negatives_per_query": 0}, {"cluster_size", *MINED}),
    ],
)
def test_unused_settings_are_told(settings: dict[str, Any], unused: set[str]) -> None:
    assert UniDEC.Config(**settings).unused() == unused
    assert unused <= UniDEC.Config.model_fields.keys()


# Training ---------------------------------------------------------------------------------------------------------


def test_only_the_rows_of_a_pool_learn(prepared: Make, data: TrainingData, tmp_path: Path) -> None:
    pools = []

    class Watched(UniDEC):
        def _classifier_pool(self, batch: sampling.Batch) -> Any:
            found = super()._classifier_pool(batch)
            pools.append(found[0])
            return found

    method = Watched(prepared(batch_size=3, negatives_per_query=0, extra_positives=1).config)
    method.fit(data, make_run(tmp_path, {"steps": 1}))
    touched = np.flatnonzero(method.tables()["classifier"].get_buffer("touches").numpy())
    assert np.array_equal(touched, pools[0])
    assert 0 < len(touched) < LABELS
