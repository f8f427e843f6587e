"""PRIME's free vectors and centroids: how long they start, and what moves them. Its prototype network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from toy import LABELS, make_run, toy_data
from work_clock import working

from xmcbench import encoders
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import ALONE
from xmcbench.trial.budget import BUDGETED_STAGES, PassTooLargeError
from xmcbench.trial.meter import metering, uncharged_work
from xmcbench.trial.run import Ledger, TrainingLog
from xmcbench_plugins.prime import PRIME
from xmcbench_plugins.prime.prototypes import Prototypes

DATA = toy_data()
XAVIER = (2 * 64 / (LABELS + 64)) ** 0.5


def prime(encoder: str = "tiny", **settings: object) -> PRIME:
    config = {"encoder": {"name": encoder, "hidden_dropout": 0.0}, "batch_size": 20, "free_vectors": 8} | settings
    return PRIME(PRIME.Config.model_validate(config))


@pytest.mark.parametrize(
    ("settings", "length"),
    [({}, 0.152), ({"free_vector_length": 0.5}, 0.5), ({"free_vector_length": None}, XAVIER)],
)
def test_free_vectors_start_at_the_length_that_is_set(settings: dict[str, object], length: float) -> None:
    """Whatever the size of the bank, unless Xavier's length for that size is asked for."""
    method = prime(free_vectors=64, **settings)
    method.encoder = SimpleNamespace(dimension=64)  # type: ignore[assignment]
    method.shard = Shard(LABELS, ALONE, np.arange(LABELS))
    torch.manual_seed(0)
    bank = method.build_modules(DATA)["bank"].weight
    assert bank.norm(dim=1).square().mean().sqrt().item() == pytest.approx(length, rel=0.03)


def test_the_default_length_is_xaviers_at_the_papers_size() -> None:
    assert PRIME.Config().free_vector_length == pytest.approx((2 * 768 / (65_536 + 768)) ** 0.5, abs=5e-4)


def trained(small_encoder: str, root: Path, steps: int = 4, **settings: object) -> PRIME:
    method = prime(small_encoder, **settings)
    method.fit(DATA, make_run(root, {"steps": steps}))
    return method


def test_exact_centroids_are_means_of_the_trained_encoders_queries(small_encoder: str, tmp_path: Path) -> None:
    """They change what is predicted; the other weights are those of training with momentum centroids."""
    plain = trained(small_encoder, tmp_path / "plain")
    exact = trained(small_encoder, tmp_path / "exact", final_centroids="exact")
    for name, weight in plain.modules.state_dict().items():
        same = torch.equal(exact.modules.state_dict()[name], weight)
        assert same == (name != "centroids.weight"), name
    assert not torch.equal(plain.index_LD, exact.index_LD)
    queries_ND = normalize(plain.embed(plain.queries), dim=1)
    targets_LN = torch.from_numpy(DATA.targets.toarray()).T
    with torch.no_grad():
        plain.modules["centroids"].weight.copy_(normalize(targets_LN @ queries_ND, dim=1))
        plain.modules.eval()
        labels = plain.encoder.tokenizer.tokens(DATA.label_texts, DATA.card.max_label_length)
        plain.index(labels)
    torch.testing.assert_close(plain.index_LD, exact.index_LD)


@pytest.mark.parametrize("limit", ["encoder_tokens", "flops"])
def test_training_leaves_room_for_exact_centroids(limit: str, small_encoder: str, tmp_path: Path) -> None:
    """By the harness's own counts the trial is in order, and the last pass is in its budget but for a step."""
    as_many = trained(small_encoder, tmp_path / "plain", steps=8).run.ledger
    method, run = (
        prime(small_encoder, final_centroids="exact"),
        make_run(tmp_path / "exact", {limit: as_many.spent(limit)}),
    )
    with metering() as meter:
        method.fit(DATA, run)
    ledger = run.ledger
    assert uncharged_work(meter, ledger, run.budget, LABELS, points=0) == ""
    assert ledger.over(run.budget) == {}
    assert sum(meter.tokens[stage] for stage in BUDGETED_STAGES) == ledger.encoder_tokens
    assert meter.tokens["mine"] == method.queries.lengths.sum()
    assert 0 <= ledger.spent(limit) - run.budget.limits()[limit] < ledger.largest_step[limit]


