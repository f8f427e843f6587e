"""The papers' claims and their states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xmcbench.errors import XMCBenchError
from xmcbench.reporting import View, leaderboard, published_rows, render
from xmcbench.reporting.claims import Claim, read_claims, state_of, write_claims

from .made import cited

CLAIM = "claims:\n  - id: a\n    claim: c\n    metric: P@1\n    published: {text: p Figure 1}\n"


def test_every_claim_names_rows_that_are_published_and_a_state_that_its_interval_gives() -> None:
    rows = {(row.source, row.dataset, row.label): row for row in published_rows()}
    claims = read_claims()
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        for label in (claim.published.better, claim.published.than) if claim.published.table else ():
            sources = claim.published.table.split(", ")
            found = [rows.get((source, claim.published.dataset, label)) for source in sources]
            assert any(row and claim.metric in row.printed for row in found), claim.id
        if claim.trials:
            low, high = map(float, claim.trials.interval)
            assert claim.state == state_of((low, high)), claim.id
        else:
            assert claim.state == "not tried", claim.id


def test_claims_are_shown_at_the_better_row_or_at_the_row_that_it_is_folded_into() -> None:
    rows = [
        cited("A", 0.5),
        cited("A", 0.4, variant="with", role="ablation"),
        cited("A", 0.3, variant="without", role="ablation"),
        cited("B", 0.6),
    ]
    of = {"table": "dexml Table 1", "dataset": "made"}
    trials = {"suite": "s", "dataset": "d", "better": "x", "than": "y", "difference": "+2.00"}
    claims = [
        Claim(id="a", claim="B wins", metric="P@5", published={**of, "better": "B", "than": "A"}),
        Claim(
            id="b",
            claim="With is better",
            metric="P@1",
            published={**of, "better": "A (with)", "than": "A (without)"},
            state="reproduced",
            trials={**trials, "interval": ("+1.00", "+3.00")},
        ),
    ]
    board = leaderboard([], rows, claims=claims)
    first, second = board.groups[0].rows
    assert [(c.id for c in row.claims) and row.method for row in (first, second) if row.claims] == ["B"]
    assert [claim.id for claim in second.folded_claims] == ["b"]
    text = render(board)
    assert re.search(r"B +60\.0 +30\.00○", text)
    assert re.search(r"A +50\.0 +25\.00 .* \+2✓", text)
    assert "✓ With is better: reproduced, P@1 +2.00 (+1.00 to +3.00) on d." in text
    every = leaderboard([], rows, View(variants=True), claims=claims)
    assert re.search(r"A \(with\) +40\.0✓", render(every))


def test_claims_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_claims(read_claims(), tmp_path / "claims.yaml")
    assert read_claims(tmp_path / "claims.yaml") == read_claims()


def test_a_claim_without_a_state_is_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM)
    assert [claim.state for claim in read_claims(path)] == ["not tried"]
    path.write_text(f"{CLAIM}    state: maybe\n")
    with pytest.raises(XMCBenchError, match=r"claims\.yaml:6: claims\[0\]\.state: found 'maybe', expected"):
        read_claims(path)
