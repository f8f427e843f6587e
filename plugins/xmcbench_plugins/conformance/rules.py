"""A rule of a contract: its sentence, where it is written, a check, and how to mend what breaks it.

`checks` finds the plugin of a name and the rules of its kind, and checks them.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from xmcbench.data.prepared import find_source
from xmcbench.errors import UnknownNameError, XMCBenchError, place_of
from xmcbench.evaluation import InvalidPredictions
from xmcbench.files.yaml_lines import parse_value
from xmcbench.plugins.hookspecs import GROUP
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
    after: tuple[str, ...] = ()  # rules without which this one says nothing: it is not tried where one is broken
    first: bool = False  # a broken rule is the cause of all that is found later: no other is tried
    warns: bool = False  # what it finds may be meant: it is told, and breaks nothing

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
    remedy: str = ""  # of what was found, where it is another than the rule's
    not_tried: int = 0  # rules that are not tried for what was found

    @property
    def broken(self) -> bool:
        """Whether what was found breaks the rule."""
        return self.found is not None and not self.rule.warns

    @property
    def explanation(self) -> str:
        """Which sentence is broken, what was found, where the sentence is written, and how to mend it; four lines."""
        others = f"; {self.not_tried} rules were not tried" if self.not_tried else ""
        return (
            f"found: {self.found}{others}\nrule: {self.rule.sentence}\n"
            f'written: {PAGE}, section "{self.rule.section}"\nmend: {self.remedy or self.rule.remedy}'
        )


def rule(sentence: str, remedy: str, section: str = "", **more: Any) -> Callable[[Callable[[Any], None]], Rule]:
    """Decorate a method of a `Subject`, a check, to make it a rule; `more` are fields of `Rule`."""
    return partial(Rule, sentence=sentence, remedy=remedy, section=section, **more)


# What exceptions say, and how to mend the cause, where that is not what the broken rule is about.
REMEDIES = (
    (r"kth\(=\d+\) out of bounds", "k may be as large as the number of labels: rank with xmcbench.evaluation.rank, or "
     "call argpartition only for a smaller k"),
    (r"'(list|tuple)' object has no attribute '(ndim|shape|dtype|astype)'", "give Predictions arrays of numpy: rank "
     "with xmcbench.evaluation.rank, or write np.asarray(..., np.int32) and np.asarray(..., np.float32)"),
    (r"(fit|predict|save|load)\(\) (takes|missing) \d", "define fit(self, train, run), predict(self, texts, k), "
     "save(self, directory) and load(self, directory)"),
    (r"FileNotFoundError", "write what predict needs into the folder that save gets, read it from the one that load "
     "gets, and keep nothing in the home folder"),
    (r"of [\d.]+ GB", "save what predict needs: no training texts, no state of an optimiser"),
    (r"pickle|allow_pickle", "write arrays of numbers with numpy.savez or safetensors, and everything else as JSON"),
    (r"not JSON serializable", "write numbers and texts as JSON: int(...), float(...) or .tolist() of what numpy made"),
    (r"no attribute '(train|targets|texts)'", "a loaded model has no training data: save what predict needs"),
    (r"No module named", "install the package, name it in pyproject.toml, and name its module in late_imports"),
)  # fmt: skip


def remedy_of(found: str) -> str:
    """How to mend what an exception says; empty where nobody knows."""
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, found)), "")


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

    @property
    def files(self) -> Collection[Path]:
        """The files of the plugin's code."""
        return ()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute the block in one thread: waiting for others, tiny matrices take up to ten times the processor time."""
    name, torch = "OMP_NUM_THREADS", sys.modules.get("torch")
    before, threads = os.environ.get(name), torch.get_num_threads() if torch else 1
    os.environ[name] = "1"  # of what is imported in the block
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
        if torch:
            torch.set_num_threads(threads)


def outcome(rule: Rule, subject: Subject) -> Result:
    """Check one rule. Whatever the plugin raises breaks the rule."""
    try:
        with one_thread():
            rule.check(subject)
    except NotApplicableError as reason:
        return Result(rule, skipped=str(reason))
    except (BrokenRuleError, InvalidPredictions) as problem:
        return Result(rule, found=str(problem), remedy=remedy_of(str(problem)))
    except Exception as problem:
        text = " ".join(f"{type(problem).__name__}: {problem}".split())
        return Result(rule, found=f"{text} ({place_of(problem, subject.files)})", remedy=remedy_of(text))
    return Result(rule)


def outcomes(rules: Sequence[Rule], subject: Subject) -> Iterator[Result]:
    """Check rules in their order. What follows from a broken one is not tried: the first cause is told, and once."""
    broken: set[str] = set()
    for number, rule in enumerate(rules, 1):
        if causes := sorted(broken.intersection(rule.after)):
            yield Result(rule, skipped=f"not tried, as {causes[0]} is broken")
            continue
        result = outcome(rule, subject)
        broken |= {rule.name} if result.broken else set()
        if rule.first and result.broken:
            yield replace(result, not_tried=len(rules) - number)
            return
        yield result


def find_kind(name: str) -> str:
    """The kind of the plugin called `name`; methods first. Raises UnknownNameError."""
    for kind in KINDS:
        try:
            registry().thing(kind, name)
        except UnknownNameError:
            continue
        return kind
    unknown = UnknownNameError("plugin", name, [known.name for kind in KINDS for known in registry().all(kind)])
    reasons = [f"; {broken.name} of {broken.distribution} is broken: {broken.reason}" for broken in registry().broken]
    reasons += [f"; {folder} is not installed: pip install -e {folder}" for folder in not_installed(Path.cwd())]
    usual = "; a package of yours has to be installed: pip install -e FOLDER; a file: XMCBENCH_PLUGIN_FILES=FILE"
    unknown.args = (f"{unknown}{''.join(reasons) or usual}",)
    raise unknown


def not_installed(folder: Path) -> list[str]:
    """`folder` and those in it that hold the package of a plugin which is not installed."""
    found = []
    for path in (folder / "pyproject.toml", *sorted(folder.glob("*/pyproject.toml"))):
        with suppress(OSError, ValueError):
            project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
            if any(group.partition(".")[0] == GROUP for group in project.get("entry-points", {})):
                try:
                    distribution(project["name"])
                except PackageNotFoundError:
                    found.append(path.parent)
    return ["." if path == folder else f"./{path.name}" for path in found]


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
        yield outcomes([known[rule] for rule in rules or known], subject)


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
