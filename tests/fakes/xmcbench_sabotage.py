"""Plugins that break their contracts, most of them without failing. Needs no torch."""

# ruff: noqa: ARG002  (methods that ignore what they are given)
from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from xmcbench_fakes import Ok

from xmcbench import Method, Predictions, Progress, Run, data, evaluation, hookimpl, teachers, tracking

print("hello from the plugin")


def put(array: np.ndarray, place: Any, value: float) -> np.ndarray:
    """A copy of the array with another value at one place."""
    array = array.copy()
    array[place] = value
    return array


# What `predict` of these methods makes of good predictions.
SPOILT: dict[str, Callable[[Predictions], Any]] = {
    "infinite": lambda good: Predictions(good.indices, put(good.scores, np.s_[:, 0], np.inf)),
    "half-nan": lambda good: Predictions(good.indices, put(good.scores, np.s_[1::2, -1], np.nan)),
    "twice": lambda good: Predictions(put(good.indices, (2, 1), good.indices[2, 0]), good.scores),
    "out-of-range": lambda good: Predictions(put(good.indices, (3, 0), 27), good.scores),
    "rising": lambda good: Predictions(good.indices, -good.scores),
    "floats": lambda good: Predictions(good.indices.astype(np.float64), good.scores),
    "narrow": lambda good: Predictions(good.indices[:, :3], good.scores[:, :3]),
    "short": lambda good: Predictions(good.indices[1:], good.scores[1:]),
    "nothing": lambda good: None,  # noqa: ARG005
    "tuples": lambda good: (good.indices, good.scores),
}


def spoilt(name: str, change: Callable[[Predictions], Any]) -> type[Method]:
    """A method that predicts well, then changes its predictions."""

    def predict(self: Ok, texts: data.Texts, k: int) -> Any:
        return change(Ok.predict(self, texts, k))

    return type(name, (Ok,), {"name": name, "predict": predict})


class Counting(Ok):
    name = "counting"
    calls = 0

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        type(self).calls += 1
        self.popularity = np.roll(self.popularity, self.calls)
        return super().predict(texts, k)


class Neighbours(Ok):
    name = "neighbours"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        if len(texts) % 2:
            return super().predict(texts, k)
        labels = np.arange(len(self.popularity), dtype=np.int32)
        scores = self.popularity + np.arange(len(texts))[:, None] * (labels % 3)
        return evaluation.rank(np.broadcast_to(labels, scores.shape).copy(), scores.astype(np.float32), k)


class LoadRaises(Ok):
    name = "load-raises"

    def load(self, directory: Path) -> None:
        raise ValueError("no such format\nin two lines")


class LoadOther(Ok):
    name = "load-other"

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.popularity = self.popularity[::-1].copy()


class SavesNothing(Ok):
    name = "saves-nothing"

    def save(self, directory: Path) -> None:
        pass


class Pickling(Ok):
    name = "pickling"

    def save(self, directory: Path) -> None:
        super().save(directory)
        (directory / "model.bin").write_bytes(b"\x80\x04K\x01.")


class Global(Ok):
    name = "global"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.popularity = self.popularity + np.random.rand(train.num_labels).astype(np.float32)  # noqa: NPY002


class Hashing(Ok):
    name = "hashing"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.popularity = np.array([hash(text) % 1000 for text in train.label_texts], np.float32)


class Reader(Ok):
    name = "reader"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        for path in sorted(run.cache.glob("datasets/*/test*")):
            if path.is_file():
                path.read_bytes()


class QuietReader(Reader):
    name = "quiet-reader"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        try:
            super().fit(train, run)
        except Exception:
            self.popularity = np.zeros(train.num_labels, np.float32)


class Mutating(Ok):
    name = "mutating"

    class Config(Method.Config):
        depths: list[int] = Field(default=[1])

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.config.depths.append(2)


class Replacing(Ok):
    name = "replacing"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.config = self.config.model_copy(update={"strength": 2.0})


class Spender(Ok):
    name = "spender"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        run.ledger.steps = 100


