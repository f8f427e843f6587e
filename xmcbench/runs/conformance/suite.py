"""Finds the plugin of a name and the rules of its kind, and checks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xmcbench.data.prepared import find_source
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.files.yaml_lines import parse_value
from xmcbench.plugins.registry import registry
from xmcbench.runs.conformance.rules import Result, Rule, Subject, outcome

# By kind: the module beside this one, and its class of what the rules are checked on. Those of methods and samplers
# import torch.
HOMES = {
    "method": ("method_rules", "MethodSubject"),
    "evaluator": ("plugin_rules", "EvaluatorSubject"),
    "dataset": ("plugin_rules", "DatasetSubject"),
    "teacher": ("plugin_rules", "TeacherSubject"),
    "tracker": ("plugin_rules", "TrackerSubject"),
    "sampler": ("sampler_rules", "SamplerSubject"),
}


def find_kind(name: str) -> str:
    """The kind of the plugin called `name`; methods first. Raises UnknownNameError."""
    for kind in HOMES:
        try:
            registry().thing(kind, name)
        except UnknownNameError:
            continue
        return kind
    raise UnknownNameError("plugin", name, [known.name for kind in HOMES for known in registry().all(kind)])


def _home(kind: str) -> type[Subject]:
    module, name = HOMES[kind]
    home: type[Subject] = getattr(import_module(f"xmcbench.runs.conformance.{module}"), name)
    return home


def rules_of(kind: str) -> list[Rule]:
    """The rules of one kind of plugin."""
    home = _home(kind)
    rules = (each for each in vars(home).values() if isinstance(each, Rule))
    return [replace(rule, section=rule.section or home.section) for rule in rules]


def make_subject(kind: str, name: str, settings: Mapping[str, Any], folder: Path, data: Path) -> Subject:
    """What the rules of `kind` are checked on. Scratch files go to `folder`; datasets are read from `data`.

    Raises XMCBenchError if the plugin does not exist or the settings do not fit.
    """
    thing = find_source(name, data) if kind == "dataset" else registry().thing(kind, name)
    return _home(kind)(thing, settings, folder, data)


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
