"""What a method is shown before the first step and after each, and what that costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from fitting import fit_and_kill
from torch import Tensor
from toy import LABELS, QUERIES, make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.sampling.batch import Batch
from xmcbench.engine.sampling.embeddings import Embeddings

from .method import Toy, toy


class Shown(Toy):
    """A `Toy` that notes what it is shown."""

    begun: list[tuple[Tensor, Tensor]]
    grouped: int
    trained: list[tuple[Tensor, Tensor]]
    seen: list[tuple[Batch, Tensor, Tensor]]

    def label_groups(self, train: TrainingData, embeddings: Embeddings) -> np.ndarray:
        self.grouped += 1
        return np.arange(train.num_labels) % 7 + int(embeddings.labels().shape[0] == 0)

    def begin(self, embeddings: Embeddings) -> None:
        self.begun.append((embeddings.queries(), embeddings.labels()))

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: Batch) -> Tensor:
        self.trained.append((queries_BD, labels_SD))
        return super().loss(queries_BD, labels_SD, batch)

    def after_step(self, batch: Batch, queries_BD: Tensor, labels_SD: Tensor) -> None:
        self.seen.append((batch, queries_BD, labels_SD))


def shown(encoder: str) -> Shown:
    method = Shown(toy(encoder).config)
    method.begun, method.trained, method.seen, method.grouped = [], [], [], 0
    return method


def test_it_begins_with_the_encoders_own_embeddings_and_pays_for_them(
    small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    plain, method = toy(small_encoder), shown(small_encoder)
    ledgers = []
    for each, place in ((plain, "plain"), (method, "shown")):
        run = make_run(tmp_path / place, {"steps": 2})
        each.fit(data, run)
        ledgers.append(run.ledger)
    ((queries_ND, labels_LD),) = method.begun
    fresh = toy(small_encoder)
    fresh.prepare(data, make_run(tmp_path / "fresh", {"steps": 1}))
    queries, labels = fresh.queries, fresh.labels
    torch.testing.assert_close(queries_ND, fresh.embed(queries))  # no head, and before the first step
    torch.testing.assert_close(labels_LD, fresh.embed(labels))
    assert (len(queries_ND), len(labels_LD)) == (QUERIES, LABELS)
    extra = int(queries.lengths.sum()) + 2 * int(labels.lengths.sum())  # labels for their groups too
    assert ledgers[1].encoder_tokens - ledgers[0].encoder_tokens == extra
    assert ledgers[1].encoder_flops > ledgers[0].encoder_flops
    assert ledgers[0].stage_seconds.keys() == ledgers[1].stage_seconds.keys()


def test_after_a_step_it_sees_what_was_trained_on(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = shown(small_encoder)
    method.fit(data, make_run(tmp_path, {"steps": 3}))
    assert len(method.seen) == 3
    for (batch, *seen), trained in zip(method.seen, method.trained, strict=True):
        assert [len(rows) for rows in seen] == [len(batch.query_ids), len(batch.label_ids)]
        for ours, theirs in zip(seen, trained, strict=True):
            assert torch.equal(ours, theirs)
            assert not ours.requires_grad


def test_a_resumed_run_does_not_begin_again(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    first, second = shown(small_encoder), shown(small_encoder)
    fit_and_kill(2, first, data, make_run(tmp_path, {"steps": 3}))
    resumed = make_run(tmp_path, {"steps": 3})
    second.fit(data, resumed)
    assert [(len(each.begun), each.grouped) for each in (first, second)] == [(1, 1), (0, 0)]
    assert np.array_equal(first.shard.groups_L, second.shard.groups_L)
    unbroken = make_run(tmp_path / "unbroken", {"steps": 3})
    shown(small_encoder).fit(data, unbroken)
    assert resumed.ledger.encoder_tokens == unbroken.ledger.encoder_tokens
