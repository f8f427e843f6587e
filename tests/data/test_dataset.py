"""Training data: rows of it, and what a method of the zero-shot track sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import LABELS, QUERIES, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError

ASKED = "method 'curious' asks for training annotations, which the zero-shot track does not have"


@pytest.fixture
def hidden() -> TrainingData:
    return toy_data(ignored=1).unannotated("curious")


def test_targets_of_the_zero_shot_track_are_an_error(hidden: TrainingData) -> None:
    with pytest.raises(XMCBenchError, match=ASKED):
        hidden.targets  # noqa: B018
    with pytest.raises(XMCBenchError, match=ASKED):
        replace(hidden, texts=[])


def test_they_are_not_there_at_all(hidden: TrainingData) -> None:
    """Not even for who goes round the front door."""
    assert object.__getattribute__(hidden, "targets").nnz == 0


def test_rows_of_hidden_targets_are_hidden(hidden: TrainingData) -> None:
    rows = np.array([5, 2, 9])
    some, shown = hidden.rows(rows), toy_data(ignored=1).rows(rows)
    assert list(some.texts) == list(shown.texts)
    assert (some.ignore != shown.ignore).nnz == 0
    with pytest.raises(XMCBenchError, match=ASKED):
        some.targets  # noqa: B018


def test_everything_else_is_as_it_was(hidden: TrainingData) -> None:
    shown = toy_data(ignored=1)
    assert (hidden.card, list(hidden.texts), list(hidden.label_texts)) == (shown.card, shown.texts, shown.label_texts)
    assert (hidden.num_labels, hidden.ignore.shape) == (LABELS, (QUERIES, LABELS))
    assert (hidden.ignore != shown.ignore).nnz == 0


def test_targets_of_ones_own_can_be_read(hidden: TrainingData) -> None:
    found = toy_data(seed=3).targets
    own = hidden.with_targets(found)
    assert own.targets is found
    assert own.rows(np.array([4])).targets.nnz == found[[4]].nnz
    assert own.texts is hidden.texts
