"""Expands a suite file into variants: each method with every point of the sweep and every budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from xmcbench.data.extent import Extent
from xmcbench.files.yaml_lines import KeyPath, Problems, validate
from xmcbench.plugins.registry import Registered, registry
from xmcbench.suite.schema import SuiteFile
from xmcbench.trial.budget import Budget
from xmcbench.trial.method import NOT_SETTINGS, Method, code_versions

BUDGET = "budget."  # a sweep over `budget.steps` changes that limit
NAMED = "budget"  # the axis of named budgets
MAX_POINTS = 10_000  # of the sweep of one method


@dataclass(frozen=True)
class Variant:
    """A method with all its settings and a budget: a trial without a dataset and a seed."""

    label: str
    entry: str  # the method's label in the file, without the point of the sweep
    method: Registered
    versions: dict[str, int]  # of the code that its results depend on
    config: dict[str, Any]  # with the method's own defaults
    given: dict[str, Any]  # the part of it that the file says
    budget: Budget

    def value(self, axis: str) -> Any:
        """The value on an axis of the sweep."""
        if axis == NAMED:
            return self.budget.limits()
        return getattr(self.budget, axis.removeprefix(BUDGET)) if axis.startswith(BUDGET) else self.config[axis]

    def config_for(self, data: Extent | None) -> dict[str, Any]:
        """All settings on a dataset; those that the file leaves out are derived from its extent, if that is known."""
        if data is None:
            return self.config
        method: type[Method] = self.method.thing
        followed = method.following(self.given, data, self.budget)
        return method.Config.model_validate(followed).model_dump(mode="json")


class Expansion:
    """The methods of a suite file, and the settings, budgets and sweeps that apply to them."""

    def __init__(self, file: SuiteFile, problems: Problems) -> None:
        self._file, self._problems = file, problems
        self._defaults = dict(file.settings)
        self.default_places: dict[str, KeyPath] = {key: ("settings", key) for key in file.settings}
        if file.encoder is not None:
            if "encoder" in file.settings:
                problems.add(("encoder",), "given here and in settings; expected one of them")
            self._defaults["encoder"] = file.encoder
            self.default_places["encoder"] = ("encoder",)
        if (file.budget is None) == (file.budgets is None):
            problems.add((), "expected one of the keys 'budget' and 'budgets'")
        self._budgets: Mapping[str, Budget | None] = file.budgets or {"": file.budget}
        methods = {label: self._look_up(label) for label in file.methods}
        self.methods = {label: method for label, method in methods.items() if method}  # by label

    def given(self, label: str) -> dict[str, Any]:
        """The settings that the file gives a method: the shared ones that the method has, and its own."""
        names = self.methods[label].thing.Config.model_fields
        return {key: value for key, value in self._defaults.items() if key in names} | self._own(label)

    def variants(self) -> list[Variant]:
        """The variants of every method, in the file's order."""
        return [variant for label in self.methods for variant in self._variants_of(label)]

    def _own(self, label: str) -> dict[str, Any]:
        return {key: value for key, value in self._file.methods[label].items() if key not in NOT_SETTINGS}

    def _look_up(self, label: str) -> Registered | None:
        settings = self._file.methods[label]
        name = settings.get("method")
        if isinstance(name, str):
            method: Registered | None = self._problems.note(("methods", label, "method"), registry().method, name)
            return method
        problem = f"found {name!r}, expected the name of a method" if "method" in settings else "missing key 'method'"
        self._problems.add(("methods", label), problem)
        return None

    def _variants_of(self, label: str) -> Iterator[Variant]:
        """One variant per point of the sweep; points that resolve to the same settings and budget give one."""
        method = self.methods[label]
        axes = self._axes(label)
        if (points := prod(map(len, axes.values()))) > MAX_POINTS:
            self._problems.add(("sweep",), f"found {points:,} points for {label}, expected at most {MAX_POINTS:,}")
            return
        variants: dict[str, tuple[dict[str, Any], Variant]] = {}
        for combination in product(*axes.values()):
            point = dict(zip(axes, combination, strict=True))
            config, given, used_point = self._config_at(label, point)
            budget = self._budget_at(label, point)
            if config is not None and budget is not None:
                versions, settings = code_versions(method.thing, config, budget), config.model_dump(mode="json")
                variant = Variant(label, label, method, versions, settings, given, budget)
                variants.setdefault(config.model_dump_json() + budget.model_dump_json(), (used_point, variant))
        varying = [axis for axis in axes if len({_text(variant.value(axis)) for _, variant in variants.values()}) > 1]
        for point, variant in variants.values():
            tag = ",".join(f"{axis}={_text(point[axis])}" for axis in varying if axis in point)
            yield replace(variant, label=f"{label}[{tag}]") if tag else variant

    def _axes(self, label: str) -> dict[str, list[Any]]:
        """The axes of the sweep that apply to a method: limits, and settings that its own entry leaves open."""
        names, own_settings = self.methods[label].thing.Config.model_fields, self._own(label)
        axes = {
            key: values
            for key, values in self._file.sweep.items()
            if key.removeprefix(BUDGET) in Budget.model_fields or (key in names and key not in own_settings)
        }
        return axes | ({NAMED: list(self._budgets)} if self._file.budgets else {})

    def _config_at(
        self, label: str, point: dict[str, Any]
    ) -> tuple[Method.Config | None, dict[str, Any], dict[str, Any]]:
        """The configuration at one point of the sweep, what of it is given, and the part of the point with an effect.

        A shared setting or an axis without effect beside the other settings is left out; an own setting is an error.
        """
        config_type, own_settings = self.methods[label].thing.Config, self._own(label)
        swept = {key: value for key, value in point.items() if key != NAMED and not key.startswith(BUDGET)}
        values = self.given(label) | swept
        places = {key: place for key, place in self.default_places.items() if key not in own_settings}
        places |= {key: ("sweep", key) for key in swept}
        method_place: KeyPath = ("methods", label)
        config = validate(config_type, values, method_place, places, self._problems)
        unused = config.unused() if config is not None else frozenset()
        for key in unused & own_settings.keys():
            self._problems.add((*method_place, key), "has no effect with the other settings here")
        if unused & values.keys():
            values = {key: value for key, value in values.items() if key not in unused}
            config = validate(config_type, values, method_place, places, self._problems)
        return config, values, {key: value for key, value in point.items() if key not in unused}

    def _budget_at(self, label: str, point: dict[str, Any]) -> Budget | None:
        """The method's budget at one point of the sweep: its own `budget` if it has one, else the suite's."""
        name, own_budget = point.get(NAMED, ""), self._file.methods[label].get("budget")
        shared = self._budgets[name]
        if shared is None:
            return None  # the problem is already noted
        place: KeyPath = ("budgets", name) if name else ("budget",)
        base = shared.limits()
        if own_budget is not None:
            place = ("methods", label, "budget")
            if name or not isinstance(own_budget, dict):
                expected = "no budget of its own beside the key 'budgets'" if name else "a mapping of limits"
                self._problems.add(place, f"found {own_budget!r}, expected {expected}")
                return None
            base = own_budget
        limits = {key.removeprefix(BUDGET): value for key, value in point.items() if key.startswith(BUDGET)}
        places: dict[str, KeyPath] = {key: ("sweep", BUDGET + key) for key in limits}
        return validate(Budget, base | limits, place, places, self._problems)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
