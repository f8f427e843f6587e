"""The paper suites have the settings that the papers print, as `suites/paper/hyperparameters.yaml` lists them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from xmcbench.data.source import FolderSource
from xmcbench.plugins.registry import registry
from xmcbench.suite.expansion import Variant
from xmcbench.suite.suite import load_suite
from xmcbench.trial.method import Method
from xmcbench_plugins.sources.catalog import folder_sources

FOLDER = Path(__file__).parents[2] / "suites" / "paper"
WITHOUT_SETTINGS = {"popular", "sparse-ranker"}  # the papers print nothing that a trial of these could contradict


class Entry(BaseModel):
    """What a paper prints, and the trials it is about."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    method: str
    datasets: list[str] = ["*"]
    suites: list[str] = ["*"]
    labels: list[str] = ["*"]
    values: dict[str, Any]

    def matches(self, trial: PaperTrial) -> bool:
        """Whether the entry is about this trial."""
        names = [(self.datasets, trial.dataset), (self.suites, trial.suite), (self.labels, trial.label)]
        known = all(any(fnmatch(name, pattern) for pattern in patterns) for patterns, name in names)
        return known and trial.method == self.method


@dataclass(frozen=True)
class PaperTrial:
    """A method of a paper suite on one dataset, with its settings in force; those of a first stage count alone."""

    suite: str
    label: str
    dataset: str
    method: str
    config: Method.Config
    epochs: float | None
    swept: frozenset[str]

    def value(self, name: str) -> Any:
        """The setting, `part.name` within a mapping, or `epochs` or `length`."""
        if name == "epochs":
            return self.epochs
        if name == "length":
            return self.config.model_dump()["max_query_length"] or max_length(self.dataset)
        found: Any = self.config.model_dump(mode="json")
        for part in name.split("."):
            found = found[part]
        return found


@cache
def max_length(dataset: str) -> int:
    return next(source.draft.max_length for source in folder_sources() if source.name == dataset)


@cache
def entries() -> tuple[Entry, ...]:
    return tuple(Entry.model_validate(entry) for entry in yaml.safe_load((FOLDER / "hyperparameters.yaml").read_text()))


@cache
def trials() -> tuple[PaperTrial, ...]:
    """Every trial of every paper suite, the first stages of second stages among them."""
    found: list[PaperTrial] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderSource, "missing", lambda _self, _data_dir: None)
        for path in sorted(FOLDER.glob("*.yaml")):
            if path.stem == "hyperparameters":
                continue
            swept = frozenset(yaml.safe_load(path.read_text()).get("sweep", {}))
            suite = load_suite(path, FOLDER)
            for variant in suite.variants:
                for dataset in suite.datasets:
                    found += stages(suite.name, dataset, variant, swept)
    return tuple(found)


def stages(suite: str, dataset: str, variant: Variant, swept: frozenset[str]) -> list[PaperTrial]:
    """The trial, and before it that of its first stage with its share of the epochs."""
    config = variant.method.thing.Config.model_validate(variant.config)
    first = variant.config.get("first")
    own_epochs = variant.config.get("epochs") if first else variant.budget.epochs
    own = PaperTrial(suite, variant.entry, dataset, variant.method.name, config, own_epochs, swept)
    if first is None:
        return [own]
    settings = {key: value for key, value in first.items() if key not in ("method", "origin", "version")}
    epochs = variant.budget.epochs and round(variant.budget.epochs * variant.config["share"])
    method = registry().method(first["method"]).thing.Config.model_validate(settings)
    return [PaperTrial(suite, variant.entry, dataset, first["method"], method, epochs, swept), own]


@pytest.mark.parametrize("suite", sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "hyperparameters"))
def test_a_paper_suite_has_the_papers_settings(suite: str) -> None:
    """Swept settings and limits other than epochs are what a suite is about, and not compared."""
    wrong = []
    for trial in (trial for trial in trials() if trial.suite == suite.replace("_", "-")):
        expected = {
            name: (value, entry.source)
            for entry in entries()
            if entry.matches(trial)
            for name, value in entry.values.items()
        }
        if trial.method not in WITHOUT_SETTINGS:
            assert "encoder.name" in expected or trial.method == "classifier", f"{suite}, {trial.label}: no entry"
        unused = trial.config.unused() | trial.swept
        for name, (value, source) in expected.items():
            skipped = name.split(".")[0] in unused or (name == "epochs" and trial.epochs is None)
            if not skipped and value is not None and trial.value(name) != value:
                wrong.append(f"{trial.label}: {name} is {trial.value(name)}, expected {value} ({source})")
    assert not wrong, "\n".join(wrong)


def test_every_entry_is_about_a_trial() -> None:
    unmatched = [entry.source for entry in entries() if not any(entry.matches(trial) for trial in trials())]
    assert not unmatched


def test_a_wrong_encoder_is_found() -> None:
    trial = next(trial for trial in trials() if trial.method == "prime")
    expected = next(entry for entry in entries() if entry.method == "prime").values["encoder.name"]
    wrong = type(trial.config).model_validate(trial.config.model_dump() | {"encoder": "distilbert-base-uncased"})
    assert trial.value("encoder.name") == expected
    assert replace(trial, config=wrong).value("encoder.name") != expected
