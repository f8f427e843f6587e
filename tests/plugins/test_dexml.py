"""DEXML: each setting does what it says, and the method memorises what it is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from many_workers import on_workers
from toy import LABELS, make_run, toy_data

from xmcbench import XMCBenchError, losses, sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import ALONE, Workers
from xmcbench_plugins.dexml import DEXML


def dexml(**settings: Any) -> DEXML:
    return DEXML(DEXML.Config(**({"encoder": "tiny", "batch_size": 20} | settings)))


def refreshed(data: TrainingData, **settings: Any) -> sampling.Sampler:
    """The sampler of a `DEXML` with hard negatives, after its first look at embeddings."""
    method = dexml(negatives="hard", **settings)
    sampler = method.sampler(data, 0)
    vectors = [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in data.targets.shape]
    sampler.refresh(method.config.refresh_start, sampling.Embeddings(lambda: vectors[0], lambda: vectors[1]))
    return sampler


def pool_size(sampler: sampling.Sampler) -> int:
    return len(sampler.batch(0, 0).label_ids)


def part(sampler: sampling.Sampler, kind: type[Any]) -> Any:
    """The one source of negatives, which is of this kind."""
    (found,) = sampler.negatives
    assert type(found) is kind
    return found


def test_negatives_choose_the_sampler(data: TrainingData) -> None:
    kinds = {"hard": sampling.Nearest, "embedding-cache": sampling.Cached, "all": sampling.AllLabels}
    for negatives, kind in kinds.items():
        sampler = dexml(negatives=negatives).sampler(data, 7)
        part(sampler, kind)
        assert (sampler.batch_size, sampler.seed) == (20, 7)
    assert dexml(negatives="in-batch").sampler(data, 7).negatives == ()
    assert pool_size(dexml(negatives="all").sampler(data, 0)) == LABELS


def test_settings_of_the_pool_change_the_pool(data: TrainingData) -> None:
    one, several = (
        pool_size(dexml(negatives="in-batch", positives_per_query=n, batch_size=5).sampler(data, 0)) for n in (1, 4)
    )
    assert one < several
    few, many = (pool_size(refreshed(data, negatives_per_query=n, batch_size=5)) for n in (1, 5))
    assert few < many
    for shortlist in (3, 9):
        nearest_NK = part(refreshed(data, shortlist=shortlist), sampling.Nearest).nearest_NK
        assert nearest_NK is not None
        assert nearest_NK.shape[1] == shortlist
    nearest = part(dexml(negatives="hard", refresh_start=3, refresh_every=4).sampler(data, 0), sampling.Nearest)
    assert (nearest.start, nearest.every) == (3, 4)


def test_the_cache_adds_the_labels_that_the_methods_own_loss_pulls_most(data: TrainingData) -> None:
    """By `loss`, `temperature` and all: the gradients are those of the full loss, computed here."""
    vectors = [torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).half().float() for rows in (60, 40)]
    pools = set()
    for changes in ({}, {"loss": "bce", "temperature": 1.0}, {"loss": "soft-top-k", "k": 2}, {"cached_negatives": 9}):
        method = dexml(**({"negatives": "embedding-cache", "cached_negatives": 4, "batch_size": 5} | changes))
        sampler = method.sampler(data, 0)
        sampler.refresh(0, sampling.Embeddings(lambda: vectors[0], lambda: vectors[1]))
        batch = sampler.batch(0, 0)
        queries, labels = vectors[0][batch.query_ids], vectors[1].clone().requires_grad_()
        whole = dexml(negatives="all", batch_size=5).sampler(data, 0).batch(0, 0)
        assert np.array_equal(whole.query_ids, batch.query_ids)
        method.loss(queries, labels, whole).backward()
        assert labels.grad is not None
        lengths = labels.grad.norm(dim=1)
        lengths[batch.label_ids] = -1
        wanted = lengths.topk(method.config.cached_negatives).indices
        pool = sampler.extend_pool(batch, queries, vectors[1][batch.label_ids])
        assert set(pool) - set(batch.label_ids) == set(wanted.tolist())
        pools.add(tuple(pool))
    assert len(pools) == 4


def test_settings_of_the_loss_change_the_loss(data: TrainingData) -> None:
    batch = dexml(negatives="all").sampler(data, 0).batch(0, 0)
    generator = torch.Generator().manual_seed(0)
    queries, labels = (torch.randn(n, 8, generator=generator) for n in (len(batch.query_ids), LABELS))
    positives = batch.positives

    def value(**settings: Any) -> float:
        return dexml(negatives="all", **settings).loss(queries, labels, batch).item()

    every, one = positives.every(), positives.weights("one")
    tau = {"temperature": 0.5}
    wanted = {
        value(**tau): losses.decoupled_softmax(queries, labels, positives, every, **tau),
        value(positives="one", **tau): losses.decoupled_softmax(queries, labels, positives, one, **tau),
        value(loss="softmax", **tau): losses.softmax(queries, labels, positives, every, **tau),
        value(loss="softmax", positives="one", **tau): losses.softmax(queries, labels, positives, one, **tau),
        value(loss="bce", **tau): losses.binary_cross_entropy(queries, labels, positives, **tau),
        value(loss="soft-top-k", **tau): losses.soft_top_k(queries, labels, positives, every, k=5, alpha=2.0, **tau),
        value(loss="soft-top-k", k=3, **tau): losses.soft_top_k(queries, labels, positives, every, k=3, **tau),
        value(loss="soft-top-k", alpha=0.7, **tau): losses.soft_top_k(
            queries, labels, positives, every, k=5, alpha=0.7, **tau
        ),
        value(): losses.decoupled_softmax(queries, labels, positives, every, temperature=0.05),
    }
    assert len(wanted) == 9  # no two settings give one value
    for found, other in wanted.items():
        assert found == pytest.approx(other.item())


def vectors_of(batch: sampling.Batch) -> list[torch.Tensor]:
    """Leaves in float64 for the queries and the pool of a batch."""
    generator = torch.Generator().manual_seed(0)
    sizes = len(batch.query_ids), len(batch.label_ids)
    return [torch.randn(n, 8, generator=generator, dtype=torch.float64).requires_grad_() for n in sizes]


@pytest.mark.parametrize("positives", ["all", "one", "drawn"])
def test_queries_without_a_common_label_are_negatives_too(data: TrainingData, positives: str) -> None:
    """By plain autograd: -log(e^s_ij / (e^s_ij + sum over false labels e^s_in + sum over unrelated queries e^s_iq))."""
    method = dexml(negatives="in-batch", query_negatives=True, positives=positives, temperature=0.5)
    batch = method.sampler(data, 0).batch(0, 0)
    found_in, wanted_in = vectors_of(batch), vectors_of(batch)
    found = method.loss(*found_in, batch)
    queries_BD, labels_SD = wanted_in
    targets_BL = data.targets[batch.query_ids].toarray() > 0
    related_BB = torch.from_numpy((targets_BL[:, None] & targets_BL[None]).any(axis=2))
    assert 0 < int((~related_BB).sum()) < related_BB.numel() - len(related_BB)
    scores_BS, scores_BB = (queries_BD @ labels_SD.T / 0.5, queries_BD @ queries_BD.T / 0.5)
    true_BS = torch.from_numpy(targets_BL[:, batch.label_ids])
    false_B = torch.where(true_BS, 0.0, scores_BS.exp()).sum(1) + torch.where(related_BB, 0.0, scores_BB.exp()).sum(1)
    own = batch.positives
    weights_BS = torch.zeros_like(scores_BS).index_put((own.rows_P, own.columns_P), own.weights(positives).double())
    wanted = (weights_BS * -torch.log(scores_BS.exp() / (scores_BS.exp() + false_B[:, None]))).sum() / len(queries_BD)
    assert found.item() == pytest.approx(wanted.item())
    for own_grad, grad in zip(
        *(torch.autograd.grad(*pair) for pair in ((found, found_in), (wanted, wanted_in))), strict=True
    ):
        torch.testing.assert_close(own_grad, grad)


def query_negatives_on(workers: Workers) -> tuple[float, torch.Tensor]:
    """A worker's part of the loss, and of the gradient of the queries."""
    method = dexml(negatives="in-batch", query_negatives=True)
    whole = method.sampler(toy_data(), 0).batch(0, 0)
    queries_BD, labels_SD = vectors_of(whole)
    shard = Shard(LABELS, workers)
    own_SD = labels_SD[torch.from_numpy(shard.mine_L[whole.label_ids])]
    loss = method.loss(queries_BD, own_SD, shard.share(whole))
    return loss.item(), torch.autograd.grad(loss, queries_BD)[0]


