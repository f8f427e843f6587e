"""Tables and `xmcbench compare` say the same of every pair of accepted rows that share a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from commands import told

from xmcbench.evaluation.significance import holm
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Group, Row
from xmcbench.trial.store import Store
from xmcbench_plugins.analysis.comparing import compare_stored
from xmcbench_plugins.board.results import ACCEPTED

STORE = Store(ACCEPTED)
RECORDS = {record.key: record for record in STORE.records()}


def tables() -> list[Group]:
    board = leaderboard(RECORDS.values(), resampled=lambda key, names: STORE.resampled(RECORDS[key], names))
    return [group for group in board.groups if len(ranked(group)) > 1]


def ranked(group: Group) -> list[Row]:
    return [row for row in group.rows if row.rank is not None]


@pytest.mark.long
def test_every_tie_is_what_compare_says_of_the_pair() -> None:
    pairs = ties = 0
    for group in tables():
        for metric in group.metrics:
            rows = [row for row in ranked(group) if metric in row.metrics]
            if len(rows) < 2:
                continue
            best = max(rows, key=lambda row: row.metrics[metric])
            of_best = [RECORDS[key] for key in best.keys]
            others = [row for row in rows if row is not best]
            found = [compare_stored(STORE, of_best, [RECORDS[key] for key in row.keys], [metric]) for row in others]
            compared = [(row, own[0].difference) for row, own in zip(others, found, strict=True) if own]
            together = holm([difference.p for _, difference in compared])
            for (row, difference), corrected in zip(compared, together, strict=True):
                where = f"{group.dataset} {row.label} {metric}"
                assert (metric in row.tied) == (corrected >= 0.05), where
                assert metric in row.tied or difference.significant, where
                pairs += 1
                ties += metric in row.tied
            assert metric not in best.tied
    assert pairs > ties > 0


def test_the_command_prints_what_the_table_is_made_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    group = next(group for group in tables() if len(ranked(group)) > 1 and len(ranked(group)[0].keys) == 1)
    first, second = ranked(group)[:2]
    keys = first.keys[0], second.keys[0]
    places = "--store", ACCEPTED, "--data", tmp_path
    code, out, _ = told(capsys, "compare", *keys, "--format", "csv", "--metrics", group.sort, *places)
    assert code == 0
    row = next(csv.DictReader(io.StringIO(out)))
    (own,) = compare_stored(STORE, [RECORDS[keys[0]]], [RECORDS[keys[1]]], [group.sort])
    low, high = own.difference.interval
    assert row["95 %"] == f"{100 * low:+.2f} to {100 * high:+.2f}"
    assert row["p"] == f"{own.difference.p:.3f}"
