"""A suite: the YAML file that says what to compare, read and checked. `docs/suites.md` explains every key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.data import dataset_name, find_source
from xmcbench.errors import suggest
from xmcbench.evaluation import DEFAULT_METRICS, ZERO_SHOT_METRICS, parse_metric
from xmcbench.files.validation import Problems, validate
from xmcbench.files.yaml_lines import Located, read
from xmcbench.plugins.registry import registry
from xmcbench.reporting.cells import TableShape
from xmcbench.suite import overrides
from xmcbench.suite.expansion import Expansion, Variant
from xmcbench.suite.resources import Resources
from xmcbench.suite.tuning import Tune
from xmcbench.trial.budget import CAPS, Budget
from xmcbench.trial.trial import Selection, Track, Trial


class SuiteFile(BaseModel):
    """The keys of a suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="name of the suite, kept in its records")
    datasets: list[str] = Field(
        min_length=1, description="names that `xmcbench datasets` lists, or {name: NAME, option: value}"
    )
    encoder: str | dict[str, Any] | None = Field(None, description="short for the setting `encoder`")
    seeds: list[int] = Field([0], min_length=1, description="one trial each")
    budget: Budget | None = Field(None, description="what training may spend")
    budgets: dict[str, Budget] | None = Field(None, min_length=1, description="name: budget; each is a trial")
    equal: str | None = Field(None, description="the one limit at which every cell stops")
    methods: dict[str, dict[str, Any]] = Field(min_length=1, description="label: {method: NAME, its settings}")
    settings: dict[str, Any] = Field({}, description="settings of every method that has them")
    sweep: dict[str, list[Any]] = Field({}, description="setting: values; every combination is a trial")
    selection: Selection | None = Field(None, description="training queries held out to choose a checkpoint")
    track: Track = Field("supervised", description="zero-shot hides training annotations from methods")
    metrics: list[str] | None = Field(None, min_length=1, description="figures of the leaderboard; null: the track's")
    tune: Tune | None = Field(None, description="how the methods' settings are chosen")
    tables: dict[str, TableShape] = Field({}, description="title: which cells and which columns")
    timeout: float = Field(86400, gt=0, description="wall-clock seconds after which a trial is killed")
    resources: Resources = Field(Resources(), description="what a trial may take of a machine or cluster; not in keys")

    @property
    def figures(self) -> list[str]:
        """The metrics, where the file names none those of its track."""
        return self.metrics or list(ZERO_SHOT_METRICS if self.track == "zero-shot" else DEFAULT_METRICS)


@dataclass(frozen=True)
class Suite:
    """A suite file in which everything is known to exist and to be of the right type."""

    name: str
    datasets: list[str]
    seeds: list[int]
    variants: list[Variant]
    selection: Selection | None
    metrics: list[str]
    timeout: float
    track: Track = "supervised"
    equal: str | None = None
    tables: dict[str, TableShape] = field(default_factory=dict)
    tune: Tune | None = None
    resources: Resources = field(default_factory=Resources)

    def trials(self, hashes: Mapping[str, str]) -> list[Trial]:
        """Every variant with every seed on every dataset; `hashes` holds the datasets' content hashes."""
        return [
            Trial(
                label=variant.label,
                method=variant.method,
                distribution=variant.distribution,
                version=variant.version,
                config=variant.config,
                dataset=dataset,
                dataset_hash=hashes[dataset],
                seed=seed,
                budget=variant.budget,
                selection=self.selection,
                track=self.track,
            )
            for dataset in self.datasets
            for variant in self.variants
            for seed in self.seeds
        ]


def load_suite(
    path: Path,
    data_dir: Path,
    sets: Sequence[str] = (),
    datasets: Sequence[str] = (),
    encoder: str | None = None,
    on_disk: bool = True,
) -> Suite:
    """Read a suite file, with what options say in place of what it says. Names every problem, a line each.

    That a dataset's files are not there is one of them, unless `on_disk` is False.
    """
    located = read(path)
    overrides.bring_in(located, "budgets", path.parent)
    for setting in sets:
        overrides.override(located, setting, SuiteFile.model_fields)
    if datasets:
        overrides.put(located, ("datasets",), list(datasets), "--dataset")
    if encoder is not None:
        overrides.put_encoder(located, encoder)
    problems = Problems(located)
    _name_datasets(located, problems)
    file = validate(SuiteFile, located.data, (), {}, problems)
    problems.check()
    assert file is not None
    _check_names(file, data_dir, problems, on_disk)
    variants = Expansion(file, problems).variants()
    _check_equal(file, variants, problems)
    problems.check()
    return Suite(
        name=file.name,
        datasets=file.datasets,
        seeds=file.seeds,
        variants=variants,
        selection=file.selection,
        metrics=file.figures,
        timeout=file.timeout,
        track=file.track,
        resources=file.resources,
        equal=file.equal,
        tables=file.tables,
        tune=file.tune,
    )


def _name_datasets(located: Located, problems: Problems) -> None:
    """Replace datasets that are given as a mapping of a name and options by their names."""
    datasets = located.data.get("datasets")
    entries: list[Any] = datasets if isinstance(datasets, list) else []
    for i, entry in enumerate(entries):
        if isinstance(entry, dict):
            entries[i] = problems.note(("datasets", i), dataset_name, entry) or str(entry)


def _check_names(file: SuiteFile, data_dir: Path, problems: Problems, on_disk: bool) -> None:
    evaluators = {found.name: found.thing for found in registry().all("evaluator")}
    for i, name in enumerate(file.datasets):
        source = problems.note(("datasets", i), find_source, name, data_dir)
        if on_disk and source is not None and (message := source.missing(data_dir)):
            problems.add(("datasets", i), message)
    for i, name in enumerate(file.figures):
        problems.note(("metrics", i), parse_metric, name, evaluators)
    for title, shape in file.tables.items():
        for i, name in enumerate(shape.columns):
            if "@" in name:
                problems.note(("tables", title, "columns", i), parse_metric, name, evaluators)
    if file.selection:
        problems.note(("selection", "metric"), parse_metric, file.selection.metric, evaluators)
        if file.track == "zero-shot":
            problems.add(("selection",), "chooses by training annotations, which track: zero-shot has none of")


def _check_equal(file: SuiteFile, variants: Sequence[Variant], problems: Problems) -> None:
    """Cells of equal cost stop at one limit, which all of them have."""
    if file.equal is None:
        return
    limits = [name for name in Budget.model_fields if name not in CAPS]
    if file.equal not in limits:
        problems.add(("equal",), f"unknown limit {file.equal!r}{suggest(file.equal, limits)}")
        return
    for found in {tuple(variant.budget.spending()) for variant in variants} - {(file.equal,)}:
        problems.add(("equal",), f"every budget must stop at {file.equal} alone, found one of {', '.join(found)}")
