"""The training loop keeps to its budget, charges what it should, and learns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import LABELS, QUERIES, UNLABELLED, make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.engine import vector_blocks
from xmcbench.engine.embedding_method import NonFiniteLossError
from xmcbench.trial.budget import Budget, Ledger, TooLargeError
from xmcbench.trial.facts import Ended
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import HeldOut, Progress, Run, TrainingLog

from .method import Toy, toy

LABELLED = QUERIES - len(UNLABELLED)


class Watched(Toy):
    """A `Toy` that notes the texts of every step, and what its encoder was told to embed beside."""

    batches: list[tuple[np.ndarray, np.ndarray]]
    mined = 0

    def loss(self, queries_BD: torch.Tensor, labels_SD: torch.Tensor, batch: Any) -> torch.Tensor:
        self.batches.append((batch.query_ids, batch.label_ids))
        return super().loss(queries_BD, labels_SD, batch)

    def mining_query_vectors(self, embeddings_ND: torch.Tensor) -> torch.Tensor:
        self.mined += len(embeddings_ND) > 1  # of one text their operations are counted
        return super().mining_query_vectors(embeddings_ND)


def watched(encoder: str, **settings: Any) -> Watched:
    method = Watched(toy(encoder, **settings).config)
    method.batches = []
    return method


def fit(method: Watched, data: TrainingData, root: Path, budget: dict[str, Any], **settings: Any) -> Run:
    run = make_run(root, budget, **settings)
    method.fit(data, run)
    return run


def step_tokens(method: Watched, data: TrainingData) -> list[int]:
    """Real tokens of every step, counted here: a text alone, special tokens included, cut at the card's length."""
    tokenizer = method.encoder.tokenizer.tokenizer

    def length(text: str, most: int) -> int:
        return min(most, len(tokenizer.tokenize(text)) + 2)

    return [
        sum(length(data.texts[q], data.card.max_length) for q in queries)
        + sum(length(data.label_texts[j], data.card.max_label_length) for j in labels)
        for queries, labels in method.batches
    ]


