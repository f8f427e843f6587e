"""A rule of a contract: its sentence, where it is written, a check, and how to mend what breaks it.

`checks` finds the plugin of a name and the rules of its kind, and checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import Any, ClassVar

from xmcbench.data.prepared import find_source
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation import InvalidPredictions
from xmcbench.files.yaml_lines import parse_value
from xmcbench.plugins.registry import registry

PAGE = "docs/writing-a-plugin.md"
KINDS = ("method", "evaluator", "dataset", "teacher", "tracker", "sampler")  # in the order in which names are looked up


class BrokenRuleError(XMCBenchError):
    """A plugin broke a rule; the message says what was found."""


class NotApplicableError(XMCBenchError):
    """A rule does not apply to this plugin, or cannot be checked here; the message says why."""


def require(kept: object, found: str) -> None:
    """Raise `BrokenRuleError` with what was found, unless the rule is kept."""
    if not kept:
        raise BrokenRuleError(found)


@dataclass(frozen=True)
class Rule:
    """One rule. `check` is given the subject."""

    check: Callable[[Any], None]
    sentence: str
    remedy: str
    section: str = ""  # the heading of `PAGE` under which the rule is written; empty: the subject's

    @property
    def name(self) -> str:
        """The name of the check, as in "predictions-do-not-depend-on-order"."""
        return self.check.__name__.replace("_", "-")


@dataclass(frozen=True)
class Result:
    """The outcome of one check: `found` is None if the rule is kept."""

    rule: Rule
    found: str | None = None
    skipped: str = ""  # why the check was not made

    @property
    def explanation(self) -> str:
        """Which sentence is broken, what was found, where the sentence is written, and how to mend it; four lines."""
        return (
            f"found: {self.found}\nrule: {self.rule.sentence}\n"
            f'written: {PAGE}, section "{self.rule.section}"\nmend: {self.rule.remedy}'
        )


def rule(sentence: str, remedy: str, section: str = "") -> Callable[[Callable[[Any], None]], Rule]:
    """Decorate a method of a `Subject`, a check, to make it a rule."""
    return partial(Rule, sentence=sentence, remedy=remedy, section=section)


@dataclass
class Subject:
    """What the rules of a kind are checked on: a plugin with settings, a scratch folder, and the folder of datasets.

    A subclass has the rules, in the order in which they are checked. Making one raises XMCBenchError where the settings
    do not fit.
    """

    thing: Any
    settings: Mapping[str, Any]
    folder: Path
    data: Path
    section: ClassVar[str]  # the heading of `PAGE` under which the rules are written


def outcome(rule: Rule, subject: Subject) -> Result:
    """Check one rule. Whatever the plugin raises breaks the rule."""
    try:
        rule.check(subject)
    except NotApplicableError as reason:
        return Result(rule, skipped=str(reason))
    except (BrokenRuleError, InvalidPredictions) as problem:
        return Result(rule, found=str(problem))
    except Exception as problem:
        *_, (frame, line) = walk_tb(problem.__traceback__)
        place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{line}"
        return Result(rule, found=f"{type(problem).__name__}: {problem} ({place})")
    return Result(rule)


def find_kind(name: str) -> str:
    """The kind of the plugin called `name`; methods first. Raises UnknownNameError."""
    for kind in KINDS:
        try:
            registry().thing(kind, name)
        except UnknownNameError:
            continue
        return kind
    raise UnknownNameError("plugin", name, [known.name for kind in KINDS for known in registry().all(kind)])


def _home(kind: str) -> type[Subject]:
    """The class of what the rules of `kind` are checked on."""
    home = import_module("xmcbench_plugins.conformance." + ("method_rules" if kind == "method" else "plugin_rules"))
    found: type[Subject] = getattr(home, f"{kind.title()}Subject")
    return found


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
