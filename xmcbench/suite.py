"""A suite: the YAML file that says what to compare, read into trials. `docs/suites.md` explains every key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from xmcbench import overrides
from xmcbench.budget import CAPS, Budget
from xmcbench.data import find_source
from xmcbench.errors import XMCBenchError, suggest
from xmcbench.evaluation import DEFAULT_METRICS, ZERO_SHOT_METRICS, parse_metric
from xmcbench.located import Steps, read
from xmcbench.method import Method
from xmcbench.plugins import Registered, Registry
from xmcbench.reporting.cells import TableShape
from xmcbench.reporting.columns import COLUMNS
from xmcbench.resources import Resources
from xmcbench.trial import Selection, Track, Trial
from xmcbench.tuning import Range, Tune
from xmcbench.validation import Problems, validate

BUDGET = "budget."  # a sweep over `budget.steps` changes that limit
NAMED = "budget"  # the axis of named budgets


class SuiteFile(BaseModel):
    """The keys of a suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="name of the suite, kept in its records")
    datasets: list[str] = Field(min_length=1, description="names that `xmcbench datasets` lists")
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
class Variant:
    """A method with all its settings and a budget: a trial before it has a dataset and a seed."""

    label: str
    entry: str  # the method's label in the file, without the point of the sweep
    method: str
    distribution: str
    version: str
    config: dict[str, Any]
    budget: Budget


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
    registry: Registry,
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
    file = validate(SuiteFile, located.data, (), {}, problems)
    problems.check()
    assert file is not None
    _check_names(file, registry, data_dir, problems, on_disk)
    variants = _Expansion(file, registry, problems).variants()
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


def _check_names(file: SuiteFile, registry: Registry, data_dir: Path, problems: Problems, on_disk: bool) -> None:
    evaluators = _evaluators(registry)
    for i, name in enumerate(file.datasets):
        source = _note(problems, ("datasets", i), find_source, name, data_dir, registry)
        if on_disk and source is not None and (message := source.missing(data_dir)):
            problems.add(("datasets", i), message)
    for i, name in enumerate(file.figures):
        _note(problems, ("metrics", i), parse_metric, name, evaluators)
    if file.selection:
        _note(problems, ("selection", "metric"), parse_metric, file.selection.metric, evaluators)
        if file.track == "zero-shot":
            problems.add(("selection",), "chooses by training annotations, which track: zero-shot has none of")


def _evaluators(registry: Registry) -> dict[str, Any]:
    return {found.name: found.thing for found in registry.all("evaluator")}


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


def _note(problems: Problems, steps: Steps, look_up: Any, *arguments: Any) -> Any:
    """The answer of a look-up; an error becomes a problem at `steps`."""
    try:
        return look_up(*arguments)
    except XMCBenchError as problem:
        problems.add(steps, str(problem))
        return None


