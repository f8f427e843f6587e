"""Documents whose numbers and comparisons come from accepted records: templates in `benchmarks/templates/`.

A template is the document with expressions in place of its numbers (Jinja's syntax; `studies.py` has what they ask):

    {{ titles["sparse-ranker"]["P@5"] }}                      a metric, in per cent
    {% set gap = titles["prime"].over("parabel", "P@5") %}    a difference of two methods
    {{ gap | says("beats", "equals", "trails") }}             the first of these words that the records bear out
    {{ gap.points }}                                          its size in points

A word of comparison stands in `says` or `clauses`, which check it, and a number in no text: `hand_written.py` finds
both. Every mistake is a line with template, line, what was asked and the nearest valid name; then nothing is written.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import Any

import jinja2
from claims_document import written_claims
from findings_tables import (
    CHANGE,
    OLDER,
    SHARES,
    along,
    compared,
    encoders,
    headline,
    heads,
    listed,
    moved,
    rivals,
    summary,
    table,
    under_tracks,
    words_read,
)
from jinja2.runtime import Context, Macro
from studies import EQUAL, LATE, STUDIES, Board, Boards, Gap, Method
from words import (
    FORMATS,
    best,
    clauses,
    converged,
    correlations,
    cut,
    everywhere,
    joined,
    says,
    spread,
    throughout,
    weak,
)

from xmcbench.data import find_source
from xmcbench.errors import XMCBenchError, suggest
from xmcbench.evaluation.bootstrap import LEVEL
from xmcbench_plugins.board.curated import dataset_facts

TEMPLATES = Path(__file__).parent / "templates"
SHOWN = "benchmarks/templates/"
NEVER_FILLED = ("|", "#", "!", "<", "```", "    ")  # starts of lines that are no prose
OWN_LINE = (*NEVER_FILLED, "- ")


class Missing(jinja2.ChainableUndefined):
    """Stands for what an expression did not find, so that the rest of the document is read too."""

    def __call__(self, *_: object, **__: object) -> Missing:  # type: ignore[override]
        return self

    def __str__(self) -> str:
        return "?"


class Checked(Context):
    """Calls whose mistakes are noted with their line; the text of a macro has no blank ends."""

    def call(self, __obj: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        environment: Any = self.environment
        found = environment.noted(super().call, __obj, *args, **kwargs)
        return found.strip() if isinstance(__obj, Macro) and isinstance(found, str) else found


class Statements(jinja2.Environment):
    """What the expressions of templates may ask. Collects problems, each one line."""

    context_class = Checked

    def __init__(self, boards: Boards, templates: Path = TEMPLATES) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined,
            loader=jinja2.FileSystemLoader(templates),
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
            extensions=["jinja2.ext.do"],
        )
        self.boards, self.problems = boards, list[str]()
        studies = {study.name.replace("-", "_"): boards[study] for study in STUDIES.values()}
        shares = dict(zip(("early", "later", "whole"), SHARES, strict=True))
        functions = (
            table,
            rivals,
            along,
            listed,
            heads,
            compared,
            under_tracks,
            moved,
            encoders,
            words_read,
            self.gaps,
            self.leaders,
        )
        self.globals |= studies | shares | {function.__name__: function for function in functions}
        self.globals |= {
            "main": boards.main,
            "has": boards.has,
            "suite": boards.suite,
            "of_suite": boards.of_suite,
            "late_start": LATE,
            "summary": lambda: summary(boards),
            "headline": lambda: headline(boards),
            "ended_early": [own for board in boards.main for own in board.ended_early],
            "dataset": Sizes,
            "claims": written_claims(),
            "level": f"{100 * LEVEL:.0f} %",
            "equal_within": f"{100 * EQUAL:g}",
            "older_mark": OLDER,
            "late": 1 - LATE,
            "less_budget": 1 - CHANGE,
        }
        filters = (says, clauses, best, converged, weak, throughout, correlations, joined, cut, spread)
        self.filters |= FORMATS | {function.__name__: function for function in filters}
        self.filters = {name: self._filter(function) for name, function in self.filters.items()}

    def noted(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What `function` returns; where it raises `XMCBenchError`, that is a problem of the line, and `Missing`."""
        if any(isinstance(own, Missing) for own in arguments):
            return Missing()
        try:
            return function(*arguments, **named)
        except XMCBenchError as problem:
            self.problems.append(f"{self._line()}: {problem}")
            return Missing()

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Items, and for Jinja's `map(attribute=...)` attributes of what raises on unknown items."""
        if isinstance(obj, Board | Method) and isinstance(argument, str) and hasattr(obj, argument):
            return getattr(obj, argument)
        return self.noted(super().getitem, obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.noted(super().getattr, obj, attribute)

    def made(self, template: str, **more: Any) -> str:
        """The document of a template. Look at `problems` before using it."""
        try:
            return self.get_template(template).render(**more)
        except jinja2.TemplateSyntaxError as problem:
            self.problems.append(f"{SHOWN}{problem.name}:{problem.lineno}: {problem.message}")
        except jinja2.UndefinedError as problem:
            name = re.findall(r"'([^']*)' is undefined", str(problem))
            near = suggest(name[0], self.globals) if name else ""
            self.problems.append(f"{self._line(inspect.trace()[-1].frame)}: {problem}{near}")
        except (TypeError, ValueError, ArithmeticError) as problem:
            self.problems.append(f"{self._line(inspect.trace()[-1].frame)}: {problem}")
        return ""

    def _filter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(function)(lambda *arguments, **named: self.noted(function, *arguments, **named))

    @staticmethod
    def _line(frame: Any = None) -> str:
        """Template and line that are being rendered; Jinja's frames know their template."""
        frame = frame or inspect.currentframe()
        while frame:
            template = frame.f_globals.get("__jinja_template__")
            if template is not None:
                return f"{SHOWN}{template.name}:{template.get_corresponding_lineno(frame.f_lineno)}"
            frame = frame.f_back
        return SHOWN

    def leaders(self, share: float, *groups: str) -> str:
        """Which method leads on held-out queries with a share of the operations: a clause for each, with its lead."""
        found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for board in self.boards.main:
            first, second = board.leaders(share, *groups)[:2]
            found[first.name].append((board.study.place, f"{100 * (first.at(share) - second.at(share)):.1f}"))
        clauses = []
        for name, leads in found.items():
            places, by = zip(*leads, strict=True)
            clauses.append(f"{name} leads on {everywhere(places, len(self.boards.main))} (by {joined(by)} points)")
        return "; ".join(clauses)

    def gaps(self, metric: str, own: str, rival: str) -> list[Gap]:
        """On every dataset: how far a row is above another; either is a label or a group.

        Of a group the first is what held-out queries choose, the second the best on test queries: that favours
        the rival.
        """
        return [
            _row(board, own, board.chosen).over(_row(board, rival, lambda group: board.best(metric, group)), metric)  # noqa: B023
            for board in self.boards.main
        ]


def _row(board: Board, name: str, of_group: Callable[[str], Method]) -> Method:
    """A row by its label, or of a group."""
    return board[name] if name in board else of_group(name)


def flowed(text: str) -> str:
    """A document in Markdown with its paragraphs and points on lines of the usual length; code stays as it is."""
    prose, *rest = text.strip().split("\n```", 1)
    made = re.sub(r"\n{3,}", "\n\n", "\n".join(map(_filled, _paragraphs(prose))))
    if not rest:
        return f"{made}\n"
    code, end, after = rest[0].partition("\n```\n")
    blank = "\n" if after.startswith("\n") else ""
    return f"{made}\n```{code}{end}{blank}{flowed(after) if after.strip() else ''}".rstrip("\n") + "\n"


def _paragraphs(prose: str) -> list[str]:
    """The lines of a text without code, those of a paragraph or of a point joined."""
    lines: list[str] = []
    for line in prose.split("\n"):
        last = lines[-1] if lines else ""
        starts = not line.strip() or line.startswith(OWN_LINE) or not last.strip() or last.startswith(NEVER_FILLED)
        if not starts:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line.rstrip())
    return lines


def _filled(line: str) -> str:
    if line.startswith(NEVER_FILLED):
        return line
    indent = "  " if line.startswith("- ") else ""
    return fill(" ".join(line.split()), 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class Sizes:
    """The sizes of a dataset."""

    def __init__(self, name: str) -> None:
        facts, source = dataset_facts(name), find_source(name)
        draft = source.draft
        self.train, self.test, self.labels = (
            getattr(facts, size) or getattr(draft, size, None) for size in ("num_train", "num_test", "num_labels")
        )
