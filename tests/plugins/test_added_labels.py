"""Labels that are added after training are ranked as if they had been there, or the method says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import LABELS, make_run

from xmcbench import Method, XMCBenchError, registry
from xmcbench.data.dataset import TrainingData

DUAL: dict[str, Any] = {"negatives": "in-batch", "batch_size": 20}


def fitted(name: str, encoder: str, data: TrainingData, root: Path, **settings: Any) -> Any:
    kind = registry().method(name).thing
    own = {"encoder": {"name": encoder}} if "encoder" in kind.Config.model_fields else {}
    method = kind(kind.Config.model_validate({**own, **settings}))
    method.fit(data, make_run(root, {"steps": 4}))
    return method


def reloaded(method: Method, root: Path) -> Any:
    """The method as another process loads it."""
    (root / "model").mkdir()
    method.save(root / "model")
    again = type(method)(method.config)
    again.load(root / "model")
    return again


@pytest.mark.parametrize(("name", "settings"), [("untrained", {}), ("dexml", DUAL)])
def test_a_label_that_is_added_again_has_the_vector_that_it_has(
    name: str, settings: dict[str, Any], data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = reloaded(fitted(name, small_encoder, data, tmp_path, **settings), tmp_path)
    before = method.predict(data.texts, LABELS)
    method.add_labels(data.label_texts[:7])
    torch.testing.assert_close(method.index_LD[LABELS:], method.index_LD[:7], rtol=1e-4, atol=1e-5)
    after = method.predict(data.texts, LABELS + 7)
    known = [[label for label in row if label < LABELS] for row in after.indices.tolist()]
    assert known == before.indices.tolist()


def test_a_label_in_the_memory_has_its_own_key_and_no_query(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    first = {"method": "untrained", "encoder": {"name": small_encoder}}
    method = reloaded(fitted("memory", small_encoder, data, tmp_path, first=first, keys=10_000), tmp_path)
    method.add_labels(data.label_texts[:7])
    values = method._values().toarray()
    assert values.shape == (LABELS + 7 + len(data.texts), LABELS + 7)
    assert np.array_equal(values[: LABELS + 7], 0.5 * np.eye(LABELS + 7))
    assert not values[LABELS + 7 :, LABELS:].any()
    assert (method.predict(data.texts, LABELS + 7).indices >= LABELS).sum() == 7 * len(data.texts)


def test_added_texts_are_matched_as_the_others(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = reloaded(fitted("tfidf-label", small_encoder, data, tmp_path), tmp_path)
    method.add_labels(data.label_texts[:7])
    labels = method.matrices["labels"].toarray()
    assert np.array_equal(labels[:, LABELS:], labels[:, :7])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("prime", "learns a vector of each label"),
        ("unidec", "learns a vector of each label"),
        ("ova", "learns a vector of each label"),
        ("classifier", "ranks only the labels that it was fitted with"),
        ("popular", "ranks only the labels that it was fitted with"),
    ],
)
def test_methods_with_rows_of_labels_say_why_not(
    name: str, complaint: str, data: TrainingData, small_encoder: str
) -> None:
    kind = registry().method(name).thing
    first = {"first": {"method": "untrained", "encoder": small_encoder}} if name == "classifier" else {}
    with pytest.raises(XMCBenchError, match=complaint):
        kind(kind.Config.model_validate(first)).add_labels(data.label_texts)
