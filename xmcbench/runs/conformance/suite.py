"""Finds the plugin of a name and the rules of its kind, and checks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.data.prepared import find_source
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.yaml_lines import parse_value
from xmcbench.plugins.registry import registry
from xmcbench.runs.conformance.plugin_rules import (
    DATASET_RULES,
    EVALUATOR_RULES,
    TEACHER_RULES,
    TRACKER_RULES,
    DatasetSubject,
    EvaluatorSubject,
    TeacherSubject,
    TrackerSubject,
)
from xmcbench.runs.conformance.rules import Result, Rule, RuleSet, outcome
from xmcbench.runs.conformance.tiny_trial import ORDINARY, load_tiny

KINDS = ("method", "evaluator", "dataset", "teacher", "tracker", "sampler")


def find_kind(name: str) -> str:
    """The kind of the plugin called `name`; methods first. Raises UnknownNameError."""
    for kind in KINDS:
        try:
            getattr(registry(), kind)(name)
        except UnknownNameError:
            continue
        return kind
    raise UnknownNameError("plugin", name, [known.name for kind in KINDS for known in registry().all(kind)])


def rules_of(kind: str) -> list[Rule[Any]]:
    """The rules of one kind of plugin."""
    if kind == "method":
        from xmcbench.runs.conformance.method_rules import OF_DUAL_ENCODERS, RULES

        return [*RULES.rules, *OF_DUAL_ENCODERS.rules]
    if kind == "sampler":
        from xmcbench.runs.conformance import sampler_rules  # imports torch

        return list(sampler_rules.RULES.rules)
    known: dict[str, RuleSet[Any]] = {
        "evaluator": EVALUATOR_RULES,
        "dataset": DATASET_RULES,
        "teacher": TEACHER_RULES,
        "tracker": TRACKER_RULES,
    }
    return list(known[kind].rules)


def make_subject(kind: str, name: str, settings: Mapping[str, Any], folder: Path, data: Path) -> Any:
    """What the rules of `kind` are checked on. Scratch files go to `folder`; datasets are read from `data`.

    Raises XMCBenchError if the plugin does not exist or the settings do not fit.
    """
    if kind == "dataset":
        return DatasetSubject(find_source(name, data), data)
    thing = getattr(registry(), kind)(name)
    if kind == "evaluator":
        return EvaluatorSubject(thing)
    if kind == "tracker":
        return TrackerSubject(thing, folder)
    if kind == "method":
        from xmcbench.runs.conformance.method_rules import MethodSubject

        return MethodSubject(thing, settings, folder)
    dataset = load_tiny(ORDINARY, folder / "data", folder / "cache")
    if kind == "teacher":
        return TeacherSubject(thing, settings, dataset)
    from xmcbench.runs.conformance.sampler_rules import SamplerSubject

    return SamplerSubject(thing, dataset.training_data())


@contextmanager
def checks(
    kind: str, name: str, settings: Mapping[str, Any], data: Path, rules: Sequence[str] = ()
) -> Iterator[Iterator[Result]]:
    """The results of all rules, or of those named, checked one by one as they are asked for.

    Raises UnknownNameError for a rule that no plugin of the kind has.
    """
    known = {rule.name: rule for rule in rules_of(kind)}
    for rule in rules:
        if rule not in known:
            raise UnknownNameError("rule", rule, known, "--rule")
    with TemporaryDirectory(prefix="xmcbench-check-") as folder:
        subject = make_subject(kind, name, settings, Path(folder), data)
        yield (outcome(known[rule], subject) for rule in rules or known)


def read_settings(sets: list[str]) -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, read as YAML; dots in a key lead into mappings."""
    settings: dict[str, Any] = {}
    for entry in sets:
        key, separator, value = entry.partition("=")
        if not (key and separator):
            raise XMCBenchError(f"--set {entry}: expected KEY=VALUE")
        inner = settings
        *outer, last = key.split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = parse_value(value, f"--set {key}")
    return settings
