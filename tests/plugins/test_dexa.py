"""DEXA: sums of text embeddings and shared vectors, in NGAME's loss; trained, killed, resumed and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import assert_saved_predicts_the_same, unbroken_and_resumed
from pydantic import ValidationError
from toy import LABELS, make_run

from xmcbench.data.dataset import TrainingData
from xmcbench_plugins.dexa import DEXA


def dexa(encoder: str, **settings: Any) -> DEXA:
    encoders = {"name": encoder, "hidden_dropout": 0.0}
    given = {"encoder": encoders, "batch_size": 20, "auxiliary_vectors": 8, "learning_rate": 1e-2} | settings
    return DEXA(DEXA.Config.model_validate(given))


def fitted(encoder: str, data: TrainingData, root: Path, steps: int = 4, **settings: Any) -> DEXA:
    method = dexa(encoder, **settings)
    method.fit(data, make_run(root, {"steps": steps}))
    return method


def prepared(encoder: str, data: TrainingData, root: Path, **settings: Any) -> DEXA:
    method = dexa(encoder, **settings)
    method.prepare(data, make_run(root, {"steps": 1}))
    return method


def test_a_labels_vector_is_its_texts_plus_that_of_its_cluster(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = prepared(small_encoder, data, tmp_path)
    groups = method.shard.groups_L
    assert np.bincount(groups).tolist() == [LABELS // 8] * 8
    texts = torch.randn(5, 32)
    ids = np.array([3, 9, 10, 20, 39])
    sums = texts.double() + method.tables()["auxiliary"].weight[groups[ids]].double()
    found = method.label_vectors(texts, ids)
    torch.testing.assert_close(found, (sums / sums.norm(dim=1, keepdim=True)).float())


def test_head_labels_have_their_own(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    groups = prepared(small_encoder, data, tmp_path, head_labels=6).shard.groups_L
    counts = np.bincount(data.targets.indices, minlength=LABELS)
    head = np.argsort(-counts, kind="stable")[:6]
    sizes = np.bincount(groups)
    assert (sizes[groups[head]] == 1).all()
    assert sorted(groups[head].tolist()) == list(range(8, 14))
    assert sizes[:8].sum() == LABELS - 6
    assert sizes[:8].max() - sizes[:8].min() <= 1


def test_the_loss_is_ngames_between_queries_and_sums(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    """A loop over queries, their drawn label and their hardest negatives, in float64."""
    method = prepared(small_encoder, data, tmp_path, hardest=3, margin=0.3, weight_temperature=None)
    batch = method.sampler(data, 0).batch(0, 0)
    queries = torch.nn.functional.normalize(torch.randn(len(batch.query_ids), 32), dim=1)
    texts = torch.randn(len(batch.label_ids), 32).requires_grad_()
    loss = method.loss(queries, texts, batch)
    with torch.no_grad():
        scores = (queries @ method.label_vectors(texts, batch.label_ids).T).double().numpy()
    true = data.targets.toarray()[np.ix_(batch.query_ids, batch.label_ids)] > 0
    drawn = batch.positives.weights("drawn").numpy() > 0
    total = 0.0
    for row, column in zip(
        batch.positives.rows_P[drawn].tolist(), batch.positives.columns_P[drawn].tolist(), strict=True
    ):
        hardest = np.sort(scores[row][~true[row]])[::-1][:3]
        total += np.maximum(0, hardest - scores[row, column] + 0.3).mean()
    assert float(loss.detach()) == pytest.approx(total / len(batch.query_ids), rel=1e-4)
    loss.backward()
    (leaf,) = (leaf for _, leaf in method.tables()["auxiliary"]._leaves if leaf.grad is not None and leaf.grad.any())
    assert leaf.shape == (len(batch.label_ids), 32)


def test_a_killed_run_ends_as_one_that_was_not_and_is_saved(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    wanted, resumed = unbroken_and_resumed(lambda: dexa(small_encoder), data, tmp_path, 6, 4)
    assert torch.equal(resumed.index_LD, wanted.index_LD)
    assert_saved_predicts_the_same(resumed, dexa(small_encoder), data.texts, tmp_path)


def test_a_number_of_vectors_that_halves_to_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="auxiliary_vectors must be a power of two, found 12"):
        DEXA.Config.model_validate({"auxiliary_vectors": 12})