def test_workers_share_the_queries_that_are_negatives() -> None:
    wanted, gradient_BD = query_negatives_on(ALONE)
    parts = on_workers(3, query_negatives_on)
    assert sum(loss for loss, _ in parts) == pytest.approx(wanted)
    torch.testing.assert_close(sum(gradient for _, gradient in parts), gradient_BD)


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"negatives": "hard"}, {"k", "alpha", "cached_negatives"}),
        ({"negatives": "hard", "loss": "soft-top-k"}, {"cached_negatives", "query_negatives"}),
        (
            {"negatives": "in-batch"},
            {"k", "alpha", "cached_negatives", "negatives_per_query", "shortlist", "refresh_start", "refresh_every"},
        ),
        (
            {"negatives": "embedding-cache"},
            {"k", "alpha", "negatives_per_query", "shortlist", "refresh_start", "refresh_every"},
        ),
        (
            {"negatives": "all", "loss": "bce"},
            {
                *("k", "alpha", "negatives_per_query", "shortlist", "refresh_start", "refresh_every"),
                *("positives_per_query", "positives", "cached_negatives", "query_negatives"),
            },
        ),
    ],
)
def test_unused_settings_are_told(settings: dict[str, Any], unused: set[str]) -> None:
    assert DEXML.Config(**settings).unused() == unused
    assert unused <= DEXML.Config.model_fields.keys()


