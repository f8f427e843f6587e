"""NGAME: each setting does what it says, and the method memorises what it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from toy import LABELS, make_run, save_small_encoder, toy_data

from xmcbench import losses, sampling
from xmcbench.data import load
from xmcbench.data.dataset import TrainingData
from xmcbench_ngame import NGAME, OF_CLUSTERS


def ngame(**settings: Any) -> NGAME:
    return NGAME(NGAME.Config(**({"encoder": "tiny", "batch_size": 20} | settings)))


def test_batches_are_of_clusters_or_not(data: TrainingData) -> None:
    settings = {"cluster_size": 3, "cluster_start": 2, "cluster_every": 4, "cluster_growth": [7], "batches": "clusters"}
    order = ngame(**settings, cluster_vectors="fresh").sampler(data, 0).order
    assert isinstance(order, sampling.Clusters)
    assert (order.size, order.start, order.every, order.growth, order.vectors) == (3, 2, 4, (7,), "fresh")
    assert type(ngame(batches="shuffled").sampler(data, 0).order) is sampling.Shuffled


def test_queries_that_are_alike_meet(data: TrainingData) -> None:
    """Two far groups of queries: clusters lay those of one group side by side, shuffling does not."""
    near_ND = 0.01 * torch.rand(len(data.texts), 2, generator=torch.Generator().manual_seed(0))
    far_ND = torch.eye(2)[torch.arange(len(data.texts)) % 2] + near_ND
    alike = {}
    for settings in ({"batches": "shuffled"}, {"cluster_size": 4, "cluster_start": 1, "cluster_vectors": "fresh"}):
        sampler = ngame(**settings).sampler(data, 0)
        sampler.refresh(1, sampling.Embeddings(lambda: far_ND, lambda: far_ND))
        groups = sampler.arranged(1) % 2
        alike[settings.get("batches", "clusters")] = np.mean(groups[1:] == groups[:-1])
    assert alike["shuffled"] < 0.7 < alike["clusters"]


def test_positives_per_query_widen_the_pool(data: TrainingData) -> None:
    one, all_of_them = (
        len(ngame(positives_per_query=n, batch_size=5).sampler(data, 0).batch(0, 0).label_ids) for n in (1, 4)
    )
    assert one < all_of_them


def test_settings_of_the_loss_change_the_loss(data: TrainingData) -> None:
    batch = ngame().sampler(data, 0).batch(0, 0)
    generator = torch.Generator().manual_seed(0)
    sizes = (len(batch.query_ids), len(batch.label_ids))
    queries, labels = (torch.nn.functional.normalize(torch.randn(n, 8, generator=generator), dim=1) for n in sizes)
    defaults = {"margin": 0.3, "hardest": 10, "weight_temperature": 0.1, "bystanders": "zero logit"}
    changes: list[dict[str, Any]] = [
        {},
        {"bystanders": "excluded"},
        {"margin": 0.2},
        {"hardest": 15},
        {"weight_temperature": 0.5},
        {"weight_temperature": None},
    ]
    found = set()
    for changed in changes:
        settings = defaults | changed
        value = ngame(**settings).loss(queries, labels, batch).item()
        wanted = losses.triplet(queries, labels, batch.positives, over_negatives="mean", **settings)
        assert value == pytest.approx(wanted.item())
        found.add(value)
    assert len(found) == len(changes)  # no two settings give one value
    assert {name: getattr(ngame().config, name) for name in defaults} == defaults


def test_unused_settings_are_told() -> None:
    assert NGAME.Config().unused() == set()
    assert NGAME.Config(batches="shuffled").unused() == OF_CLUSTERS <= NGAME.Config.model_fields.keys()
    assert NGAME.Config(weight_temperature=None).unused() == {"bystanders"}


@pytest.mark.parametrize("wrong", [{"margin": -1}, {"bystanders": "some"}, {"cluster_growth": "all"}, {"speed": 1}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NGAME.Config(**wrong)


@pytest.mark.parametrize("batches", ["clusters", "shuffled"])
def test_it_memorises_random_pairs(batches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "data"))
    dataset = load("random-pairs-200")
    train = dataset.training_data()
    clusters = {"cluster_start": 2, "cluster_every": 4, "cluster_growth": [6]} if batches == "clusters" else {}
    method = ngame(
        **clusters,
        encoder={"name": save_small_encoder(tmp_path, train), "hidden_dropout": 0.0},
        batches=batches,
        batch_size=100,
        learning_rate=3e-3,
        max_query_length=8,
        max_label_length=8,
    )
    method.fit(train, make_run(tmp_path, {"epochs": 20}))
    top = method.predict(dataset.test.texts, 1).indices[:, 0]
    assert np.mean(top == np.arange(200)) > 0.99


def test_what_is_saved_predicts_the_same(small_encoder: str, tmp_path: Path) -> None:
    data = toy_data()
    method = ngame(encoder=small_encoder, batches="shuffled")
    method.fit(data, make_run(tmp_path, {"steps": 3}))
    (tmp_path / "saved").mkdir()
    method.save(tmp_path / "saved")
    again = ngame(encoder=small_encoder, batches="shuffled")
    again.load(tmp_path / "saved")
    wanted, found = method.predict(data.texts, LABELS), again.predict(data.texts, LABELS)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)
    assert method.encoder_alone_scores
    assert again.num_parameters == method.num_parameters > 0
