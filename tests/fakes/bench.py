"""A place to run suites of fake methods in."""

# ruff: noqa: ARG002  (a display that does not care for the numbers)
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from xmcbench.runs.plan import PlannedTrial
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record
from xmcbench.trial.run import Progress
from xmcbench.trial.store import Store


@dataclass
class Heard:
    """A display that remembers."""

    begun: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    expected: list[float | None] = field(default_factory=list)

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        self.begun.append(planned.trial.label)

    def wait(self, planned: PlannedTrial) -> None:
        self.stages.append("wait")

    def expect(self, seconds: float | None) -> None:
        self.expected.append(seconds)

    def progress(self, planned: PlannedTrial, progress: Progress) -> None:
        self.stages.append(progress.stage)

    def end(self, planned: PlannedTrial, record: Record) -> None:
        self.stages.append(str(record.status))


@dataclass
class Bench:
    """Folders for data, store and cache, and the suites in them."""

    root: Path
    heard: Heard = field(default_factory=Heard)

    @property
    def store(self) -> Store:
        return Store(self.root / "results")

    @property
    def places(self) -> tuple[str, ...]:
        """The options of a command that name store and data."""
        return "--store", str(self.root / "results"), "--data", str(self.root / "data")

    def suite(self, methods: dict[str, dict[str, Any]] | list[str], **keys: Any) -> Path:
        """Write a suite of these methods: by label, or by name alone."""
        if isinstance(methods, list):
            methods = {name.removeprefix("fake-"): {"method": name} for name in methods}
        content = {"name": "test", "datasets": ["fake-20"], "budget": {"steps": 5}, "methods": methods} | keys
        path = self.root / "suite.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def runner(self, suite: Path, **settings: Any) -> Runner:
        places = {"data": self.root / "data", "store": self.root / "results", "cache": self.root / "cache"}
        return Runner(Settings(suite=suite, **(places | settings)))

    def run(self, suite: Path, **settings: Any) -> dict[str, Record]:
        """Run a suite; the records by label."""
        runner = self.runner(suite, **settings)
        self.heard = Heard()
        return {record.trial.label: record for record in runner.run(runner.plan(), self.heard)}

    def plan(self, suite: Path, **settings: Any) -> dict[str, tuple[str, str]]:
        """Action and reason of each trial, by label."""
        return {s.trial.label: (str(s.action), s.reason) for s in self.runner(suite, **settings).plan()}
