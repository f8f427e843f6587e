"""The simulated teacher: its rates are those asked for, its answers hang on the texts alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from xmcbench.data import DatasetCard, TrainingData
from xmcbench.teachers import Pairs
from xmcbench_plugins.teachers.annotated import Annotated

NUM_DOCUMENTS, NUM_LABELS = 300, 100


def training_data(order: np.ndarray | None = None) -> TrainingData:
    rng = np.random.default_rng(0)
    targets = sp.csr_array((rng.random((NUM_DOCUMENTS, NUM_LABELS)) < 0.3).astype(np.float32))
    documents = [f"document {i}" for i in range(NUM_DOCUMENTS)]
    documents[7] = documents[3]  # the same text twice
    card = DatasetCard(name="made", num_train=NUM_DOCUMENTS, num_test=1, num_labels=NUM_LABELS)
    labels = [f"label {i}" for i in range(NUM_LABELS)]
    train = TrainingData(card, documents, targets, labels, sp.csr_array(targets.shape))
    return train if order is None else train.rows(order)


def answers(train: TrainingData, **settings: Any) -> np.ndarray:
    """[documents, labels]"""
    teacher = Annotated(Annotated.Config.model_validate({"name": "annotated"} | settings))
    teacher.read_annotations(train)
    documents, labels = np.divmod(np.arange(len(train.texts) * NUM_LABELS), NUM_LABELS)
    texts = [train.texts[i] for i in documents], [train.label_texts[i] for i in labels]
    (told,) = teacher.ask(Pairs(*texts, documents, labels))
    return told.answers.reshape(len(train.texts), NUM_LABELS)


def truth(train: TrainingData) -> np.ndarray:
    true = train.targets.toarray() > 0
    both = true[3] | true[7]
    true[3] = true[7] = both
    return np.asarray(true)


def test_by_default_it_is_right() -> None:
    assert np.array_equal(answers(training_data()), truth(training_data()))


def test_its_rates_are_those_asked_for() -> None:
    train = training_data()
    told, true = answers(train, recall=0.8, false_accepts=0.1), truth(train)
    for rate, given in ((0.8, told[true]), (0.1, told[~true])):
        assert abs(given.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / len(given))


def test_a_better_teacher_errs_on_a_subset() -> None:
    train = training_data()
    true = truth(train)
    worse, better = (answers(train, recall=r, false_accepts=f) != true for r, f in ((0.6, 0.3), (0.9, 0.1)))
    assert np.all(worse[better])
    assert better.sum() < worse.sum()


def test_its_answers_hang_on_the_texts_and_the_seed() -> None:
    order = np.random.default_rng(1).permutation(NUM_DOCUMENTS)
    settings = {"recall": 0.5, "false_accepts": 0.5}
    told = answers(training_data(), **settings)
    assert np.array_equal(answers(training_data(order), **settings), told[order])
    assert np.array_equal(told[3], told[7])
    assert not np.array_equal(answers(training_data(), **settings, seed=1), told)
    rows = np.corrcoef(told[0], told[1])[0, 1]
    assert abs(rows) < 0.5  # documents err apart