class _Expansion:
    """Settings, defaults and sweeps, resolved into variants."""

    def __init__(self, file: SuiteFile, registry: Registry, problems: Problems) -> None:
        self._file, self._registry, self._problems = file, registry, problems
        self._defaults = dict(file.settings)
        self._origins: dict[str, Steps] = {key: ("settings", key) for key in file.settings}
        if file.encoder is not None:
            if "encoder" in file.settings:
                problems.add(("encoder",), "given here and in settings; expected one of them")
            self._defaults["encoder"] = file.encoder
            self._origins["encoder"] = ("encoder",)
        if (file.budget is None) == (file.budgets is None):
            problems.add((), "expected one of the keys 'budget' and 'budgets'")
        self._budgets: Mapping[str, Budget | None] = file.budgets or {"": file.budget}

    def variants(self) -> list[Variant]:
        """The variants of every method of the file, in its order."""
        found = {label: self._method(label) for label in self._file.methods}
        if all(found.values()):
            known = {field for method in found.values() if method for field in _fields(method)}
            self._check_settings(known)
            self._check_tables(known)
            self._check_tune({label: method for label, method in found.items() if method})
        return [variant for label, method in found.items() if method for variant in self._of(label, method)]

    def _method(self, label: str) -> Registered | None:
        settings = self._file.methods[label]
        name = settings.get("method")
        if isinstance(name, str):
            found: Registered | None = _note(self._problems, ("methods", label, "method"), self._registry.method, name)
            return found
        problem = f"found {name!r}, expected the name of a method" if "method" in settings else "missing key 'method'"
        self._problems.add(("methods", label), problem)
        return None

    def _check_settings(self, known: set[str]) -> None:
        """A default or an axis that no method has is a slip of the pen."""
        for key in self._defaults:
            if key not in known:
                self._problems.add(self._origins[key], f"no method here has this setting{suggest(key, known)}")
        axes = known | {BUDGET + limit for limit in Budget.model_fields}
        for key, values in self._file.sweep.items():
            if key not in axes:
                self._problems.add(("sweep", key), f"no method here has this setting{suggest(key, axes)}")
            if not values:
                self._problems.add(("sweep", key), "found no values, expected at least one")

    def _check_tables(self, settings: set[str]) -> None:
        """A table has cells of methods that are here, and columns that mean something for one of them."""
        for title, shape in self._file.tables.items():
            for i, label in enumerate(shape.methods or ()):
                if label not in self._file.methods:
                    name = f"unknown method label {label!r}{suggest(label, self._file.methods)}"
                    self._problems.add(("tables", title, "methods", i), name)
            known = settings | COLUMNS.keys()
            for i, name in enumerate(shape.columns):
                if "@" in name:
                    _note(
                        self._problems, ("tables", title, "columns", i), parse_metric, name, _evaluators(self._registry)
                    )
                elif name not in known:
                    self._problems.add(
                        ("tables", title, "columns", i), f"unknown column {name!r}{suggest(name, known)}"
                    )

    def _check_tune(self, methods: Mapping[str, Registered]) -> None:
        """Every method has a space of settings that it has, with values of the right type."""
        tune, selection = self._file.tune, self._file.selection
        if tune is None:
            return
        if selection is None:
            self._problems.add(("tune",), "chooses by held-out training queries, expected the key 'selection' too")
        elif tune.metric not in (None, selection.metric, *self._file.figures):
            self._problems.add(("tune", "metric"), f"{tune.metric!r} is neither the selection's nor one of metrics")
        for label in methods.keys() - tune.space.keys():
            message = f"missing {label!r}: every method gets the same tuning budget ({label}: {{}} leaves it as it is)"
            self._problems.add(("tune", "space"), message)
        for label, space in tune.space.items():
            if label not in methods:
                name = f"unknown method label {label!r}{suggest(label, methods)}"
                self._problems.add(("tune", "space", label), name)
                continue
            for setting, values in space.items():
                ends = [values.low, values.high] if isinstance(values, Range) else values
                self._check_space(label, methods[label], setting, ends)

    def _check_space(self, label: str, method: Registered, setting: str, values: Sequence[Any]) -> None:
        steps: Steps = ("tune", "space", label, setting)
        fields = _fields(method)
        if setting not in fields:
            self._problems.add(steps, f"the method has no such setting{suggest(setting, fields)}")
        elif setting in self._file.sweep:
            self._problems.add(steps, "is swept as well: expected one of them")
        elif not self._problems:
            own = {key: value for key, value in self._file.methods[label].items() if key != "method"}
            shared = {key: value for key, value in self._defaults.items() if key in fields} | own
            for value in values:
                place = {setting: steps}
                config = validate(method.thing.Config, {**shared, setting: value}, steps, place, self._problems)
                if config is not None and setting in config.unused():
                    self._problems.add(steps, "means nothing beside the other settings here")

    def _of(self, label: str, method: Registered) -> Iterator[Variant]:
        """The variants of one method: a point of the sweep each, those that resolve to the same settings once."""
        own = {key: value for key, value in self._file.methods[label].items() if key != "method"}
        fields = _fields(method)
        axes = {
            key: values
            for key, values in self._file.sweep.items()
            if key.removeprefix(BUDGET) in Budget.model_fields or (key in fields and key not in own)
        }
        if self._file.budgets:
            axes[NAMED] = list(self._budgets)
        values = {key: value for key, value in self._defaults.items() if key in fields} | own
        resolved: dict[str, tuple[dict[str, Any], Method.Config, Budget]] = {}
        for combination in product(*axes.values()):
            point = dict(zip(axes, combination, strict=True))
            config, meant = self._configure(label, method, values, point)
            budget = self._limit(point)
            if config is not None and budget is not None:
                resolved.setdefault(config.model_dump_json() + budget.model_dump_json(), (meant, config, budget))
        varying = [axis for axis in axes if len({_text(_at(axis, *outcome[1:])) for outcome in resolved.values()}) > 1]
        for point, config, budget in resolved.values():
            tag = ",".join(f"{axis}={_text(point[axis])}" for axis in varying if axis in point)
            yield Variant(
                label=f"{label}[{tag}]" if tag else label,
                entry=label,
                method=method.name,
                distribution=method.origin.distribution,
                version=method.origin.version,
                config=config.model_dump(mode="json"),
                budget=budget,
            )

    def _configure(
        self, label: str, method: Registered, values: dict[str, Any], point: dict[str, Any]
    ) -> tuple[Method.Config | None, dict[str, Any]]:
        """The configuration at one point of the sweep, and the axes of the point that mean something there.

        A default or an axis that means nothing beside the other settings is left out; an own setting is an error.
        """
        own = self._file.methods[label]
        swept = {key: value for key, value in point.items() if key != NAMED and not key.startswith(BUDGET)}
        origins = {key: place for key, place in self._origins.items() if key not in own}
        origins |= {key: ("sweep", key) for key in swept}
        steps: Steps = ("methods", label)
        config = validate(method.thing.Config, values | swept, steps, origins, self._problems)
        unused = config.unused() if config is not None else frozenset()
        for key in unused & own.keys():
            self._problems.add((*steps, key), "means nothing beside the other settings here")
        if idle := unused & (values.keys() | swept.keys()):
            kept = {key: value for key, value in (values | swept).items() if key not in idle}
            config = validate(method.thing.Config, kept, steps, origins, self._problems)
        return config, {key: value for key, value in point.items() if key not in unused}

    def _limit(self, point: dict[str, Any]) -> Budget | None:
        """The budget at one point of the sweep."""
        name = point.get(NAMED, "")
        named = self._budgets[name]
        if named is None:
            return None  # which was noted
        steps: Steps = ("budgets", name) if name else ("budget",)
        limits = {key.removeprefix(BUDGET): value for key, value in point.items() if key.startswith(BUDGET)}
        places: dict[str, Steps] = {key: ("sweep", BUDGET + key) for key in limits}
        return validate(Budget, named.limits() | limits, steps, places, self._problems)


def _fields(method: Registered) -> set[str]:
    return set(method.thing.Config.model_fields)


def _at(axis: str, config: BaseModel, budget: Budget) -> Any:
    if axis == NAMED:
        return budget.limits()
    source: BaseModel = budget if axis.startswith(BUDGET) else config
    return source.model_dump(mode="json")[axis.removeprefix(BUDGET)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
