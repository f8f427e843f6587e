"""Labels of submissions that say what a trial is: no other method's name, no other value of a setting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from xmcbench.errors import UnknownNameError, shown
from xmcbench.plugins.registry import OWN, registry
from xmcbench.reporting.curated import NamedMethod, methods, stem
from xmcbench.reporting.numbers import folded
from xmcbench.trial.record_fields import walk
from xmcbench.trial.trial import Trial

ABSENT = "no such setting"
ALIKE = str.maketrans("015i", "olsl")  # digits and letters that are read as others


def label_problems(trial: Trial) -> Iterator[str]:
    """What in a label is not true of its trial."""
    first = stem(trial.label)
    if owner := _owner(first, trial):
        yield f"its label is {shown(trial.label)}, the name of another method: {owner}"
    for axis, said in _swept(trial.label):
        value: object = trial.config
        for part in axis.split("."):
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        if axis.partition(".")[0] != "budget" and not isinstance(value, dict | list) and value != said:
            yield f"its label says {shown(axis)} is {shown(said)}, its settings have {shown(value)}"


def _owner(first: str, trial: Trial) -> str:
    """The other method that a label names or begins with, unless the settings name it too; empty if there is none."""
    words = re.findall(r"[^\W_]+", first)
    beginnings = {_read("".join(words[:count])) for count in range(1, len(words) + 1)}
    used = {text for text, _ in walk(trial.config) if isinstance(text, str)} | {trial.method}
    for method in methods().methods:
        names = {_read(name) for name in (method.name, method.plugin, *method.labels) if name}
        own = method.plugin or method.of
        named = _read(first) in names and own != trial.method
        if (named or (names & beginnings and own not in used)) and not _foreign(method, trial):
            return method.name
    try:
        registry().method(first)
    except UnknownNameError:
        return ""
    return first if first != trial.method else ""


def _foreign(method: NamedMethod, trial: Trial) -> bool:
    """Whether the trial may be of somebody's plugin for a method that xmcbench knows by its printed figures alone."""
    return trial.distribution != OWN and not (method.plugin or method.of)


def _read(name: str) -> str:
    """A name as a hurried reader sees it."""
    return folded(name).translate(ALIKE).replace("rn", "m").replace("vv", "w")


def _swept(label: str) -> Iterator[tuple[str, object]]:
    """The settings that a label of a sweep names, with their values."""
    for pair in re.split(r",(?=[\w.]+=)", label.partition("[")[2].removesuffix("]")):
        axis, equals, text = pair.partition("=")
        if equals:
            try:
                yield axis, json.loads(text)
            except json.JSONDecodeError:
                yield axis, text