def test_training_leaves_device_seconds_for_exact_centroids(small_encoder: str, tmp_path: Path) -> None:
    """Those of the last pass are predicted from texts that were read, and training ends that much earlier."""
    steps, seconds = [], 40.0
    for last in ("as trained", "exact"):
        with working() as clock:
            log = TrainingLog(Ledger(_cpu_clock=clock))
            run = make_run(tmp_path / last, {"device_seconds": seconds}, log=log)
            prime(small_encoder, final_centroids=last, micro_batch_tokens=40).fit(DATA, run)
        assert run.ledger.over(run.budget) == {}
        assert 0 <= run.ledger.device_seconds - seconds < run.ledger.largest_step["device_seconds"]
        steps.append(run.ledger.steps)
    assert steps[1] < steps[0]


def test_a_budget_without_room_for_exact_centroids_is_an_error_before_a_step(
    small_encoder: str, tmp_path: Path
) -> None:
    passes = trained(small_encoder, tmp_path / "plain", steps=1)
    queries, labels = (int(texts.lengths.sum()) for texts in (passes.queries, passes.labels))
    method = prime(small_encoder, final_centroids="exact")
    run = make_run(tmp_path / "exact", {"encoder_tokens": 2 * queries + labels - 1})
    wanted = f"a pass over 60 texts takes {queries:,} encoder tokens, {queries - 1:,} of .* are left"
    with pytest.raises(PassTooLargeError, match=wanted):
        method.fit(DATA, run)
    assert run.ledger.steps == 0


def test_further_queries_move_a_centroid_and_are_charged(small_encoder: str, tmp_path: Path) -> None:
    """With a batch of every query and momentum 0 a centroid is the label's query that was drawn last.

    In a step that query has the same relative place in every label's list.
    """
    settings = {"batch_size": 60, "momentum": 0.0, "batches": "shuffled", "learning_rate": 1e-12}
    settings |= {"positives_per_query": 4, "queries_per_centroid": 3}
    method = trained(small_encoder, tmp_path / "more", steps=1, **settings)
    plain = trained(small_encoder, tmp_path / "plain", steps=1, **(settings | {"queries_per_centroid": 1}))
    assert method.run.ledger.encoder_tokens > plain.run.ledger.encoder_tokens
    assert method.run.ledger.encoder_flops > plain.run.ledger.encoder_flops
    queries_ND = normalize(method.embed(method.queries), dim=1)
    places = []
    for label, centroid in enumerate(method.modules["centroids"].weight):
        queries = np.flatnonzero(DATA.targets[:, [label]].toarray())
        if len(queries):
            same = [bool(torch.allclose(centroid, queries_ND[query], atol=1e-4)) for query in queries]
            assert any(same), label
            places.append((same.index(True) / len(queries), (same.index(True) + 1) / len(queries)))
    assert max(low for low, _ in places) < min(high for _, high in places)


def test_the_network_is_a_transformer_layer() -> None:
    """Its forward pass is written out; without dropout it equals torch's, in training and with its gradients."""
    torch.manual_seed(0)
    network = Prototypes(8, 16, dropout=0.0)
    bag_STD = torch.randn(5, 3, 8, requires_grad=True)
    wanted_SD = normalize(network.layer(bag_STD).mean(1), dim=1)
    torch.testing.assert_close(network(bag_STD), wanted_SD)
    weights_SD = torch.randn_like(wanted_SD)
    (wanted,) = torch.autograd.grad((wanted_SD * weights_SD).sum(), bag_STD)
    (found,) = torch.autograd.grad((network(bag_STD) * weights_SD).sum(), bag_STD)
    torch.testing.assert_close(found, wanted)


def test_dropout_of_a_prototype_follows_its_label() -> None:
    """Neither the other labels of the call nor their order matter, and all four dropouts of the layer are reached."""
    torch.manual_seed(0)
    network, bag_STD, ids = Prototypes(8, 16, dropout=0.5), torch.randn(5, 3, 8), np.array([4, 8, 15, 16, 23])
    with encoders.row_dropout(7, "label", ids):
        whole_SD = network(bag_STD)
    with encoders.row_dropout(7, "label", ids[[3, 1]]):
        torch.testing.assert_close(network(bag_STD[[3, 1]]), whole_SD[[3, 1]])
    with encoders.row_dropout(7, "label", ids) as dropout:
        network(bag_STD)
    assert dropout.calls == 4
    with encoders.row_dropout(8, "label", ids):
        assert not torch.equal(network(bag_STD), whole_SD)
