"""A plugin of methods with the mistakes of beginners, one each; `LINES` marks the line that a check should name."""

# ruff: noqa: ARG002, RUF012  (mistakes, on purpose)
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench import Method, MethodInfo, Predictions, Run, data, hookimpl
from xmcbench.evaluation import rank

SEEN: dict[str, np.ndarray] = {}


class Words(Method):
    """Ranks labels by the words that they share with a query; without a mistake."""

    name = "no-mistake"
    info = MethodInfo(summary="shared words")

    class Config(Method.Config):
        least: int = 1

    config: Config

    def fit(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            self.labels = list(train.label_texts)

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return rank(*self.scored(texts), k)

    def scored(self, texts: data.Texts) -> tuple[np.ndarray, np.ndarray]:
        """Ids and scores of all labels [N, L]."""
        words = [set(label.split()) for label in self.labels]
        scores = np.array([[float(len(own & set(text.split()))) for own in words] for text in texts])
        return np.broadcast_to(np.arange(len(words)), scores.shape), scores.reshape(-1, len(words))

    def save(self, directory: Path) -> None:
        (directory / "labels.json").write_text(json.dumps(self.labels))

    def load(self, directory: Path) -> None:
        self.labels = json.loads((directory / "labels.json").read_text())


class FitRaises(Words):
    name = "fit-raises"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        np.ones((3, 4)) @ np.ones((3, 4))  # HERE fit-raises


class PredictRaises(Words):
    name = "predict-raises"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        return self.predictions[texts[0]]  # type: ignore[attr-defined,no-any-return]  # HERE predict-raises


class ForgottenCharge(Words):
    name = "forgotten-charge"

    def fit(self, train: data.TrainingData, run: Run) -> None:  # HERE forgotten-charge
        super().fit(train, run)
        ended = time.process_time() + 1.3
        while time.process_time() < ended:
            np.ones((60, 60)) @ np.ones((60, 60))


class UncountedProducts(Words):
    name = "uncounted-products"

    def fit(self, train: data.TrainingData, run: Run) -> None:  # HERE uncounted-products
        super().fit(train, run)
        with run.ledger.stage("train"):
            ended = time.process_time() + 1.3
            while time.process_time() < ended:
                np.ones((60, 60)) @ np.ones((60, 60))


class WrongType(Words):
    name = "wrong-dtype"

    def predict(self, texts: data.Texts, k: int) -> Predictions:  # HERE wrong-dtype
        found = super().predict(texts, k)
        return Predictions(found.indices.astype(np.int64), found.scores.astype(np.float64))


class Lists(Words):
    name = "lists-in-predictions"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        found = super().predict(texts, k)
        return Predictions(found.indices.tolist(), found.scores.tolist())  # HERE lists-in-predictions


class WithoutK(Words):
    name = "predict-without-k"

    def predict(self, texts: data.Texts) -> Predictions:  # type: ignore[override]  # HERE predict-without-k
        return super().predict(texts, 5)


class DividesByZero(Words):
    name = "divides-by-zero"

    def predict(self, texts: data.Texts, k: int) -> Predictions:  # HERE divides-by-zero
        ids, scores = self.scored(texts)
        with np.errstate(invalid="ignore"):
            shares = scores / scores.sum(axis=1, keepdims=True)  # no label shares a word with an empty text
        order = np.argsort(-shares, axis=1, kind="stable")[:, :k]
        found = (np.take_along_axis(own, order, axis=1) for own in (ids, shares))
        return Predictions(next(found).astype(np.int32), next(found).astype(np.float32))


class GlobalLeak(Words):
    name = "global-leak"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        noise = SEEN.setdefault("noise", run.rng("noise").random(train.num_labels))
        self.labels = [self.labels[place] for place in np.argsort(noise)]


class MutableDefault(Words):
    name = "mutable-default"

    class Config(Words.Config):
        depths: list[int] = [1, 2]  # HERE mutable-default


class MutableArgument(Words):
    name = "mutable-argument"
    rows: list[int] = []  # HERE mutable-argument

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.rows.append(len(train.texts))


class CannotSave(Words):
    name = "cannot-save"

    def save(self, directory: Path) -> None:
        (directory / "labels.json").write_text(json.dumps({"rank": lambda: 1}))  # HERE cannot-save


class Endless(Words):
    name = "endless-fit"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        while True:
            time.sleep(0.01)  # HERE endless-fit


class Spam(Words):
    name = "print-spam"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        for step in range(300):
            print("step", step)  # HERE print-spam


class Huge(Words):
    name = "five-gigabytes"

    def save(self, directory: Path) -> None:  # HERE five-gigabytes
        super().save(directory)
        with (directory / "texts.npy").open("wb") as file:
            file.truncate(5 * 10**9)


class NeedsTraining(Words):
    name = "needs-training"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.train = train

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        self.labels = list(self.train.label_texts)  # HERE needs-training
        return super().predict(texts, k)


class Clash(Words):  # HERE no-mistake
    name = "no-mistake"


class Unseeded(Words):
    name = "unseeded"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        rng = np.random.default_rng()  # HERE unseeded
        self.labels = [self.labels[place] for place in rng.permutation(train.num_labels)]


class TooMany(Words):
    name = "k-above-labels"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        ids, scores = self.scored(texts)
        best = np.argpartition(-scores, k, axis=1)[:, :k]  # HERE k-above-labels
        return rank(np.take_along_axis(ids, best, 1), np.take_along_axis(scores, best, 1), k)


class LearnsNothing(Words):
    name = "learns-nothing"

    def fit(self, train: data.TrainingData, run: Run) -> None:  # HERE learns-nothing
        super().fit(train, run)
        self.labels = self.labels[1:] + self.labels[:1]


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    for method in (Words, *[own for own in Words.__subclasses__() if own is not Clash], Clash):
        register(method)
