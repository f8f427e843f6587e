"""NGAME: each setting does what it says, and the method memorises what it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.losses import reference
from fitting import assert_triplet_settings_count
from toy import LABELS, make_run

from xmcbench import sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.settings import OF_CLUSTERS
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import ALONE
from xmcbench_plugins.ngame import NGAME


def ngame(**settings: Any) -> NGAME:
    common = {"encoder": "tiny", "batch_size": 20, "first_hardest": None}
    return NGAME(NGAME.Config(**(common | settings)))


def at_step(method: NGAME, step: int, steps: int = 100) -> NGAME:
    """The method as it is before `step` of a budget of `steps`, without an encoder."""
    method.run = make_run(Path(), {"steps": steps})
    method.run.ledger.steps = step
    method.shard = Shard(LABELS, ALONE)
    return method


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


def test_adam_has_the_methods_epsilon(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    for settings, epsilon in (({}, 1e-6), ({"adam_epsilon": 1e-3}, 1e-3)):
        method = ngame(encoder=small_encoder, **settings)
        method.prepare(data, make_run(tmp_path, {"steps": 1}))
        optimizer = torch.optim.AdamW(method.parameter_groups())
        assert {group["eps"] for group in optimizer.param_groups} == {epsilon}


def test_positives_per_query_widen_the_pool(data: TrainingData) -> None:
    one, all_of_them = (
        len(ngame(positives_per_query=n, batch_size=5).sampler(data, 0).batch(0, 0).label_ids) for n in (1, 4)
    )
    assert one < all_of_them


def test_settings_of_the_loss_change_the_loss(data: TrainingData) -> None:
    defaults = assert_triplet_settings_count(lambda **settings: at_step(ngame(**settings), 1), data)
    assert {name: getattr(ngame().config, name) for name in defaults} == defaults


@pytest.mark.parametrize("which", ["drawn", "one"])
def test_the_loss_is_the_equation_over_the_label_drawn_for_each_query(data: TrainingData, which: str) -> None:
    """In float64, one query and one label at a time. Labels that are true by chance are no negatives."""
    method = at_step(ngame(positives=which, batch_size=60), 1)
    batch = method.sampler(data, 0).batch(0, 0)
    truth_BS = data.targets[batch.query_ids][:, batch.label_ids].toarray() > 0
    assert truth_BS.sum() > 1.3 * len(truth_BS)  # many are true by chance
    generator = torch.Generator().manual_seed(0)
    queries, labels = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in truth_BS.shape)
    wanted = torch.zeros((), dtype=torch.float64)
    for row, column in zip(batch.positives.rows_P.tolist(), batch.positives.columns_P.tolist(), strict=True):
        weight = reference.weighting(which, truth_BS, batch.positives)(row, column)
        scores = [reference.score(queries[row], label, 1.0) for label in labels]
        term = reference.triplet(0.3, 10, 0.1, "zero logit", "mean")(scores, column, truth_BS[row])
        wanted += weight * term / len(queries)
    assert method.loss(queries, labels, batch).item() == pytest.approx(wanted.item(), rel=1e-9)


def test_unused_settings_are_told() -> None:
    assert NGAME.Config(first_hardest=None).unused() == {"hardest_share"}
    of_clusters = NGAME.Config(batches="shuffled", first_hardest=100).unused()
    assert of_clusters == OF_CLUSTERS <= NGAME.Config.model_fields.keys()
    assert NGAME.Config(weight_temperature=None, first_hardest=9).unused() == {"bystanders"}


# Collapse ---------------------------------------------------------------------------------------------------------


def test_the_number_of_hardest_negatives_falls_over_its_share_of_the_budget() -> None:
    method = ngame(first_hardest=100, hardest=10, hardest_share=0.5)
    found = [at_step(method, step).hardest() for step in (0, 25, 50, 75, 100)]
    assert found == [100, 32, 10, 10, 10]
    assert at_step(ngame(hardest=7), 0).hardest() == 7


def first_loss(data: TrainingData, spread: float, step: int = 0, **settings: Any) -> None:
    """The loss of a first batch whose embeddings lie around one point, `spread` apart."""
    method = at_step(ngame(**settings), step)
    batch = method.sampler(data, 0).batch(0, 0)
    generator = torch.Generator().manual_seed(0)
    sizes = (len(batch.query_ids), len(batch.label_ids))
    near = [torch.eye(8)[:1] + spread * torch.randn(n, 8, generator=generator) for n in sizes]
    method.loss(*(torch.nn.functional.normalize(vectors, dim=1) for vectors in near), batch)


@pytest.mark.parametrize("settings", [{}, {"weight_temperature": None}, {"bystanders": "excluded"}])
def test_a_start_above_a_collapsed_encoder_is_warned_of(
    settings: dict[str, Any], data: TrainingData, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random embeddings have negatives above the positive, and a loss above that of one point for all texts."""
    first_loss(data, 1.0, **settings)
    warning = capsys.readouterr().err
    assert warning.startswith("warning: collapse possible: initial loss x hardest ")
    assert "> margin 0.3; raise `hardest` or warm up" in warning


def test_there_is_no_warning_of_a_collapse_later_or_below_it(
    data: TrainingData, capsys: pytest.CaptureFixture[str]
) -> None:
    first_loss(data, 1.0, step=1)
    method = at_step(ngame(), 0)
    batch = method.sampler(data, 0).batch(0, 0)
    labels_SD = torch.eye(len(batch.label_ids))
    truth_BS = torch.from_numpy(data.targets[batch.query_ids][:, batch.label_ids].toarray())
    method.loss(torch.nn.functional.normalize(truth_BS @ labels_SD, dim=1), labels_SD, batch)
    assert not capsys.readouterr().err
