"""Checks of a suite file beyond types: that every name in it exists and every setting has an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xmcbench.data import find_source
from xmcbench.errors import suggest
from xmcbench.evaluation import find_evaluators
from xmcbench.files.yaml_lines import KeyPath, Problems, validate
from xmcbench.plugins.registry import Registered
from xmcbench.suite.expansion import BUDGET, Expansion, Variant
from xmcbench.suite.schema import SuiteFile
from xmcbench.suite.tables import COLUMNS, Target
from xmcbench.suite.tuning import Range
from xmcbench.trial.budget import CAPS, Budget


def check_names(file: SuiteFile, data_dir: Path, problems: Problems, on_disk: bool) -> None:
    """Datasets exist (with `on_disk`, their files too), and so do all metrics."""
    for i, name in enumerate(file.datasets):
        source = problems.note(("datasets", i), find_source, name, data_dir)
        if on_disk and source is not None and (message := source.missing(data_dir)):
            problems.add(("datasets", i), message)
    for i, name in enumerate(file.metric_names):
        problems.note(("metrics", i), find_evaluators, [name])
    for title, shape in file.tables.items():
        for i, name in enumerate(shape.columns):
            if "@" in name:
                target = Target.parse(name)
                metric = target.metric if target else name
                problems.note(("tables", title, "columns", i), find_evaluators, [metric])
    if file.selection:
        problems.note(("selection", "metric"), find_evaluators, [file.selection.metric])
        if file.track == "zero-shot":
            problems.add(("selection",), "needs training annotations, which track: zero-shot hides")


def check_methods(file: SuiteFile, expansion: Expansion, problems: Problems) -> None:
    """Every shared setting, sweep, table and search space has an effect on a method of the file."""
    methods = expansion.methods
    known = {name for method in methods.values() for name in method.thing.Config.model_fields}
    for key, place in expansion.default_places.items():
        if key not in known:
            problems.add(place, f"no method here has this setting{suggest(key, known)}")
    axes = known | {BUDGET + limit for limit in Budget.model_fields}
    for key, values in file.sweep.items():
        if key not in axes:
            problems.add(("sweep", key), f"no method here has this setting{suggest(key, axes)}")
        if not values:
            problems.add(("sweep", key), "found no values, expected at least one")
    _check_tables(file, known, problems)
    _check_tune(file, expansion, problems)


def check_track(file: SuiteFile, variants: Sequence[Variant], problems: Problems) -> None:
    """No method of the zero-shot track asks for training annotations."""
    if file.track != "zero-shot":
        return
    for variant in variants:
        kind = variant.method.thing
        if kind.needs_annotations(kind.Config.model_validate(variant.config)):
            problems.add(
                ("methods", variant.entry),
                f"{variant.method.name} learns from training annotations, which track: zero-shot hides; "
                "docs/methods.md lists methods that learn without them",
            )


def check_equal(file: SuiteFile, variants: Sequence[Variant], problems: Problems) -> None:
    """With the key `equal`, every budget has exactly that limit."""
    if file.equal is None:
        return
    stops = [name for name in Budget.model_fields if name not in CAPS]
    if file.equal not in stops:
        problems.add(("equal",), f"unknown limit {file.equal!r}{suggest(file.equal, stops)}")
        return
    for others in {tuple(variant.budget.spending()) for variant in variants} - {(file.equal,)}:
        problems.add(("equal",), f"every budget must stop at {file.equal} alone, found one of {', '.join(others)}")


def _check_tables(file: SuiteFile, settings: set[str], problems: Problems) -> None:
    known = settings | COLUMNS.keys()
    for title, shape in file.tables.items():
        for i, label in enumerate(shape.methods or ()):
            if label not in file.methods:
                message = f"unknown method label {label!r}{suggest(label, file.methods)}"
                problems.add(("tables", title, "methods", i), message)
        for i, name in enumerate(shape.columns):
            if "@" not in name and name not in known:
                problems.add(("tables", title, "columns", i), f"unknown column {name!r}{suggest(name, known)}")


def _check_tune(file: SuiteFile, expansion: Expansion, problems: Problems) -> None:
    tune, selection, methods = file.tune, file.selection, expansion.methods
    if tune is None:
        return
    if selection is None:
        problems.add(("tune",), "chooses by held-out training queries, expected the key 'selection' too")
    elif tune.metric not in (None, selection.metric, *file.metric_names):
        problems.add(("tune", "metric"), f"{tune.metric!r} is neither the selection's nor one of metrics")
    for label in methods.keys() - tune.space.keys():
        message = f"missing {label!r}: every method gets the same tuning budget ({label}: {{}} tunes nothing)"
        problems.add(("tune", "space"), message)
    for label, space in tune.space.items():
        if label not in methods:
            problems.add(("tune", "space", label), f"unknown method label {label!r}{suggest(label, methods)}")
            continue
        for setting, values in space.items():
            if setting in file.sweep:
                problems.add(("tune", "space", label, setting), "is swept as well: expected one of them")
                continue
            examples = [values.low, values.high] if isinstance(values, Range) else values
            _check_values(expansion.given(label), methods[label], ("tune", "space", label, setting), examples, problems)


def _check_values(
    given: Mapping[str, Any], method: Registered, place: KeyPath, values: Sequence[Any], problems: Problems
) -> None:
    """The setting at `place` exists, and has an effect with each of `values` beside the `given` settings."""
    setting, names = str(place[-1]), method.thing.Config.model_fields
    if setting not in names:
        problems.add(place, f"the method has no such setting{suggest(setting, names)}")
    elif not problems:  # problems of the given settings would be repeated here
        for value in values:
            config = validate(method.thing.Config, {**given, setting: value}, place, {setting: place}, problems)
            if config is not None and setting in config.unused():
                problems.add(place, "has no effect with the other settings here")
