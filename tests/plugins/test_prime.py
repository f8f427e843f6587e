"""PRIME: each switch does what it says, and the method memorises what it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from fitting import assert_saved_predicts_the_same, fit_and_kill
from many_workers import on_workers
from torch.nn.functional import gelu, layer_norm, normalize
from toy import LABELS, make_run

from xmcbench import sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.settings import OF_CLUSTERS
from xmcbench.engine.workers import ALONE, Workers
from xmcbench_plugins import prime as plugin
from xmcbench_plugins.prime import PRIME

from .prime_modules import DATA, GROUPS, D, batch_of, made, prime, rows

# Prototypes -------------------------------------------------------------------------------------------------------


def test_a_prototype_is_the_mean_of_a_transformer_layer_over_the_bag(monkeypatch: pytest.MonkeyPatch) -> None:
    method = made()
    ids = np.array([3, 4, 17])
    texts = rows(3, 8)
    bank, centroids = method.modules["bank"].weight, method.modules["centroids"].weight
    bag = torch.stack((texts, bank[GROUPS[ids]].double(), normalize(centroids[ids], dim=1).double()), 1)
    layer = method.modules["prototypes"].layer
    attention = layer.self_attn
    q, k, v = (bag @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, -1)
    mixed = ((q @ k.mT) / D**0.5).softmax(-1) @ v
    bag = layer_norm(bag + attention.out_proj(mixed), (D,), layer.norm1.weight, layer.norm1.bias)
    bag = layer_norm(bag + layer.linear2(gelu(layer.linear1(bag))), (D,), layer.norm2.weight, layer.norm2.bias)
    for at_once in (plugin.INDEXED, 2):
        monkeypatch.setattr(plugin, "INDEXED", at_once)
        torch.testing.assert_close(method.label_vectors(texts, ids), normalize(bag.mean(1), dim=1))


def test_labels_of_a_cluster_share_a_free_vector_and_its_gradient() -> None:
    method = made(free_vectors=8)
    bank = method.modules["bank"]
    assert (bank.num_rows, bank.learns) == (8, True)
    before = bank.weight.clone()
    vectors = method.label_vectors(rows(3, 8), np.array([0, 4, 5]))  # clusters 0, 0, 1
    (vectors * rows(3, 9)).sum().backward()
    bank.step(0.1)
    changed = (bank.weight != before).any(1).nonzero()[:, 0].tolist()
    assert changed == [0, 1]
    assert "bank" not in made(free_vectors=0).modules


def test_label_groups_are_balanced_clusters_of_the_texts() -> None:
    vectors = rows(LABELS, 3).float()
    embeddings = sampling.Embeddings(lambda: vectors[:0], lambda: vectors)
    torch.manual_seed(1)
    groups = prime(free_vectors=8).label_groups(DATA, embeddings)
    assert groups is not None
    assert np.bincount(groups).tolist() == [5] * 8
    own = prime(free_vectors=64).label_groups(DATA, embeddings)
    assert own is not None
    assert sorted(own) == list(range(LABELS))  # no more labels than vectors: each has its own
    assert prime(free_vectors=0).label_groups(DATA, embeddings) is None


def test_centroids_start_as_means_of_a_labels_queries_and_without_queries_as_zero() -> None:
    targets = DATA.targets.tolil()
    targets[:, 7] = 0
    train = TrainingData(DATA.card, DATA.texts, targets.tocsr(), DATA.label_texts, DATA.ignore)
    method = made()
    method.queries_of = sp.csr_array(train.targets.T)
    queries = rows(len(train.texts), 5).float()
    with torch.no_grad():
        method.begin(sampling.Embeddings(lambda: queries, lambda: queries))
    for label in range(LABELS):
        mine = np.flatnonzero(train.targets[:, [label]].toarray())
        wanted = normalize(normalize(queries[mine], dim=1).sum(0), dim=0) if len(mine) else torch.zeros(D)
        torch.testing.assert_close(method.modules["centroids"].weight[label], wanted)
    vectors = method.label_vectors(rows(1, 8), np.array([7]))
    assert torch.isfinite(vectors).all()


@pytest.mark.parametrize("centroids", ["momentum", "frozen", "none"])
def test_centroids_move_towards_their_queries_one_after_another_or_not_at_all(centroids: str) -> None:
    method = (
        made(centroids=centroids, momentum=0.9, positives_per_query=4)
        if centroids == "momentum"
        else made(centroids=centroids, positives_per_query=4)
    )
    batch, queries, labels = batch_of(method)
    if centroids == "none":
        method.after_step(batch, queries, labels)
        assert "centroids" not in method.modules
        return
    table = method.modules["centroids"]
    assert not table.learns
    wanted = table.weight.clone()
    if centroids == "momentum":
        for row, column in zip(batch.positives.rows_P.tolist(), batch.positives.columns_P.tolist(), strict=True):
            label = batch.label_ids[column]
            wanted[label] = 0.9 * wanted[label] + 0.1 * normalize(queries[row].detach().float(), dim=0)
    with torch.no_grad():
        method.after_step(batch, queries.detach().float(), labels.detach().float())
    torch.testing.assert_close(table.weight, wanted)


# Batches ----------------------------------------------------------------------------------------------------------


def test_propensity_draws_rare_labels_more_often() -> None:
    counts = np.asarray(DATA.targets.sum(0)).ravel()
    mean = {}
    for by in ("propensity", "uniform"):
        sampler = prime(positives_by=by, positives_per_query=1, batch_size=1).sampler(DATA, 0)
        drawn = [sampler.batch(epoch, 0).label_ids for epoch in range(300)]
        mean[by] = np.mean(counts[np.concatenate(drawn)])
    assert mean["propensity"] < mean["uniform"]


def test_settings_of_batches_reach_the_sampler() -> None:
    settings = {"cluster_size": 3, "cluster_start": 2, "cluster_every": 4, "cluster_growth": [7]}
    order = prime(**settings, cluster_vectors="fresh").sampler(DATA, 0).order
    assert isinstance(order, sampling.Clusters)
    assert (order.size, order.start, order.every, order.growth, order.vectors) == (3, 2, 4, (7,), "fresh")
    assert type(prime(batches="shuffled").sampler(DATA, 0).order) is sampling.Shuffled
    one, two = (len(prime(positives_per_query=n, batch_size=5).sampler(DATA, 0).batch(0, 0).label_ids) for n in (1, 2))
    assert one < two


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({}, set()),
        ({"batches": "shuffled"}, OF_CLUSTERS),
        ({"regulariser_weight": 0.0}, {"regulariser_margin", "regulariser_mean"}),
        ({"margin": "fixed"}, {"smallest_margin"}),
        ({"centroids": "none"}, {"momentum", "queries_per_centroid", "final_centroids"}),
        ({"centroids": "frozen"}, {"momentum", "queries_per_centroid"}),
        ({"free_vectors": 0}, {"free_vector_length"}),
    ],
)
def test_unused_settings_are_told(settings: dict[str, Any], unused: set[str]) -> None:
    assert PRIME.Config(**settings).unused() == unused
    assert unused <= PRIME.Config.model_fields.keys()


# Training ---------------------------------------------------------------------------------------------------------


def test_what_is_saved_predicts_the_same(small_encoder: str, tmp_path: Path) -> None:
    method = prime(encoder=small_encoder)
    method.fit(DATA, make_run(tmp_path, {"steps": 3}))
    again = prime(encoder=small_encoder)
    assert_saved_predicts_the_same(method, again, DATA.texts, tmp_path)
    assert not method.encoder_alone_scores
    # Free vectors are parameters, centroids are not.
    assert method.num_parameters == again.num_parameters + method.modules["bank"].weight.numel()


def train(_workers: Workers, root: str, encoder: str, kill_at: int = 0) -> dict[str, Any]:
    """Train for 7 steps of clusters, with dropout; or be killed."""
    method = prime(
        encoder={"name": encoder},
        prototype_dropout=0.2,
        feedforward=16,
        cluster_start=1,
        cluster_every=1,
        learning_rate=1e-3,
    )
    run = make_run(Path(root), {"steps": 7})
    begun: list[int] = []
    began = method.begin
    method.begin = lambda embeddings: (begun.append(1), began(embeddings))  # type: ignore[method-assign, assignment]
    if kill_at:
        fit_and_kill(kill_at, method, DATA, run)
        return {}
    method.fit(DATA, run)
    return {
        "weights": torch.cat([p.detach().flatten() for p in method.encoder.parameters()]).numpy(),
        "network": torch.cat([p.detach().flatten() for p in method.modules.parameters()]).numpy(),
        "scores": method.predict(DATA.texts, 5).scores,
        "tables": {name: (t.row_ids.numpy(), t.weight.numpy()) for name, t in method.tables().items()},
        "begun": len(begun),
        "groups": method.shard.groups_L,
        "parameters": method.num_parameters,
        "flops": run.ledger.flops,
        "tokens": run.ledger.encoder_tokens,
    }


def assert_alike(found: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    for outcome in found:
        for name in ("weights", "network", "scores"):
            np.testing.assert_allclose(outcome[name], wanted[name], rtol=2e-3, atol=1e-4, err_msg=name)
        for name in ("parameters", "tokens", "flops"):
            assert outcome[name] == wanted[name], name
        assert np.array_equal(outcome["groups"], wanted["groups"])
    assert set(wanted["tables"]) == {"bank", "centroids"}
    for name, (ids, weights) in wanted["tables"].items():
        theirs = np.concatenate([outcome["tables"][name][0] for outcome in found])
        parts = np.concatenate([outcome["tables"][name][1] for outcome in found])
        np.testing.assert_array_equal(np.sort(theirs), ids)  # each row lies with one worker
        np.testing.assert_allclose(parts[np.argsort(theirs)], weights, rtol=2e-3, atol=3e-5)


def test_two_workers_end_with_what_one_does_and_a_killed_run_goes_on_with_another_number(
    small_encoder: str, tmp_path: Path
) -> None:
    wanted = train(ALONE, str(tmp_path / "alone"), small_encoder)
    assert wanted["begun"] == 1
    assert_alike(on_workers(2, train, str(tmp_path / "two"), small_encoder), wanted)
    train(ALONE, str(tmp_path / "killed"), small_encoder, 4)
    again = on_workers(2, train, str(tmp_path / "killed"), small_encoder)
    assert_alike(again, wanted)
    assert [outcome["begun"] for outcome in again] == [0, 0]
