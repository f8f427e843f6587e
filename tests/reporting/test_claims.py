"""The papers' claims and their states."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmcbench.errors import XMCBenchError
from xmcbench.reporting import published_rows
from xmcbench.reporting.claims import read_claims

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
            expected = "reproduced" if low > 0 else "contradicted" if high < 0 else "not decided"
            assert claim.state == expected, claim.id
        else:
            assert claim.state == "not tried", claim.id


def test_a_claim_without_a_state_is_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM)
    assert [claim.state for claim in read_claims(path)] == ["not tried"]
    path.write_text(f"{CLAIM}    state: maybe\n")
    with pytest.raises(XMCBenchError, match=r"claims\.yaml:6: claims\[0\]\.state: found 'maybe', expected"):
        read_claims(path)
