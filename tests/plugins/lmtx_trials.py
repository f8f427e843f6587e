"""Fits of LMTX on toy data without annotations, with the judge of the harness and a teacher that is a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import make_run, toy_data

from xmcbench import sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.teachers import YES, Answers, Judgements, Pairs, Teacher
from xmcbench.trial.run import Run
from xmcbench_plugins.lmtx import LMTX
from xmcbench_plugins.teachers.cached_judge import Account, CachedJudge
from xmcbench_plugins.teachers.charged_pairs import ChargedPairs
from xmcbench_plugins.teachers.database import JudgementStore

PLENTY = {"epochs": 100}
SMALL = {"shortlist": 5, "batch_size": 20, "development": 30, "learning_rate": 1e-3, "warmup": 0.1}
Says = Callable[[int, int], int]  # the answer about a document and a label, by their ids


class Scripted(Teacher):
    """Answers with a function of the ids, a document at a time."""

    name = "scripted"
    summary = "a function"

    def __init__(self, says: Says) -> None:
        super().__init__(Teacher.Config(name=self.name))
        self.says = says

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        for run in pairs.runs():
            answers = [self.says(int(pairs.document_ids[i]), int(pairs.label_ids[i])) for i in run]
            count = len(answers)
            ones, tokens = np.ones(count, np.float32), np.ones(count, np.int64)
            yield Answers(np.array(run), np.array(answers, np.int8), ones, tokens, tokens)


class RecordingJudge(CachedJudge):
    """The judge of the harness, which also records the pairs that the method asks about, call by call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[list[tuple[int, int]]] = []

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray) -> Judgements:
        self.asked.append(list(zip(document_ids.tolist(), label_ids.tolist(), strict=True)))
        return super().__call__(document_ids, label_ids)


def truthful(data: TrainingData) -> Says:
    truth = data.targets.toarray()
    return lambda document, label: int(truth[document, label])


def yes_to_all(*_: int) -> int:
    return YES


def yes_to_two_of_three(document: int, label: int) -> int:
    return int((document + label) % 3 > 0)


@dataclass
class Trials:
    """A folder where LMTX is fitted, killed and fitted again."""

    root: Path
    encoder: str
    says: Says
    data: TrainingData
    judge: RecordingJudge | None = None

    def method(self, **settings: Any) -> LMTX:
        return LMTX(LMTX.Config(**({"encoder": self.encoder, "teacher": "annotated", "cycles": 2} | SMALL | settings)))

    def run(self, budget: dict[str, Any], **settings: Any) -> Run:
        def judge(config: Teacher.Config) -> RecordingJudge:
            assert config.name == "annotated"
            self.judge = self._judge(run)
            return self.judge

        run = make_run(self.root, budget, judge=judge, **settings)
        run.checkpoint.mkdir(parents=True, exist_ok=True)
        return run

    def _judge(self, run: Run) -> RecordingJudge:
        documents = [f"{i} {text}" for i, text in enumerate(self.data.texts)]  # equal texts would share answers
        labels = [f"{i} {text}" for i, text in enumerate(self.data.label_texts)]
        charged_pairs = cache(lambda: ChargedPairs(self.charged, run.ledger.teacher_calls))
        account = Account(run.ledger, run.budget, charged_pairs)
        store, rows = JudgementStore(self.root / "store"), np.arange(len(documents))
        return RecordingJudge(Scripted(self.says), 0, store, documents, rows, labels, account)

    def fitted(self, budget: dict[str, Any] = PLENTY, run: Run | None = None, **settings: Any) -> tuple[LMTX, Run]:
        method, run = self.method(**settings), run or self.run(budget)
        method.fit(self.data.unannotated("lmtx"), run)
        return method, run

    def beside(self, name: str, says: Says | None = None) -> Trials:
        """A folder of its own, with nothing in its store, for the same data."""
        return Trials(self.root / name, self.encoder, says or self.says, self.data)

    @property
    def charged(self) -> Path:
        """The file of the pairs that the trial was charged for."""
        return self.root / "charged.bin"

    @property
    def asked(self) -> list[list[tuple[int, int]]]:
        """The pairs that the last fit asked about, call by call."""
        assert self.judge is not None
        return self.judge.asked


@pytest.fixture
def trials(small_encoder: str, tmp_path: Path) -> Trials:
    data = toy_data(ignored=1)
    return Trials(tmp_path, small_encoder, truthful(data), data)


def weights(method: LMTX) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in method.encoder.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def spied(sampler: Any, seen: list[TrainingData]) -> Any:
    """`LMTX.sampler`, which also appends the training data of each cycle to `seen`."""

    def wrapper(self: LMTX, train: TrainingData, seed: int) -> sampling.Sampler:
        seen.append(train)
        result: sampling.Sampler = sampler(self, train, seed)
        return result

    return wrapper
