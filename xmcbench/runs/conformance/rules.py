"""A rule of a contract: its sentence, where it is written, a check, and how to mend what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import InvalidPredictions

PAGE = "docs/writing-a-plugin.md"


class BrokenRuleError(XMCBenchError):
    """A plugin broke a rule; the message says what was found."""


class NotApplicableError(XMCBenchError):
    """A rule does not apply to this plugin, or cannot be checked here; the message says why."""


def require(kept: bool, found: str) -> None:
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
