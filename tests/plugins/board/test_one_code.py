"""No surface shows a mean of two codes, two definitions of a metric, two contents of a dataset or two models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from commands import told
from hypothesis import given, settings
from hypothesis import strategies as st
from reporting.made import record

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.bootstrap import RESAMPLES
from xmcbench.evaluation.significance import samples
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard
from xmcbench.reporting.text_table import TABLE_FORMATS, TextTable, render_tables
from xmcbench.suite.tables import TableShape
from xmcbench.trial.alike import newest_code, superseded
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import Record
from xmcbench.trial.store import RESAMPLED, Store
from xmcbench_plugins.analysis.suite_tables import cell_table, cost_table, rank_tables, sweep_cells
from xmcbench_plugins.analysis.tables import across_datasets_table
from xmcbench_plugins.board.page.payload import payload

FIRST, SECOND = 0.25, 0.5
MEAN = re.compile(r"37\.5|0\.375|18\.75|0\.1875|84\.00")  # 84: by how much 0.9 improves on it, in per cent


def coded(code: str, form: int | None = 2, **changes: Any) -> Record:
    """A record of a code; without a form one from before digests were of what the code does."""
    plugin = {"digest": code, "git": {}} | ({"form": form} if form else {})
    return record(provenance={"plugin": plugin}, **changes)


differences = st.sampled_from(
    [
        ({"code": "a" * 64}, {"code": "b" * 64}),
        ({"code": "a" * 64}, {"code": "a" * 64, "form": None}),
        ({"code": "a" * 64, "evaluators": {"P": "c" * 64}}, {"code": "a" * 64, "evaluators": {"P": "d" * 64}}),
        ({"code": "a" * 64, "evaluators": {"P": "c" * 64}}, {"code": "a" * 64}),
        ({"code": "a" * 64, "metric_version": 0}, {"code": "a" * 64}),
        ({"code": "a" * 64, "truth_hash": "e" * 64}, {"code": "a" * 64, "truth_hash": "f" * 64}),
        ({"code": "a" * 64, "dataset_hash": "e" * 16}, {"code": "a" * 64}),
        ({"code": "a" * 64, "pretrained": {"encoder": "g"}}, {"code": "a" * 64, "pretrained": {"encoder": "h"}}),
        ({"code": "a" * 64, "versions": {"method": 1}}, {"code": "a" * 64, "versions": {"method": 2}}),
    ]
)
ends = st.permutations(["2026-11-27T00:00:00+00:00", "2026-11-28T00:00:00+00:00"])


def surfaces(board: Leaderboard, records: list[Record]) -> dict[str, str]:
    """All that is shown of a leaderboard, by where."""
    shown = {form: render(board, form) for form in FORMATS}
    page = payload(board, {own.key: own for own in records}, {}, lambda key, metrics: {})  # noqa: ARG005
    return shown | {"page": json.dumps(page), "Python": str([asdict(group) for group in board.groups])}


NOISE = np.random.default_rng(0).normal(scale=1e-4, size=RESAMPLES).astype(np.float32)


def resampled(record: Record, metrics: Iterable[str]) -> dict[str, np.ndarray]:
    """Values on resamples, as `Store.resampled` reads them."""
    return {name: record.metrics[name] + NOISE for name in metrics if name in record.metrics}


def stored(store: Store, records: list[Record]) -> None:
    for own in records:
        digest = store.write_resampled(own.key, resampled(own, own.metrics), own.truth_hash)
        store.write_record(own.model_copy(update={"digests": {RESAMPLED: digest}}))


def tables_of_commands(records: list[Record]) -> dict[str, str]:
    """What commands show of the records of a store, by where; an error where they show nothing."""
    outcomes = [(own.trial, own) for own in records]
    shape = TableShape(columns=["P@1", "nDCG@5"])

    def compared() -> list[TextTable]:
        with TemporaryDirectory() as folder:
            stored(Store(Path(folder)), records)
            return list(xb.compare("dexml", "other", store=folder).tables)

    def of_suite() -> list[TextTable]:
        cells = sweep_cells(outcomes, {}, lambda trial: frozenset())  # noqa: ARG005
        return [cell_table("cells", shape, cells), cost_table(cells, "P@1"), *rank_tables(cells, "P@1", resampled)]

    def analysed() -> list[TextTable]:
        elsewhere = [
            own.model_copy(update={"trial": own.trial.model_copy(update={"dataset": "two"})}) for own in records
        ]
        return [across_datasets_table([*records, *elsewhere], "P@1", resampled)]

    shown = {}
    commands = {"compare": compared, "tables": of_suite, "analyse": analysed}
    for (command, made), form in product(commands.items(), TABLE_FORMATS):
        try:
            shown[f"{command} as {form}"] = render_tables(made(), form)
        except XMCBenchError as refused:
            shown[f"{command} as {form}"] = str(refused)
    return shown


@settings(deadline=None)
@given(differences, ends, st.booleans())
def test_no_surface_shows_the_mean_of_two_records_that_differ_in_more_than_their_seed(
    two: tuple[dict[str, Any], dict[str, Any]], ended: list[str], other_label: bool
) -> None:
    values, seeds = (FIRST, SECOND), (0, 1)
    own = [
        coded(**changes, p1=value, seed=seed, ended=end)
        for changes, value, seed, end in zip(two, values, seeds, ended, strict=True)
    ]
    others = [coded("a" * 64, label="other", config={"a": 1}, p1=0.9)] if other_label else []
    board = leaderboard([*own, *others])
    for where, text in (surfaces(board, [*own, *others]) | tables_of_commands([*own, *others])).items():
        assert not MEAN.search(text), f"{where}: {MEAN.search(text)}"
    rows = [row for group in board.groups for row in group.rows if row.plugin == "dexml" and row.method != "other"]
    assert [len(row.keys) for row in rows] == [1, 1]
    if own[0].trial.dataset_hash == own[1].trial.dataset_hash:
        assert any(row.older or not row.defined_as_now for row in rows)
    if own[0].but_seed != own[1].but_seed:
        with pytest.raises(XMCBenchError, match="differ in more than their seed"):
            samples(own, [{}, {}])
        assert len(newest_code(own)) == 1
    with pytest.raises(XMCBenchError):
        across_datasets_table(own, "P@1", resampled)


def test_the_mean_of_what_differs_in_its_seed_alone_is_shown_everywhere() -> None:
    own = [coded("a" * 64, p1=value, seed=seed) for seed, value in enumerate((FIRST, SECOND))]
    board = leaderboard(own)
    assert all(MEAN.search(text) for text in surfaces(board, own).values())
    others = [coded("a" * 64, label="other", config={"a": 1}, p1=0.9, seed=seed) for seed in range(2)]
    for where, text in tables_of_commands([*own, *others]).items():
        assert MEAN.search(text), f"{where}: {text}"


def test_the_newest_code_is_shown_and_the_other_marked_and_counted() -> None:
    old = [coded("a" * 64, p1=0.1, seed=seed, ended="2026-11-27") for seed in range(3)]
    new = [coded("b" * 64, p1=0.2, seed=seed, ended="2026-11-28") for seed in (3, 4)]
    failed = coded("c" * 64, seed=5, ended="2026-11-29", status="error", metrics={})
    board = leaderboard([*old, *new, failed])
    by_seeds = {row.seeds: row for row in board.groups[0].rows}
    assert by_seeds[3, 4].older == by_seeds[(5,)].older == ""
    assert by_seeds[0, 1, 2].older == "code aaaaaaaa of 3 trials, now code bbbbbbbb"
    assert by_seeds[0, 1, 2].label == "dexml (code aaaaaaaa)"
    table = surfaces(board, [*old, *new, failed])
    assert "dexml (code aaaaaaaa)‡" in table["table"]
    for where in ("table", "csv", "json", "page", "Python", "latex"):
        assert "of 3 trials" in table[where], where


def test_records_of_an_older_form_stay_in_one_row_and_never_meet_newer_ones() -> None:
    old = [coded(digest * 64, None, seed=seed, ended="2026-11-27") for seed, digest in enumerate("ab")]
    assert [(row.seeds, row.codes) for row in leaderboard(old).groups[0].rows] == [((0, 1), 2)]
    assert [
        row.codes for row in leaderboard([coded("a" * 64, None, seed=seed) for seed in range(2)]).groups[0].rows
    ] == [0]
    shown = surfaces(leaderboard(old), old)
    assert "dexml§" in shown["table"]
    for where in ("table", "latex"):
        assert "its 2 trials noted 2 digests" in " ".join(shown[where].split()), where
    rows = leaderboard([*old, coded("a" * 64, seed=2, ended="2026-11-28")]).groups[0].rows
    assert {row.seeds: row.older for row in rows} == {
        (0, 1): "code in an older form of 2 trials, now code aaaaaaaa",
        (2,): "",
    }


def test_a_table_has_one_definition_of_a_metric_and_names_the_rows_to_rescore() -> None:
    old = coded("a" * 64, label="old", config={"a": 1}, p1=0.9, evaluators={"nDCG": "c" * 64}, ended="2026-11-27")
    new = coded("a" * 64, label="new", p1=0.5, evaluators={"nDCG": "d" * 64}, ended="2026-11-28")
    board = leaderboard([old, new])
    assert {row.method: row.rank for row in board.groups[0].rows} == {"old": None, "new": 1}
    (note,) = (note for note in board.notes if "rescore" in note)
    assert "old (other code of nDCG@5)" in note
    alone = leaderboard([old])
    assert alone.groups[0].rows[0].rank == 1


def test_compare_takes_the_newest_code_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    old = [coded("a" * 64, p1=0.1, seed=seed, ended="2026-11-27") for seed in range(3)]
    new = [coded("b" * 64, p1=0.2, seed=seed, ended="2026-11-28") for seed in (3, 4)]
    for own in (*old, *new, *(coded("d" * 64, label="other", config={"a": 1}, seed=seed) for seed in (3, 4))):
        store.write_record(own)
    code, _, errors = told(capsys, "compare", "dexml", "other", "--store", tmp_path)
    assert code == 0, errors
    assert "dexml: only code bbbbbbbb is used, without 3 trials of other code" in caplog.text
    caplog.clear()
    code, _, errors = told(capsys, "compare", "dexml (code aaaaaaaa)", "other", "--store", tmp_path)
    assert (code, "other code" in caplog.text) == (0, False), errors


def test_superseded_has_a_text_for_each_group_but_the_newest() -> None:
    groups = [[coded("a" * 64, ended="2026-11-27")], [coded("b" * 64, seed=1, ended="2026-11-28")]]
    assert [bool(text) for text in superseded(groups)] == [True, False]
    assert [bool(text) for text in superseded(groups[::-1])] == [False, True]


def test_of_two_codes_that_ended_in_one_second_one_is_the_newer_for_all() -> None:
    """Whatever their seeds: `compare` and tables show the same one."""
    for first, second in ("ab", "ba"):
        two = [coded(first * 64, seed=0, p1=0.1), coded(second * 64, seed=1, p1=0.2)]
        (shown,) = newest_code(two)
        marked = superseded([[own] for own in two])
        assert [bool(text) for text in marked] == [own is not shown for own in two]
        assert shown.code == "b" * 64


def test_accepted_rows_stay_whole() -> None:
    """None of the records that stand on the board is in another row than its versions say."""
    records = Store(Path(__file__).parents[3] / "leaderboard" / "measured").records()
    assert len({own.but_seed for own in records}) == len({own.trial.but_seed for own in records})


def fused(parts: list[Record], predictions: str, ended: str) -> Record:
    return coded(
        "",
        label="a + b (weighted)",
        method="fused",
        budget=UnknownBudget(),
        config={"rule": "weighted", "parts": [part.key for part in parts], "predictions": predictions * 64},
        parts=[{"key": part.key, "name": part.trial.label, "predictions": part.predictions_digest} for part in parts],
        ended=ended,
    )


def test_a_fusion_whose_part_was_trained_again_is_marked_and_its_rows_have_names_to_read() -> None:
    parts = [
        coded("a" * 64, label=label, config={"x": label}, digests={"predictions.npz": label * 64}) for label in "ab"
    ]
    first = fused(parts, "c", "2026-11-27T10:00")
    rows = {row.method: row for row in leaderboard([*parts, first]).groups[-1].rows}
    assert rows[first.trial.label].older == ""
    again = parts[1].model_copy(update={"digests": {"predictions.npz": "e" * 64}})
    second = fused([parts[0], again], "d", "2026-11-28T10:00")
    groups = leaderboard([parts[0], again, first, second]).groups
    found = {row.keys: row for group in groups for row in group.rows if row.plugin == "fused"}
    assert found[first.key,].older == "fused before b was trained again: fuse it anew"
    assert found[second.key,].older == ""
    assert all("d" * 9 not in row.label and "c" * 9 not in row.label for row in found.values())
    assert found[first.key,].label != found[second.key,].label
