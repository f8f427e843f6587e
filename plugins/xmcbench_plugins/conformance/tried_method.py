"""A method that is tried on tiny data: its trainings, each made when it is first asked for.

Legend: N queries, k predicted labels.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import process_time
from traceback import walk_tb
from typing import Any

import numpy as np

from xmcbench.errors import XMCBenchError, place_of
from xmcbench.evaluation import InvalidPredictions
from xmcbench.runs.predicting import ask, differs
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.provenance import code_files
from xmcbench_plugins.conformance.code_reading import (
    file_of,
    line_of_setting,
)
from xmcbench_plugins.conformance.rules import BrokenRuleError, NotApplicableError, Subject, require
from xmcbench_plugins.conformance.smoke import Smoke, smoking
from xmcbench_plugins.conformance.tiny_trial import ORDINARY, Fitted, K, TinyTrial


@dataclass
class TriedMethod(Subject):
    """A registered method with settings, a folder to train it in, and what its trainings on tiny data showed.

    Each training runs when a rule first asks for it.
    """

    thing: type[Method]

    def __post_init__(self) -> None:
        self.trial = TinyTrial(self.thing.name, self.settings, self.folder, ORDINARY)
        method = self.trial.build()  # wrong settings are an error before any check
        if reason := method.skip(self.trial.dataset.card):
            raise XMCBenchError(f"method {self.thing.name!r} cannot be checked here: {reason}")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        return code_files("method", self.thing.name)

    @cached_property
    def smoke(self) -> tuple[Fitted, Smoke]:
        """The method fitted for the first time, and asked once, and what was seen of it.

        Raises BrokenRuleError where it raises, naming file and line.
        """
        modules = [module for module in list(sys.modules.values()) if file_of(module) in self.files]
        with smoking("fit", self.files, modules) as seen, self.naming("fit"):
            fitted = self.trial.fit()
        with smoking("predict", self.files, modules) as asked, self.naming("predict"):
            ask(fitted.method, list(fitted.dataset.test.texts), K)
        seen.printed.update(asked.printed)
        seen.changed += [name for name in asked.changed if name not in seen.changed]
        return fitted, seen

    @contextmanager
    def naming(self, call: str) -> Iterator[None]:
        """Raise BrokenRuleError for what `call` raises, with file and line."""
        try:
            yield
        except BrokenRuleError:
            raise
        except InvalidPredictions as problem:
            raise BrokenRuleError(f"{problem} ({self.place(call)})") from problem
        except Exception as problem:
            text = " ".join(f"{type(problem).__name__}: {problem}".split())
            within = any(Path(frame.f_code.co_filename) in self.files for frame, _ in walk_tb(problem.__traceback__))
            place = place_of(problem, self.files) if within else self.place(call)  # of a call that never began
            raise BrokenRuleError(f"{call} raises {text} ({place})") from problem

    def place(self, call: str) -> str:
        """File and line where the method defines `call`."""
        function = inspect.unwrap(getattr(self.thing, call))
        return f"{Path(inspect.getfile(function)).name}:{inspect.getsourcelines(function)[1]}"

    def setting(self, place: str) -> str:
        """File and line of the setting at a place such as `loss.margins[0]`."""
        return line_of_setting(self.thing.Config, re.split(r"[.\[]", place)[0])

    @property
    def fitted(self) -> Fitted:
        return self.smoke[0]

    @cached_property
    def again(self) -> tuple[Fitted, float]:
        """The method fitted again with the same seed, and the seconds of processors that it charged to no stage."""
        begun = process_time()
        fitted = replace(self.trial, name="again").fit()
        return fitted, process_time() - begun - sum(fitted.log.ledger.stage_cpu_seconds.values())

    def fit_on(self, dataset: str) -> Fitted:
        """The method fitted on another tiny dataset."""
        trial = replace(self.trial, dataset_name=dataset)
        if reason := trial.build().skip(trial.dataset.card):
            raise NotApplicableError(reason)
        return trial.fit()

    @cached_property
    def elsewhere(self) -> Predictions:
        """The predictions of the trial run in another process, with another hash seed, home and cache."""
        folder = self.folder / "second"
        trial = replace(self.trial, name="second process", folder=folder)
        return trial.run(PYTHONHASHSEED="12345", HOME=str(folder / "home"))

    def without_dropout(self, name: str, **settings: Any) -> TinyTrial:
        """The trial with further settings and an encoder without dropout, whose draws depend on micro-batches.

        Raises NotApplicableError for a method without an encoder.
        """
        if "micro_batch_tokens" not in self.thing.Config.model_fields:
            raise NotApplicableError("not a DualEncoder")
        encoder: Any = self.trial.settings.get("encoder", "tiny")
        named: Mapping[str, Any] = encoder if isinstance(encoder, Mapping) else {"name": encoder}
        still = {**named, "dropout": 0.0, "hidden_dropout": 0.0}
        return replace(self.trial, name=name, settings={**self.trial.settings, "encoder": still, **settings})


def require_same(first: Predictions, second: Predictions, one: str, other: str) -> None:
    """Raise `BrokenRuleError` if predictions [N, k] differ by more than rounding; `one` and `other` name them."""
    require(
        first.indices.shape == second.indices.shape,
        f"{one} gives the shape {first.indices.shape}, {other} {second.indices.shape}",
    )
    wrong_N = differs(first, second)
    if wrong_N.any():
        row = int(np.argmax(wrong_N))
        raise BrokenRuleError(
            f"{int(wrong_N.sum())} of {len(wrong_N)} queries differ between {one} and {other}; query {row} gets "
            f"{first.indices[row, :3].tolist()}, then {second.indices[row, :3].tolist()}"
        )
