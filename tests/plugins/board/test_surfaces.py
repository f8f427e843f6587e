"""Every surface shows the same state of the same row: terminal, LaTeX, CSV, JSON, page and Python.

A state makes the row `subject` of a table. What a surface says of a state is read from it by a function here; a plain
row in the same table must not say it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from reporting.made import LEDGER, failed, record

from xmcbench.reporting.leaderboard_text import answer, render
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard, Reproduced, Row, View
from xmcbench.reporting.text_table import LATEX_SPECIAL
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench_plugins.board.page.payload import payload

PLAIN, SUBJECT = "plain", "subject"
COUNTS = ("encoder_tokens", "steps", "flops", "num_parameters")
BUDGET = Budget(steps=1000)


@dataclass(frozen=True)
class State:
    """A state of a row: its records, and what each surface says of it."""

    records: Callable[[], Sequence[Record]]  # of the row, and others that the state needs
    python: Callable[[Row], bool]
    mark: str = ""  # in the cell of the name, or of the value, of a table in a terminal and in LaTeX
    text: str = ""  # somewhere in the row of these tables
    column: str = ""  # of CSV, that is not empty
    field: str = ""  # of JSON and of the page's rows, that is not empty
    ranked: bool = True


def subject(**changes: Any) -> Record:
    return record(SUBJECT, 0.4, **{"method": SUBJECT, "config": {"own": 1}, **changes})


def of_status(status: Status) -> State:
    scored = status is Status.OVER_BUDGET
    return State(
        lambda: [subject(status=status) if scored else failed(SUBJECT, status, method=SUBJECT, config={"own": 1})],
        lambda row: row.status is status,
        text=str(status),
        column="status",
        field="status",
        ranked=False,
    )


def older() -> list[Record]:
    return [subject(versions={"method": 1}), record("newer", 0.3, method=SUBJECT, versions={"method": 2})]


def several_codes() -> list[Record]:
    return [
        subject(seed=seed, provenance={"plugin": {"digest": digest * 64, "git": {}}})
        for seed, digest in enumerate("ab")
    ]


def popular() -> list[Record]:
    return [subject(), record("often", 0.6, method="popular", config={"often": 1})]


STATES = {
    **{str(status): of_status(status) for status in Status if status is not Status.OK},
    "unbounded": State(
        lambda: [subject(spent={**LEDGER, "steps": 0})], lambda row: row.unbounded, "◇", "", "unbounded", "unbounded"
    ),
    "several codes": State(several_codes, lambda row: row.codes == 2, "§", "", "codes", "codes"),
    "older": State(older, lambda row: bool(row.older), "‡", "", "older", "older"),
    "below popular": State(popular, lambda row: row.below_popular, "↓", "", "below_popular", "below_popular"),
    "not recomputed": State(lambda: [subject()], lambda row: row.stated, "□", "", "stated", "stated"),
    "verified": State(
        lambda: [subject()], lambda row: row.reproduced is Reproduced.VERIFIED, "✓", "", "reproduced", "reproduced"
    ),
    "not reproduced": State(
        lambda: [subject()], lambda row: row.reproduced is Reproduced.NOT, "✗", "", "reproduced", "reproduced"
    ),
    "tied": State(lambda: [subject()], lambda row: "P@1" in row.tied, "≈", "", "tied", "tied"),
    "other metric definitions": State(
        lambda: [subject(metric_version=METRIC_VERSION - 1)],
        lambda row: row.metric_version != METRIC_VERSION,
        text="-",
        ranked=False,
    ),
    "unknown counts": State(
        lambda: [subject(num_parameters=0, spent={**dict.fromkeys(COUNTS[:3], 0), "not_counted": list(COUNTS[:3])})],
        lambda row: not any(name in row.facts for name in COUNTS),
    ),
}


def board(name: str, **view: Any) -> tuple[Leaderboard, dict[str, Record]]:
    """The table of a state, beside a plain row of several seeds and much better metrics."""
    tied = name == "tied"
    plain = [record(PLAIN, 0.41 if tied else 0.9, method=PLAIN, config={"plain": 1})]
    records = [*plain, *STATES[name].records()]
    by_key = {own.key: own for own in records}

    def resampled(key: str, metrics: Sequence[str]) -> Mapping[str, np.ndarray]:
        noise = np.random.default_rng(int(key, 16)).normal(scale=0.05 if tied else 0.001, size=100)
        return {metric: value + noise for metric, value in by_key[key].metrics.items() if metric in metrics}

    seen = leaderboard(
        records,
        (),
        View(**view),
        resampled,
        recomputable=lambda own: name != "not recomputed" or own.trial.label != SUBJECT,
        reproduced={own.key: Reproduced(name) for own in records if name in [*Reproduced] and own not in plain},
    )
    return seen, by_key


def line(text: str, label: str) -> str:
    """The line of a row in a table, which comes before all sentences that name it; the name may have marks."""
    return next(own for own in text.splitlines() if re.search(rf"(^|[\s&]){label}(\W|$)", own))


def latex(mark: str) -> str:
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in mark)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("form", ["answer", "table", "markdown", "latex"])
def test_tables_mark_the_state_at_its_row_alone(name: str, form: str) -> None:
    state, (seen, _) = STATES[name], board(name, paper=form == "latex")
    text = answer(seen) if form == "answer" else render(seen, form)
    own, other = line(text, SUBJECT), line(text, PLAIN)
    for sign in filter(None, (state.mark, state.text if state.ranked else "")):
        wanted = latex(sign) if form == "latex" else sign
        assert wanted.replace("_", r"\_") in own or wanted in own
        assert wanted not in other
    if name == "unknown counts" and form != "latex":
        assert not re.search(r"(?<![\d.])0(?![\d.])", own), "a count that nobody knows is no 0"


@pytest.mark.parametrize("name", STATES)
def test_programs_read_the_state(name: str) -> None:
    state, (seen, records) = STATES[name], board(name)
    lines = {own["method"]: own for own in csv.DictReader(io.StringIO(render(seen, "csv")))}
    rows = {own["method"]: own for own in json.loads(render(seen, "json"))["groups"][0]["rows"]}
    (group,) = payload(seen, records, {})["groups"]
    page = {own["method"]: own for own in group["rows"]}
    python = {own.method: own for own in seen.groups[0].rows}
    assert state.python(python[SUBJECT])
    assert not state.python(python[PLAIN])
    for surface in (lines, rows, page):
        assert (surface[SUBJECT].get("rank") in ("", None)) is not state.ranked
        assert surface[PLAIN]["rank"] in ("1", 1)
    if state.column:
        assert lines[SUBJECT][state.column] not in ("", "ok")
        assert lines[PLAIN].get(state.column, "") in ("", "ok")
    if state.field:
        assert rows[SUBJECT][state.field] not in (None, "", "ok", False, [])
        assert rows[PLAIN].get(state.field) in (None, "", "ok", False, [])
        assert page[SUBJECT][state.field]
        assert page[PLAIN].get(state.field) in (None, "", False, [])
    if name == "unknown counts":
        assert not any(lines[SUBJECT].get(count) for count in COUNTS)
        assert not any(count in rows[SUBJECT]["facts"] for count in COUNTS)
        cells = dict(zip(group["columns"], page[SUBJECT]["cells"], strict=False))
        assert not any(cells.get(count) for count in COUNTS)


def test_a_count_that_is_known_to_be_0_is_shown() -> None:
    """The other side of counts that nobody knows."""
    spent = {**LEDGER, "encoder_tokens": 0, "steps": 0, "flops": 0}
    seen = leaderboard([record(PLAIN), subject(num_parameters=0, spent=spent)])
    row = next(own for own in seen.groups[0].rows if own.method == SUBJECT)
    assert {name: row.facts[name] for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert re.search(r"\s0(\s|$)", line(render(seen), SUBJECT))
