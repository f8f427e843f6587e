"""A rule of a contract: its sentence, where it is written, a check, and how to mend what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import InvalidPredictions

PAGE = "docs/writing-a-plugin.md"

S = TypeVar("S")


class BrokenRuleError(XMCBenchError):
    """A plugin broke a rule; the message says what was found."""


class NotApplicableError(XMCBenchError):
    """A rule does not apply to this plugin, or cannot be checked here; the message says why."""


def require(kept: bool, found: str) -> None:
    """Raise `BrokenRuleError` with what was found, unless the rule is kept."""
    if not kept:
        raise BrokenRuleError(found)


@dataclass(frozen=True)
class Rule(Generic[S]):
    """One rule. `check` is given the subject: the plugin, and the data that it is tried on."""

    sentence: str
    section: str  # the heading of `PAGE` under which the rule is written
    remedy: str
    check: Callable[[S], None]

    @property
    def name(self) -> str:
        """The name of the check, as in "predictions-do-not-depend-on-order"."""
        return self.check.__name__.replace("_", "-")


@dataclass(frozen=True)
class Result:
    """The outcome of one check: `found` is None if the rule is kept."""

    rule: Rule[Any]
    found: str | None = None
    skipped: str = ""  # why the check was not made

    @property
    def explanation(self) -> str:
        """Which sentence is broken, what was found, where the sentence is written, and how to mend it; four lines."""
        return (
            f"found: {self.found}\nrule: {self.rule.sentence}\n"
            f'written: {PAGE}, section "{self.rule.section}"\nmend: {self.rule.remedy}'
        )


@dataclass(frozen=True)
class RuleSet(Generic[S]):
    """The rules of one kind of plugin, in the order in which they are checked."""

    section: str
    rules: list[Rule[S]] = field(default_factory=list)

    def rule(self, sentence: str, remedy: str) -> Callable[[Callable[[S], None]], Rule[S]]:
        """Decorate a check, to add it as a rule."""

        def add(check: Callable[[S], None]) -> Rule[S]:
            rule = Rule(sentence, self.section, remedy, check)
            self.rules.append(rule)
            return rule

        return add


def outcome(rule: Rule[S], subject: S) -> Result:
    """Check one rule. Whatever the plugin raises breaks the rule."""
    try:
        rule.check(subject)
    except NotApplicableError as reason:
        return Result(rule, skipped=str(reason))
    except (BrokenRuleError, InvalidPredictions) as problem:
        return Result(rule, found=str(problem))
    except Exception as problem:
        return Result(rule, found=f"{type(problem).__name__}: {problem}{_place(problem)}")
    return Result(rule)


def _place(problem: BaseException) -> str:
    """The line that raised, as in " (my_method.py:12)"."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