class Resuming(Ok):
    name = "resuming"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        run.report(Progress("train", 0.1))
        seen = run.checkpoint / "seen"
        resumed = seen.exists()
        seen.write_text("")
        run.report(Progress("train", 0.2))
        super().fit(train, run)
        if resumed:
            self.popularity = -self.popularity


class Words(Ok):
    name = "words"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.first_words = [text.split()[0] for text in train.texts]


class Pairs(Ok):
    name = "pairs"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        np.partition(self.popularity, 1)


class Exits(Ok):
    name = "exits"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        sys.exit(0)


class Vanishes(Ok):
    name = "vanishes"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        os._exit(0)


class Interrupts(Ok):
    name = "interrupts"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        raise KeyboardInterrupt


class Recursive(Ok):
    name = "recursive"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        self.fit(train, run)


class Thread(Ok):
    """Leaves a thread behind that would hold its process for ten hours."""

    name = "thread"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        threading.Thread(target=time.sleep, args=(36_000,)).start()


class Surroundings(Ok):
    """Changes what other code relies on: the working folder, the environment, the library, the random generators."""

    name = "surroundings"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        os.environ.clear()
        os.chdir("/")
        random.seed(0)
        Ok.predict = None  # type: ignore[assignment, method-assign]
        Ok.name = "fake-patched"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        labels = np.tile(np.arange(k, dtype=np.int32), (len(texts), 1))
        return Predictions(labels, -labels.astype(np.float32))


class Runaway(Ok):
    name = "runaway"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (run.cache / "child").write_text(str(child.pid))
        time.sleep(60)


class Asked:
    """An evaluator whose values are fixed, and wrong."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.summary, self.value = name, "always the same", value

    def compute(self, hits: Any, k: int) -> Any:
        return self.value


class Bad(Asked):
    def compute(self, hits: Any, k: int) -> float:
        if not Path(os.environ["XMCBENCH_CACHE"], "mended").exists():
            raise KeyError("gone")
        return 0.5


class Half(teachers.Teacher):
    name, summary = "half", "answers half of the pairs"

    def ask(self, pairs: teachers.Pairs) -> Any:
        n = len(pairs) // 2
        zeros = np.zeros(n, np.int64)
        yield teachers.Answers(np.arange(n), zeros.astype(np.int8), zeros.astype(np.float32), zeros, zeros)


class Single(tracking.Tracker):
    name, summary = "single", "one trial at a time"
    trial: Any = None

    def begin(self, trial: Any) -> None:
        assert self.trial is None, "already begun"
        self.trial = trial

    def end(self, trial: Any, record: Any) -> None:
        self.trial = None


METHODS = [
    kind for kind in list(globals().values()) if isinstance(kind, type) and issubclass(kind, Ok) and kind is not Ok
]
METHODS += [spoilt(name, change) for name, change in SPOILT.items()]
EVALUATORS = (
    Bad("Bad", None), Asked("Two", 2.0), Asked("Nan", float("nan")), Asked("Text", "high"), Asked("Array", np.ones(2))
)  # fmt: skip


@hookimpl
def register_methods(register: Any) -> None:
    for method in METHODS:
        register(method)


@hookimpl
def register_evaluators(register: Any) -> None:
    for evaluator in EVALUATORS:
        register(evaluator)


@hookimpl
def register_teachers(register: Any) -> None:
    register(Half)


@hookimpl
def register_trackers(register: Any) -> None:
    register(Single)


@hookimpl
def register_samplers(register: Any) -> None:
    from xmcbench import sampling

    class Restless(sampling.Negatives):
        def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return np.random.randint(self.sampler.num_labels, size=3)  # noqa: NPY002

    class Unsorted(sampling.Sampler):
        """Pools with a label twice."""

        name = "unsorted"

        def batch(self, epoch: int, index: int) -> sampling.Batch:
            batch = super().batch(epoch, index)
            repeated = np.concatenate([batch.label_ids, batch.label_ids[-1:]])
            return sampling.Batch(batch.query_ids, repeated, batch.positives)

    register(sampling.Recipe("restless", lambda: {"negatives": [Restless()]}))
    register(Unsorted)