def test_steps(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    ledger = fit(method, data, tmp_path, {"steps": 5}).ledger
    assert ledger.steps == len(method.batches) == 5
    assert ledger.queries == sum(len(queries) for queries, _ in method.batches)
    assert ledger.epochs == pytest.approx(1 + 2 / 3)


def test_epochs(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    ledger = fit(method, data, tmp_path, {"epochs": 2}).ledger
    assert (ledger.epochs, ledger.steps, ledger.queries) == (2, 6, 2 * LABELLED)
    part = fit(watched(small_encoder), data, tmp_path / "part", {"epochs": 0.5}).ledger
    assert part.steps == 2  # the first boundary past a third and a half


@pytest.mark.parametrize("limit", [1, 700, 1500])
def test_tokens_are_the_real_ones(small_encoder: str, data: TrainingData, tmp_path: Path, limit: int) -> None:
    method = watched(small_encoder)
    ledger = fit(method, data, tmp_path, {"encoder_tokens": limit}).ledger
    assert ledger.largest_step == {"encoder_tokens": max(step_tokens(method, data))}
    counted = np.cumsum(step_tokens(method, data))
    assert ledger.encoder_tokens == counted[-1]
    assert counted[-1] >= limit
    assert len(counted) == 1 or counted[-2] < limit
    assert ledger.over(Budget(encoder_tokens=limit)) == {}


def test_vectors_are_computed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings_NH, ids_N = torch.randn(10, 3), np.arange(10)[::-1].copy()

    def vectors(rows_SH: torch.Tensor, ids_S: np.ndarray) -> torch.Tensor:
        sizes.append(len(rows_SH))
        return torch.cat((rows_SH * 2, torch.from_numpy(ids_S)[:, None]), dim=1)

    sizes: list[int] = []
    whole_ND = vector_blocks.vectors_in_blocks(embeddings_NH, ids_N, vectors)
    monkeypatch.setattr(vector_blocks, "BLOCK", 4)
    assert torch.equal(vector_blocks.vectors_in_blocks(embeddings_NH, ids_N, vectors), whole_ND)
    assert sizes == [10, 4, 4, 2]
    assert (
        vector_blocks.vectors_in_blocks(embeddings_NH, ids_N, lambda rows, _: rows) is embeddings_NH
    )  # without a copy


def test_mining_is_charged(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder, negatives="hard")
    run = fit(method, data, tmp_path, {"epochs": 3})
    everything = sum(int(tokens.lengths.sum()) for tokens in (
        method.encoder.tokenizer.tokens(data.texts, data.card.max_length),
        method.encoder.tokenizer.tokens(data.label_texts, data.card.max_label_length),
    ))  # fmt: skip
    assert method.mined == 2  # before epochs 1 and 2
    assert run.ledger.encoder_tokens == sum(step_tokens(method, data)) + 2 * everything
    assert run.ledger.stage_seconds["mine"] > 0
    size = method.encoder.dimension
    mined = 2 * 2 * QUERIES * LABELS * size
    assert run.ledger.scoring_flops == mined + sum(scoring_flops(*batch, size) for batch in method.batches)
    assert run.ledger.over(run.budget) == {}


def test_labels_that_a_step_adds_are_embedded_trained_on_and_charged(
    small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    method, plain = watched(small_encoder, negatives="cached"), watched(small_encoder)
    ledger, _ = (fit(each, data, tmp_path / each.config.negatives, {"steps": 4}).ledger for each in (method, plain))
    for (queries, labels), (same_queries, drawn) in zip(method.batches, plain.batches, strict=True):
        assert np.array_equal(queries, same_queries)
        assert len(np.setdiff1d(labels, drawn)) == len(labels) - len(drawn) == 5
    labels = method.encoder.tokenizer.tokens(data.label_texts, data.card.max_label_length)
    assert ledger.encoder_tokens == sum(step_tokens(method, data)) + int(labels.lengths.sum())
    assert ledger.stage_seconds["mine"] > 0


def test_clusters_of_a_bank_cost_no_tokens_and_fresh_ones_a_pass(
    small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    for negatives, passes in (("clustered", 0), ("fresh", 2)):
        method = watched(small_encoder, negatives=negatives)
        ledger = fit(method, data, tmp_path / negatives, {"epochs": 3}).ledger
        queries = method.encoder.tokenizer.tokens(data.texts, data.card.max_length)
        assert ledger.encoder_tokens == sum(step_tokens(method, data)) + passes * int(queries.lengths.sum())
        assert ledger.stage_seconds["cluster"] > 0


def scoring_flops(queries: np.ndarray, labels: np.ndarray, size: int) -> int:
    """A product forward and two of its gradient."""
    return 3 * 2 * len(queries) * len(labels) * size


def test_operations_are_counted(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    ledger = fit(method, data, tmp_path, {"steps": 4}).ledger
    tokens = [method.encoder.tokenizer.tokens(texts, length) for texts, length in (
        (data.texts, data.card.max_length), (data.label_texts, data.card.max_label_length)
    )]  # fmt: skip
    forward = sum(
        method.encoder.flops(tokens[0].lengths[queries]) + method.encoder.flops(tokens[1].lengths[labels])
        for queries, labels in method.batches
    )
    assert ledger.encoder_flops == 3 * forward
    assert ledger.scoring_flops == sum(scoring_flops(*batch, method.encoder.dimension) for batch in method.batches)
    size = method.encoder.dimension
    assert ledger.module_flops == sum(scoring_flops(queries, np.arange(size), size) for queries, _ in method.batches)
    enough = fit(watched(small_encoder), data, tmp_path / "b", {"flops": ledger.flops * 0.7}).ledger
    assert enough.steps == 3
    assert [len(told) for told in (ledger.worker_bytes, enough.worker_bytes)] == [1, 1]
    assert ledger.worker_bytes[0] > 1e6


def test_seconds(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    ticks = itertools.count(0.0, 0.1)  # each look at the clock takes a tenth of a second
    log = TrainingLog(Ledger(clock="wall", _clock=lambda: next(ticks)))
    run = fit(watched(small_encoder), data, tmp_path, {"device_seconds": 3}, log=log)
    ledger = run.ledger
    assert ledger.steps > 1
    assert 3 <= ledger.device_seconds < next(ticks)
    assert ledger.device_seconds == pytest.approx(3, abs=ledger.largest_step["device_seconds"] + 1e-9)
    assert ledger.largest_step["device_seconds"] > 0
    assert ledger.over(run.budget) == {}


def test_the_first_limit_ends_it(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    ledger = fit(watched(small_encoder), data, tmp_path, {"steps": 2, "epochs": 50, "encoder_tokens": 10**9}).ledger
    assert ledger.steps == 2


def test_selection_is_not_charged_and_its_best_weights_stay(
    small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    seen: list[Predictions] = []
    clock = 0.0

    def select(predictions: Predictions) -> dict[str, float]:
        nonlocal clock
        clock += 1000.0
        seen.append(predictions)
        return {"nDCG@5": [0.1, 0.9, 0.5][len(seen) - 1]}

    held_out = HeldOut(data.texts[:8], select, evaluations=3)
    method, plain = watched(small_encoder), watched(small_encoder)
    log = TrainingLog(Ledger(clock="wall", _clock=lambda: clock))
    run = fit(method, data, tmp_path / "a", {"steps": 6}, held_out=held_out, log=log)
    without = fit(plain, data, tmp_path / "b", {"steps": 6})
    assert run.ledger.encoder_tokens == without.ledger.encoder_tokens
    assert run.ledger.device_seconds == 0
    assert [(point["steps"], point["nDCG@5"]) for point in run.log.curve] == [(2, 0.1), (4, 0.9), (6, 0.5)]
    final = method.predict(data.texts[:8], seen[1].k)
    assert np.array_equal(final.scores, seen[1].scores)  # the second look's weights, not the last ones
    assert not np.array_equal(final.scores, seen[2].scores)


@pytest.mark.parametrize(
    ("metrics", "patience", "steps"),
    [
        ([0.1, 0.2, 0.2, 0.1, 0.9, 0.9], 2, 4),
        ([0.1, 0.2, 0.2, 0.3, 0.3, 0.3], 2, 6),  # flat with the last step: the budget ended it
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1, 6),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1], None, 6),
    ],
)
def test_patience_ends_a_training_whose_metric_no_longer_rises(
    small_encoder: str,
    data: TrainingData,
    tmp_path: Path,
    metrics: list[float],
    patience: int | None,
    steps: int,
) -> None:
    values = iter(metrics)
    held_out = HeldOut(data.texts[:8], lambda _: {"nDCG@5": next(values)}, evaluations=6, patience=patience)
    run = fit(watched(small_encoder), data, tmp_path, {"steps": 6}, held_out=held_out)
    assert [point["nDCG@5"] for point in run.log.curve] == metrics[:steps]
    assert run.ledger.steps == steps
    assert run.log.ended is (None if steps == 6 else Ended.FLAT)


def test_a_loss_that_is_no_number_names_its_step(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match="the loss is nan at step 4, epoch 1, batch 1") as caught:
        fit(watched(small_encoder, blow_up_at=4), data, tmp_path, {"steps": 9})
    assert "\n" not in str(caught.value)


def test_progress_is_told(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    told: list[Progress] = []
    fit(watched(small_encoder), data, tmp_path, {"steps": 4}, report=told.append)
    assert list(dict.fromkeys(p.stage for p in told)) == ["tokenise queries", "tokenise labels", "train", "index"]
    assert [(p.fraction, p.metrics["step"]) for p in told if p.stage == "train"] == [(n / 4, n) for n in (1, 2, 3, 4)]


def test_long_passes_over_the_texts_report_their_progress(
    small_encoder: str, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmcbench.engine.vector_method.QUIET_SECONDS", -1.0)
    reports: list[Progress] = []
    method = watched(small_encoder, negatives="hard", micro_batch_tokens=64)
    fit(method, data, tmp_path, {"epochs": 1.01}, report=reports.append)
    for stage in ("embed queries", "embed labels"):
        shares = [report.fraction for report in reports if report.stage == stage]
        assert len(shares) > 2
        assert 0 < shares[0] < 0.5
        assert shares[-1] == 1


def test_decay_spares_biases_and_norms(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    method.prepare(data, make_run(tmp_path, {"steps": 1}))
    decayed, spared = method.parameter_groups()
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    names = {id(p): name for m in (method.encoder, method.modules) for name, p in m.named_parameters()}
    assert all("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in spared["params"])
    assert not any("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_a_worker_that_takes_too_much_memory_ends_it(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    with pytest.raises(TooLargeError, match=r"memory by step 1, the budget allows 0\.00 GB"):
        fit(method, data, tmp_path, {"steps": 5, "peak_bytes": 1e6})
    assert len(method.batches) == 1
    assert fit(watched(small_encoder), data, tmp_path / "more", {"steps": 2, "peak_bytes": 1e12}).ledger.steps == 2


def test_pools_are_counted(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = watched(small_encoder)
    ledger = fit(method, data, tmp_path, {"steps": 5}).ledger
    assert ledger.pool_labels == sum(len(labels) for _, labels in method.batches)
