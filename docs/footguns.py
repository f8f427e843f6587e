"""Computes the figures of docs/footguns.md: `python docs/footguns.py`. Trains nothing but word counts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import scipy.sparse as sp

from xmcbench import Budget, Predictions, Run, data, evaluation, registry

NAMES = ("P@1", "P@5", "nDCG@5", "PSP@5")


def predict(train: data.TrainingData, texts: data.Texts, method: str = "tfidf-nn", k: int = 100) -> Predictions:
    """The predictions of a built-in method that needs no encoder."""
    kind = registry().method(method).thing
    fitted = kind(kind.Config())
    fitted.fit(train, Run(seed=0, budget=Budget(device_seconds=600), checkpoint=Path(mkdtemp()), cache=Path(mkdtemp())))
    return fitted.predict(texts, k)


def show(title: str, hits: evaluation.Hits, names: tuple[str, ...] = NAMES) -> None:
    """Print metrics in per cent."""
    values = evaluation.score(hits, names, evaluation.find_evaluators(names))
    print(f"{title:<42}" + "  ".join(f"{name} {100 * value:.2f}" for name, value in values.items()))


def splits() -> None:
    """Repeated texts: the same rows split at random, and split by a hash of the text."""
    source = data.load("catalog-1k")
    rng = random.Random(0)
    rows = [row for row in range(source.card.num_train) for _ in range(1 + (rng.random() < 0.3))]  # 30 % occur twice
    rng.shuffle(rows)
    texts, ids = [source.train.texts[row] for row in rows], np.array(rows)
    by_row = np.arange(len(rows)) % 5 == 0
    by_text = ids % 5 == 0
    for title, test in (("split by row", by_row), ("split by text", by_text)):
        shape = (int((~test).sum()), source.card.num_labels)
        chosen = [text for text, out in zip(texts, test, strict=True) if not out]
        none = sp.csr_array(shape)
        train = data.TrainingData(source.card, chosen, source.train.targets[ids[~test]], source.label_texts, none)
        queries = [text for text, out in zip(texts, test, strict=True) if out]
        predicted, truth = predict(train, queries), source.train.targets[ids[test]]
        weights = evaluation.inverse_propensity(train.targets, 0.55, 1.5)
        show(title, evaluation.find_hits(predicted, truth, weights))


def filters() -> None:
    """Queries that are themselves labels: the trivial pair, kept and filtered."""
    source = data.load("catalog-1k")
    names = source.label_texts
    groups = np.arange(len(names)) // 10  # ten products form a line; the others of the line are true
    same = sp.csr_array(groups[:, None] == groups[None, :]) * 1.0
    itself = sp.csr_array(sp.eye_array(len(names)))
    truth = sp.csr_array((same - itself) > 0).astype(np.float32)
    predicted = predict(source.training_data(), names, "tfidf-label")
    weights = np.ones(len(names))
    show("trivial pairs kept", evaluation.find_hits(predicted, truth, weights))
    show(
        "trivial pairs filtered", evaluation.find_hits(evaluation.drop_ignored(predicted, itself, 100), truth, weights)
    )


def propensities(dataset: data.Dataset, predicted: Predictions) -> None:
    """One set of predictions, and weights of different A and B, and of an augmented matrix."""
    targets = dataset.train.targets
    augmented = sp.csr_array(sp.vstack([targets, sp.eye_array(targets.shape[1])]))  # label texts as training points
    for title, matrix, a, b in (
        ("A 0.55, B 1.5 (the card)", targets, 0.55, 1.5),
        ("A 0.5, B 0.4 (Wikipedia)", targets, 0.5, 0.4),
        ("A 0.6, B 2.6 (Amazon)", targets, 0.6, 2.6),
        ("label texts counted as training points", augmented, 0.55, 1.5),
    ):
        weights = evaluation.inverse_propensity(matrix, a, b)
        show(title, evaluation.find_hits(predicted, dataset.test.targets, weights), ("PSP@1", "PSP@5", "PSnDCG@5"))


def ties(dataset: data.Dataset, predicted: Predictions) -> None:
    """Scores rounded to one decimal: the order of equal scores decides."""
    coarse = np.where(predicted.indices < 0, -np.inf, np.round(predicted.scores, 1)).astype(np.float32)
    last = dataset.card.num_labels - 1
    lowest = evaluation.rank(predicted.indices, coarse, 100)
    turned = evaluation.rank(np.where(predicted.indices < 0, -1, last - predicted.indices), coarse, 100)
    highest = Predictions(np.where(turned.indices < 0, -1, last - turned.indices).astype(np.int32), turned.scores)
    for title, ranked in (
        ("full precision", predicted),
        ("lowest label first", lowest),
        ("highest label first", highest),
    ):
        show(title, evaluation.dataset_hits(ranked, dataset))


def empty_rows(dataset: data.Dataset, predicted: Predictions) -> None:
    """A tenth of the queries loses its labels: counted as 0, and left out."""
    keep = np.arange(dataset.card.num_test) % 10 != 0
    emptied = sp.csr_array(sp.diags_array(keep.astype(np.float32)) @ dataset.test.targets)
    emptied.eliminate_zeros()
    test = data.Split(dataset.test.texts, emptied)
    show("counted (as here)", evaluation.dataset_hits(predicted, replace(dataset, test=test)))
    kept = Predictions(predicted.indices[keep], predicted.scores[keep])
    weights = evaluation.inverse_propensity(dataset.train.targets, 0.55, 1.5)
    show("left out (some tools)", evaluation.find_hits(kept, emptied[keep], weights))


if __name__ == "__main__":
    catalog = data.load("catalog-1k")
    neighbours = predict(catalog.training_data(), catalog.test.texts)
    for demonstration in (splits, filters):
        print(f"\n{demonstration.__doc__}")
        demonstration()
    for on_catalog in (propensities, ties, empty_rows):
        print(f"\n{on_catalog.__doc__}")
        on_catalog(catalog, neighbours)
