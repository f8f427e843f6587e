"""A suite: the YAML file that says what to compare, read into trials. `docs/suites.md` explains every key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.budget import Budget
from xmcbench.data import find_source
from xmcbench.errors import UnknownNameError, XMCBenchError, suggest
from xmcbench.evaluation import DEFAULT_METRICS, parse_metric
from xmcbench.located import Located, Steps, parse_value, read
from xmcbench.method import Method
from xmcbench.plugins import Registered, Registry
from xmcbench.trial import Selection, Trial
from xmcbench.validation import Problems, validate

BUDGET = "budget."  # a sweep over `budget.steps` changes that limit


class SuiteFile(BaseModel):
    """The keys of a suite file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="name of the suite, kept in its records")
    datasets: list[str] = Field(min_length=1, description="names that `xmcbench datasets` lists")
    encoder: str | dict[str, Any] | None = Field(None, description="short for the setting `encoder`")
    seeds: list[int] = Field([0], min_length=1, description="one trial each")
    budget: Budget = Field(description="what training may spend")
    methods: dict[str, dict[str, Any]] = Field(min_length=1, description="label: {method: NAME, its settings}")
    settings: dict[str, Any] = Field({}, description="settings of every method that has them")
    sweep: dict[str, list[Any]] = Field({}, description="setting: values; every combination is a trial")
    selection: Selection | None = Field(None, description="training queries held out to choose a checkpoint")
    metrics: list[str] = Field(list(DEFAULT_METRICS), min_length=1, description="figures of the leaderboard")
    timeout: float = Field(86400, gt=0, description="wall-clock seconds after which a trial is killed")


@dataclass(frozen=True)
class Variant:
    """A method with all its settings and a budget: a trial before it has a dataset and a seed."""

    label: str
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
            )
            for dataset in self.datasets
            for variant in self.variants
            for seed in self.seeds
        ]


def load_suite(
    path: Path, registry: Registry, data_dir: Path, sets: Sequence[str] = (), datasets: Sequence[str] = ()
) -> Suite:
    """Read a suite file, with `--set` and `--dataset` in place of what it says. Names every problem, a line each."""
    located = read(path)
    for setting in sets:
        _override(located, setting)
    if datasets:
        _put(located, ("datasets",), list(datasets), "--dataset")
    problems = Problems(located)
    file = validate(SuiteFile, located.data, (), {}, problems)
    problems.check()
    assert file is not None
    _check_names(file, registry, data_dir, problems)
    variants = _Expansion(file, registry, problems).variants()
    problems.check()
    return Suite(file.name, file.datasets, file.seeds, variants, file.selection, file.metrics, file.timeout)


def _check_names(file: SuiteFile, registry: Registry, data_dir: Path, problems: Problems) -> None:
    evaluators = {found.name: found.thing for found in registry.all("evaluator")}
    for i, name in enumerate(file.datasets):
        source = _note(problems, ("datasets", i), find_source, name, data_dir, registry)
        if source is not None and (message := source.missing(data_dir)):
            problems.add(("datasets", i), message)
    for i, name in enumerate(file.metrics):
        _note(problems, ("metrics", i), parse_metric, name, evaluators)
    if file.selection:
        _note(problems, ("selection", "metric"), parse_metric, file.selection.metric, evaluators)


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

    def variants(self) -> list[Variant]:
        """The variants of every method of the file, in its order."""
        found = {label: self._method(label) for label in self._file.methods}
        if all(found.values()):
            self._check_settings({field for method in found.values() if method for field in _fields(method)})
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

    def _of(self, label: str, method: Registered) -> Iterator[Variant]:
        """The variants of one method: a point of the sweep each, those that resolve to the same settings once."""
        own = {key: value for key, value in self._file.methods[label].items() if key != "method"}
        fields = _fields(method)
        axes = {
            key: values
            for key, values in self._file.sweep.items()
            if key.removeprefix(BUDGET) in Budget.model_fields or (key in fields and key not in own)
        }
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
        swept = {key: value for key, value in point.items() if not key.startswith(BUDGET)}
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
        limits = {key.removeprefix(BUDGET): value for key, value in point.items() if key.startswith(BUDGET)}
        places: dict[str, Steps] = {key: ("sweep", BUDGET + key) for key in limits}
        return validate(Budget, self._file.budget.limits() | limits, ("budget",), places, self._problems)


def _fields(method: Registered) -> set[str]:
    return set(method.thing.Config.model_fields)


def _at(axis: str, config: BaseModel, budget: Budget) -> Any:
    source: BaseModel = budget if axis.startswith(BUDGET) else config
    return source.model_dump(mode="json")[axis.removeprefix(BUDGET)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _override(located: Located, setting: str) -> None:
    """Put `key=value` of a `--set` in its place; a key that the file could not hold is an error of the option."""
    key, equals, text = setting.partition("=")
    where = f"--set {setting}"
    if not equals or not key:
        raise XMCBenchError(f"{where}: expected key=value")
    steps = _steps(key, located.data)
    if steps[0] not in SuiteFile.model_fields:
        known = {*SuiteFile.model_fields, *(f"settings.{name}" for name in located.data.get("settings") or ())}
        raise UnknownNameError("key", key, known, where)
    if steps[0] == "methods" and (len(steps) < 3 or steps[1] not in located.data.get("methods", {})):
        labels = located.data.get("methods") or {}
        raise UnknownNameError("method label", str(steps[1] if len(steps) > 1 else ""), map(str, labels), where)
    _put(located, steps, parse_value(text, where), where)


def _steps(key: str, data: Any) -> tuple[str, ...]:
    """The way a dotted key leads through `data`; a name that has dots itself is found whole."""
    steps: list[str] = []
    while key:
        known = [name for name in data if key == name or key.startswith(f"{name}.")] if isinstance(data, dict) else []
        step = max(known, key=len) if known else key if steps == ["sweep"] else key.split(".")[0]
        steps.append(step)
        key = key[len(step) + 1 :]
        data = data.get(step) if isinstance(data, dict) else None
    return tuple(steps)


def _put(located: Located, steps: tuple[str, ...], value: Any, where: str) -> None:
    data = located.data
    for i, step in enumerate(steps[:-1]):
        if data.get(step) is None:
            data[step] = {}
            located.places[steps[: i + 1]] = where
        data = data[step]
        if not isinstance(data, dict):
            raise XMCBenchError(f"{where}: {'.'.join(steps[: i + 1])} is {data!r}, which holds no keys")
    data[steps[-1]] = value
    located.places = {place: line for place, line in located.places.items() if place[: len(steps)] != steps}
    located.places[steps] = where
