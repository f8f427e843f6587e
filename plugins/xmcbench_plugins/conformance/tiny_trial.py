"""Fits a method on a dataset of a few queries: an ordinary one, one with odd texts, or one with a single label.

`fit` is what a trial does without a trial's own checks, so that each broken rule is found by itself; `run` is the whole
trial, in processes of its own, as `xmcbench run` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from xmcbench.data import Dataset, load
from xmcbench.data.formats import CARD_FILE, write_json_layout
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import check_predictions
from xmcbench.plugins.registry import registry
from xmcbench.runs.attempt import Attempt
from xmcbench.runs.executor import Task
from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.runs.fitting import training_run
from xmcbench.runs.job import Job, variables
from xmcbench.runs.local import LocalExecutor
from xmcbench.runs.predicting import ask
from xmcbench.suite.resources import Needs
from xmcbench.teachers.teacher import Teacher
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import Method, code_versions
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.run import Progress, TrainingLog
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial
from xmcbench_plugins.conformance.rules import BrokenRuleError, NotApplicableError

BUDGET = Budget(steps=3)
K = 5  # predicted labels
LIMIT_SECONDS = 300  # of a trial in processes of its own
ORDINARY, ODD, ONE_LABEL = "check-ordinary", "check-odd", "check-one-label"
NUM_TRAIN, NUM_TEST, NUM_LABELS = 48, 24, 16
SYLLABLES = [onset + vowel for onset in "bdfgklmnprst" for vowel in "aeiou"]
LONG = "a very long text of many words " * 400
ODD_TEXTS = ("", " ", LONG, "寒い冬の朝", "Ωμέγα и кириллица", "שלום عالم", "🙂🙂", "line\nbreak\tand tab", "!?")


Rows = list[dict[str, Any]]  # queries as lines of the JSON layout, each a text and the ids of its labels
Made = tuple[Rows, Rows, list[str]]  # training queries, test queries, and the texts of the labels 0, 1, ...


def load_tiny(name: str, folder: Path) -> Dataset:
    """The dataset `name`, written to `folder`/data first where it is not there."""
    data = folder / "data"
    if not (data / name).exists():
        train, test, labels = MAKERS[name]()
        card = "source: made for checks\nmax_length: 16\nmax_label_length: 8\n"
        write_json_layout(data / name, train, test, ({"title": text} for text in labels), {CARD_FILE: card})
    return load(name, data, folder / "cache")


def _words(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(SYLLABLES, size=3)) for _ in range(count)]


def _row(text: str, *labels: int) -> dict[str, Any]:
    return {"title": text, "target_ind": sorted(labels)}


def _ordinary() -> Made:
    """Each label is a word; a query holds the words of its one to three labels, and others."""
    labels, others = _words(NUM_LABELS, 0), _words(60, 1)
    rng = np.random.default_rng(2)

    def row() -> dict[str, Any]:
        ids = rng.choice(NUM_LABELS, size=rng.integers(1, 4), replace=False).tolist()
        words = [labels[label] for label in ids] + list(rng.choice(others, size=4))
        return _row(" ".join(rng.permutation(words)), *ids)

    return [row() for _ in range(NUM_TRAIN)], [row() for _ in range(NUM_TEST)], labels


def _odd() -> Made:
    """Odd, repeated and empty texts, queries without labels, labels without queries."""
    texts = [*ODD_TEXTS, *ODD_TEXTS[:3], *(f"query {word}" for word in _words(12, 3))]
    labels = [*ODD_TEXTS[1:], "no query has this", "same", "same"]
    train = [_row(text, *([] if place % 4 == 3 else [place % 6])) for place, text in enumerate(texts)]
    test = [_row(text, *([] if place % 3 == 2 else [place % len(labels)])) for place, text in enumerate(texts)]
    return train, test, labels


def _one_label() -> Made:
    """One label for all queries."""
    rows = [_row(f"query {word}", 0) for word in _words(12, 4)]
    return rows[:8], rows[8:], ["the only label"]


MAKERS = {ORDINARY: _ordinary, ODD: _odd, ONE_LABEL: _one_label}


@dataclass(frozen=True)
class TinyTrial:
    """A method with settings, on one of the tiny datasets. `folder` holds data, caches and checkpoints."""

    method: str
    settings: Mapping[str, Any]
    folder: Path
    dataset_name: str
    seed: int = 0
    name: str = "first"  # of its store
    budget: Budget = BUDGET

    @cached_property
    def dataset(self) -> Dataset:
        return load_tiny(self.dataset_name, self.folder)

    def build(self) -> Method:
        """The method, not fitted, with settings as in a suite. Raises XMCBenchError if one is missing or wrong."""
        kind: type[Method] = registry().method(self.method).thing
        # The default encoders of most methods have to be downloaded, and teachers may cost money.
        defaults = {"encoder": "tiny"} if "encoder" in kind.Config.model_fields else {}
        defaults |= {
            name: "words" for name, own in kind.Config.model_fields.items() if own.annotation is Teacher.Config
        }
        try:
            return kind(kind.Config.model_validate_json(json.dumps({**defaults, **self.settings}), strict=True))
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise XMCBenchError(f"method {kind.name!r}: setting {place}: {first['msg']}; --set {place}=VALUE") from None

    def job(self) -> Job:
        """The trial as `xmcbench run` would make it, on a store in the folder."""
        registered, config = registry().method(self.method), self.build().config
        trial = Trial(
            label=self.name,
            method=self.method,
            distribution=registered.origin.distribution,
            version=registered.origin.version,
            versions=code_versions(registered.thing, config, self.budget),
            config=config.model_dump(mode="json"),
            dataset=self.dataset_name,
            dataset_hash=self.dataset.card.content_hash,
            seed=self.seed,
            budget=self.budget,
        )
        places = {name: self.folder / name for name in ("data", "cache")}
        return Job(trial=trial, suite="check", metrics=["P@1"], store=self.folder / "stores" / self.name, **places)

    def run(self, workers: int = 1, **environment: str) -> Predictions:
        """The predictions of the trial, run by so many processes with these environment variables.

        Raises NotApplicableError where the trial is invalid by a rule of its own, BrokenRuleError where it fails.
        """
        job = self.job()
        store = Store(job.store)
        store.write_job(job.trial.key, job)
        records: list[Record] = []
        with variables(**environment), LocalExecutor() as executor:
            executor.start(Task(job, Needs(workers=workers), LIMIT_SECONDS, lambda _: None))
            while not records:
                records = executor.finished()
        if failure := records[0].failure:
            kind = NotApplicableError if failure.type == BrokenContractError.__name__ else BrokenRuleError
            raise kind(f"its trial is {records[0].status}: {failure.type}: {failure.message}")
        return store.predictions(records[0])[0]

    def fit(
        self, report: Callable[[Progress], None] = lambda _: None, log: TrainingLog | None = None, **fields: Any
    ) -> Fitted:
        """The method fitted within the budget; `log` receives what it charges, `fields` are of its `Run`."""
        method, train = self.build(), self.dataset.training_data()
        attempt = Attempt(self.job(), log=log or TrainingLog())
        with training_run(attempt, train, np.arange(len(train.texts)), report=report, **fields) as run:
            method.fit(train, run)
        return Fitted(self.dataset, method, attempt.log)


@dataclass(frozen=True)
class Fitted:
    """A method that was fitted on a tiny dataset, and what it charged."""

    dataset: Dataset
    method: Method
    log: TrainingLog

    def predict(self, k: int = K) -> Predictions:
        """Predictions for the test queries [N, k]. Raises if they break the contract of `Predictions`."""
        texts, num_labels = list(self.dataset.test.texts), len(self.dataset.label_texts)
        found = ask(self.method, texts, min(k, num_labels))
        check_predictions(found, len(texts), num_labels)
        return found
