"""What trials a suite file stands for: its settings and sweeps, resolved into methods with budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from xmcbench.errors import suggest
from xmcbench.files.validation import Problems, validate
from xmcbench.files.yaml_lines import Steps
from xmcbench.plugins.registry import Registered, registry
from xmcbench.reporting.columns import COLUMNS
from xmcbench.suite.tuning import Range
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import Method

if TYPE_CHECKING:
    from xmcbench.suite.suite import SuiteFile

BUDGET = "budget."  # a sweep over `budget.steps` changes that limit
NAMED = "budget"  # the axis of named budgets
NOT_SETTINGS = ("method", "budget")  # keys of a method in a suite file that its `Config` does not have


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


class Expansion:
    """Settings, defaults and sweeps of a suite file, resolved into variants."""

    def __init__(self, file: SuiteFile, problems: Problems) -> None:
        self._file, self._problems = file, problems
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
            found: Registered | None = self._problems.note(("methods", label, "method"), registry().method, name)
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
                if "@" not in name and name not in known:
                    found = f"unknown column {name!r}{suggest(name, known)}"
                    self._problems.add(("tables", title, "columns", i), found)

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
            said = self._said(label, fields)
            for value in values:
                place = {setting: steps}
                config = validate(method.thing.Config, {**said, setting: value}, steps, place, self._problems)
                if config is not None and setting in config.unused():
                    self._problems.add(steps, "means nothing beside the other settings here")

    def _of(self, label: str, method: Registered) -> Iterator[Variant]:
        """The variants of one method: a point of the sweep each, those that resolve to the same settings once."""
        fields, own = _fields(method), self._file.methods[label]
        axes = {
            key: values
            for key, values in self._file.sweep.items()
            if key.removeprefix(BUDGET) in Budget.model_fields or (key in fields and key not in own)
        }
        if self._file.budgets:
            axes[NAMED] = list(self._budgets)
        values = self._said(label, fields)
        resolved: dict[str, tuple[dict[str, Any], Method.Config, Budget]] = {}
        for combination in product(*axes.values()):
            point = dict(zip(axes, combination, strict=True))
            config, meant = self._configure(label, method, values, point)
            budget = self._limit(label, point)
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

    def _said(self, label: str, fields: set[str]) -> dict[str, Any]:
        """The settings of a method that the file says: the shared ones that it has, and its own."""
        own = {key: value for key, value in self._file.methods[label].items() if key not in NOT_SETTINGS}
        return {key: value for key, value in self._defaults.items() if key in fields} | own

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

    def _limit(self, label: str, point: dict[str, Any]) -> Budget | None:
        """The method's budget at one point of the sweep: its own `budget` if it has one, else the suite's."""
        name, own = point.get(NAMED, ""), self._file.methods[label].get("budget")
        named = self._budgets[name]
        if named is None:
            return None  # which was noted
        steps: Steps = ("budgets", name) if name else ("budget",)
        base = named.limits()
        if own is not None:
            steps = ("methods", label, "budget")
            if name or not isinstance(own, dict):
                expected = "no budget of its own beside the key 'budgets'" if name else "a mapping of limits"
                self._problems.add(steps, f"found {own!r}, expected {expected}")
                return None
            base = own
        limits = {key.removeprefix(BUDGET): value for key, value in point.items() if key.startswith(BUDGET)}
        places: dict[str, Steps] = {key: ("sweep", BUDGET + key) for key in limits}
        return validate(Budget, base | limits, steps, places, self._problems)


def _fields(method: Registered) -> set[str]:
    return set(method.thing.Config.model_fields)


def _at(axis: str, config: BaseModel, budget: Budget) -> Any:
    if axis == NAMED:
        return budget.limits()
    source: BaseModel = budget if axis.startswith(BUDGET) else config
    return source.model_dump(mode="json")[axis.removeprefix(BUDGET)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