def test_texts_longer_than_the_encoder_reads_are_refused(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    for setting in ("max_query_length", "max_label_length"):
        with pytest.raises(XMCBenchError, match="reads at most 32 tokens, found 64"):
            dexml(encoder=small_encoder, **{setting: 64}).fit(data, make_run(tmp_path, {"steps": 1}))


def test_labels_that_the_tokenizer_cannot_read_are_noted(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    unreadable = replace(data, label_texts=[chr(0x4E00 + label) for label in range(LABELS)])
    for train, share in ((data, 0.0), (unreadable, 1 - 1 / LABELS)):
        run = make_run(tmp_path / str(share), {"steps": 1})
        dexml(encoder={"name": small_encoder}, negatives="in-batch").fit(train, run)
        assert run.log.alike_texts == pytest.approx(share, abs=0.02)


def test_a_registered_sampler_takes_the_place_of_the_methods_own(data: TrainingData) -> None:
    """It is in the versions, and settings that name none are as before."""
    named = dexml(negatives="in-batch", batch_size=5, sampler="all")
    assert pool_size(named.training_sampler(data, 0)) == LABELS
    assert pool_size(named.sampler(data, 0)) < LABELS
    assert named.versions(named.config)["sampler all"] == 1
    plain = dexml(negatives="in-batch")
    assert "sampler" not in plain.config.model_dump(mode="json")
    assert not any(part.startswith("sampler") for part in plain.versions(plain.config))
    with pytest.raises(XMCBenchError, match="unknown sampler 'al' "):
        type(named).versions(dexml(sampler="al").config)


def test_a_setting_of_that_name_of_a_methods_own_means_what_the_method_says(data: TrainingData) -> None:
    kind = type(dexml())

    class Own(kind):  # type: ignore[misc, valid-type]
        class Config(kind.Config):  # type: ignore[name-defined, misc]
            sampler: str = "mine"

    method = Own(Own.Config(negatives="in-batch", batch_size=5))
    assert method.named_sampler(method.config) == ""
    assert pool_size(method.training_sampler(data, 0)) < LABELS
