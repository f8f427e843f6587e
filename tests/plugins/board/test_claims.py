"""The papers' claims: their file, and how the leaderboard shows them."""

from __future__ import annotations

import re
from pathlib import Path

import claims
import pytest
from reporting.made import cited

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.leaderboard_text import render
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import View
from xmcbench_plugins.board.claims import Claim, read_claims

CLAIM = """claims:
  - id: a
    claim: c
    paper: {table: dexml Table 4, better: b, than: d}
    shown: P@1
    regimes:
      - {suite: s, better: x, than: y}
"""
REGIME = {"suite": "s", "better": "x", "than": "y"}
SCALE = {"dataset": "d", "labels": 1000, "encoder": "nano", "length": "6 epochs"}
COLUMN = {
    "metric": "P@1",
    "better": "4",
    "than": "2",
    "difference": "+2.00",
    "interval": ("+1.00", "+3.00"),
    "sign": "+",
}


def claim(id: str, better: str, than: str, **regime: object) -> Claim:
    paper = {"table": "dexml Table 1", "better": better, "than": than}
    return Claim.model_validate(
        {"id": id, "claim": f"{better} wins", "paper": paper, "shown": "P@1", "regimes": [REGIME | regime]}
    )


def test_a_claim_has_every_column_of_the_table_on_every_dataset() -> None:
    rows = [
        cited("A", metrics={"P@1": 0.5, "R@9": 0.2}),
        cited("B", metrics={"P@1": 0.4, "P@5": 0.3, "R@9": 0.25}),
        cited("A", metrics={"P@1": 0.3}, dataset="other"),
        cited("B", metrics={"P@1": 0.4}, dataset="other"),
        cited("A", metrics={"P@1": 0.9}, dataset="alone"),
        cited("B", metrics={"P@1": 0.1}, table="Table 2"),
    ]
    printed = claim("a", "A", "B").paper.printed(rows)
    assert printed == {"P@1": {"made": 10.0, "other": -10.0}, "R@9": {"made": -5.0}}


def test_a_neutral_mark_follows_the_better_row_or_the_one_that_it_is_folded_into() -> None:
    """The mark is the same whatever was found: that is no verdict on a paper's figure from another scale."""
    rows = [
        cited("A", 0.5),
        cited("A", 0.4, variant="with", role="ablation"),
        cited("A", 0.3, variant="without", role="ablation"),
        cited("B", 0.6),
    ]
    seen = {"finding": "not seen", "scale": SCALE, "columns": [COLUMN]}
    claims = [claim("a", "B", "A"), claim("b", "A (with)", "A (without)", **seen)]
    board = leaderboard([], rows, claims=claims)
    first, second = board.groups[0].rows
    assert [own.id for own in first.claims] == ["a"]
    assert [own.id for own in second.folded_claims] == ["b"]
    text = render(board)
    assert re.search(r"B○ +60\.0 +30\.00", text)
    assert re.search(r"A +50\.0 +25\.00 .* \+2○", text)
    assert "○ A (with) wins (dexml Table 1): not seen here (d, 1,000 labels, nano, 6 epochs)." in text
    assert "○ B wins (dexml Table 1): not run yet: `xmcbench run suites/s.yaml`." in text
    assert not set("✓✗") & set(text)
    assert re.search(r"A \(with\)○ +40\.0", render(leaderboard([], rows, View(variants=True), claims=claims)))


def test_no_published_figure_has_a_verdict_beside_it() -> None:
    text = render(leaderboard([], published_rows(), View(variants=True), claims=read_claims().claims))
    assert "○" in text
    assert not set("✓✗") & set(text)


def test_claims_are_read_as_they_were_written(tmp_path: Path) -> None:
    claims.write_claims(read_claims(), tmp_path / "claims.yaml")
    assert read_claims(tmp_path / "claims.yaml") == read_claims()


def test_a_regime_without_a_finding_is_not_run_yet(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM)
    (regime,) = read_claims(path).claims[0].regimes
    assert str(regime) == "not run yet: `xmcbench run suites/s.yaml`"
    path.write_text(CLAIM.replace("than: y}", "than: y, finding: maybe}"))
    with pytest.raises(
        XMCBenchError, match=r"claims\.yaml:7: claims\[0\]\.regimes\[0\]\.finding: found 'maybe', expected"
    ):
        read_claims(path)
