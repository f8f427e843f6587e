"""The rules of teachers and trackers. Legend: N pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.data import Dataset
from xmcbench.runs.conformance.rules import NotApplicableError, RuleSet, require
from xmcbench.runs.job import now
from xmcbench.teachers.teacher import Pairs, Teacher, TeacherError
from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import NO, UNPARSED, YES, TrialProgress
from xmcbench.trial.trial import Trial

NUM_PAIRS = 40


class TeacherSubject:
    """A teacher with settings, and a dataset to ask it about."""

    def __init__(self, kind: type[Teacher], settings: Mapping[str, Any], dataset: Dataset) -> None:
        self.kind, self.settings, self.dataset = kind, {"name": kind.name, **settings}, dataset

    def make(self) -> Teacher:
        teacher = self.kind(self.kind.Config.model_validate_json(json.dumps(self.settings), strict=True))
        if teacher.simulated:
            teacher.read_annotations(self.dataset.training_data())
        return teacher

    def pairs(self) -> Pairs:
        """Random pairs of training queries and labels, sorted by query."""
        rng = np.random.default_rng(0)
        documents = np.sort(rng.integers(len(self.dataset.train.texts), size=NUM_PAIRS))
        labels = rng.integers(len(self.dataset.label_texts), size=NUM_PAIRS)
        return Pairs(
            [self.dataset.train.texts[row] for row in documents],
            [self.dataset.label_texts[label] for label in labels],
            documents,
            labels,
        )


TEACHER_RULES: RuleSet[TeacherSubject] = RuleSet("A teacher")


@TEACHER_RULES.rule("`identity()` is what an answer depends on.", "return JSON types, and the same each time")
def the_identity_is_json(subject: TeacherSubject) -> None:
    first, second = (json.dumps(subject.make().identity(), sort_keys=True) for _ in range(2))
    require(first == second, f"identity returned {first}, then {second}")


@TEACHER_RULES.rule(
    "`ask` answers all pairs, a few at a time and in any order.",
    "yield `Answers` whose `places` hold each of range(len(pairs)) once",
)
def every_pair_is_answered_once(subject: TeacherSubject) -> None:
    teacher, pairs = subject.make(), subject.pairs()
    try:
        answers = list(teacher.ask(pairs))
    except TeacherError as problem:
        raise NotApplicableError(f"it does not answer here: {problem}") from None
    finally:
        teacher.close()
    places = np.concatenate([part.places for part in answers])
    require(
        np.array_equal(np.sort(places), np.arange(len(pairs))),
        f"places {sorted(places.tolist())[:10]} ..., expected each of 0..{len(pairs) - 1} once",
    )
    for part in answers:
        valid = np.isin(part.answers, (YES, NO, UNPARSED))
        require(bool(valid.all()), f"answers hold {np.asarray(part.answers)[~valid][:1]}, expected YES, NO or UNPARSED")
        confidence = np.asarray(part.confidence)
        require(bool(((confidence >= 0) & (confidence <= 1)).all()), "confidence lies outside 0..1")
        for name in ("prompt_tokens", "completion_tokens", "answers", "confidence"):
            column = np.asarray(getattr(part, name))
            require(column.shape == part.places.shape, f"{name} is {column.shape}, places is {part.places.shape}")
        require(int(np.min(part.prompt_tokens)) >= 0, "prompt_tokens are negative")


class TrackerSubject:
    """A tracker, and a folder of results."""

    def __init__(self, kind: type[Tracker], store: Path) -> None:
        self.kind, self.store = kind, store

    def trial(self, seed: int) -> Trial:
        """A made-up trial."""
        return Trial(
            label="popular",
            method="popular",
            distribution="xmcbench",
            version="0",
            config={"depths": [1, 2], "encoder": {"name": "tiny"}},
            dataset="check-ordinary",
            dataset_hash="0" * 64,
            seed=seed,
            budget=Budget(steps=10),
        )

    def record(self, trial: Trial, status: Status) -> Record:
        ended = status is Status.OK
        return Record(
            key=trial.key,
            suite="check",
            trial=trial,
            status=status,
            metrics={"P@1": 0.5} if ended else {},
            spent={"steps": 10, "stage_seconds": {"train": 1.5}},
            failure=None if ended else Failure(type="ValueError", message="no way on", stage="fit"),
            started=now(),
            ended=now(),
        )


TRACKER_RULES: RuleSet[TrackerSubject] = RuleSet("A tracker")
FOLDER = "self.store is the folder of the run's results; make what the tracker needs in __init__"


@TRACKER_RULES.rule("A tracker is called with `begin`, `step`, `evaluation`, `end` and `close`.", FOLDER)
def events_of_a_trial_are_handled(subject: TrackerSubject) -> None:
    tracker, trial = subject.kind(subject.store), subject.trial(0)
    tracker.begin(trial)
    tracker.step(trial, TrialProgress("train", 0.5, {"loss": 1.25}, {"steps": 5, "stage_seconds": {"train": 1.0}}))
    tracker.evaluation(trial, {"fraction": 0.5, "steps": 5.0, "P@1": 0.4})
    tracker.end(trial, subject.record(trial, Status.OK))
    tracker.close()


@TRACKER_RULES.rule("Trials may run side by side: each call says which trial it is about.", "keep state by trial.key")
def trials_side_by_side_are_handled(subject: TrackerSubject) -> None:
    tracker, trials = subject.kind(subject.store), [subject.trial(1), subject.trial(2)]
    for trial in trials:
        tracker.begin(trial)
    for trial in (*trials, *reversed(trials)):
        tracker.step(trial, TrialProgress("train", 0.5, {"loss": 1.0}, {"steps": 1}))
    tracker.end(trials[1], subject.record(trials[1], Status.ERROR))
    tracker.begin(trials[1])  # the trial is run again
    tracker.end(trials[1], subject.record(trials[1], Status.OK))
    tracker.close()  # the first trial was interrupted
