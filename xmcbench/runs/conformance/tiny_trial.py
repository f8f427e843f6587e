"""Fits a method on a tiny dataset: what a trial does, without its records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from xmcbench.data import Dataset
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.runs.conformance.tiny_data import load_tiny
from xmcbench.teachers.judge_factory import JudgeFactory
from xmcbench.teachers.subprocess_teacher import AnnotatedDataset
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import Method
from xmcbench.trial.run import Progress, Run, TrainingLog

BUDGET = Budget(steps=3)


@dataclass(frozen=True)
class TinyTrial:
    """A method with settings, on one of the tiny datasets. `folder` holds data, caches and checkpoints."""

    method: str
    settings: Mapping[str, Any]
    folder: Path
    dataset_name: str
    seed: int = 0
    name: str = "first"  # of the folder of checkpoints

    @cached_property
    def dataset(self) -> Dataset:
        return load_tiny(self.dataset_name, self.data, self.cache)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def build(self) -> Method:
        """The method with its settings, not fitted."""
        kind = registry().method(self.method).thing
        return kind(build_config(kind, self.settings))  # type: ignore[no-any-return]

    def fit(
        self, method: Method, report: Callable[[Progress], None] = lambda _: None, log: TrainingLog | None = None
    ) -> TrainingLog:
        """Fit the method within `BUDGET`; returns what it charged."""
        train, log = self.dataset.training_data(), log or TrainingLog()
        checkpoint = self.folder / "checkpoints" / self.dataset_name / self.name
        checkpoint.mkdir(parents=True, exist_ok=True)
        run = Run(self.seed, BUDGET, checkpoint, self.cache, log=log, report=report)
        annotated = AnnotatedDataset(self.dataset_name, self.dataset.card.content_hash, self.data, self.cache)
        rows = np.arange(len(train.texts))
        judges = JudgeFactory(run, self.folder / "store", annotated, train.texts, rows, train.label_texts, [])
        with closing(judges):
            method.fit(train, Run(self.seed, BUDGET, checkpoint, self.cache, log=log, report=report, judge=judges))
        return log


def build_config(kind: type[Method], settings: Mapping[str, Any]) -> Method.Config:
    """The settings of a method as suites read them. Raises XMCBenchError if one is missing or wrong."""
    names = kind.Config.model_fields
    chosen = dict(settings)
    if "encoder" in names and "encoder" not in chosen:
        chosen["encoder"] = "tiny"  # the defaults of most methods have to be downloaded
    try:
        return kind.Config.model_validate_json(json.dumps(chosen), strict=True)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise XMCBenchError(f"method {kind.name!r}: setting {place}: {first['msg']}; --set {place}=VALUE") from None
