"""What was found is said alike by README, page and document, and the document is that of the accepted records."""

from __future__ import annotations

import re
import tomllib
from functools import cache, partial
from pathlib import Path

import findings as tables

from xmcbench.reporting.claims import read_claims
from xmcbench.reporting.curated import findings
from xmcbench.reporting.published import ACCEPTED

ROOT = Path(__file__).parents[1]
FINDINGS, RESULTS = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("findings.md", "results.md"))
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def test_the_tables_are_those_of_the_accepted_records() -> None:
    assert findings().dataset in {study.dataset for study in tables.STUDIES.values()}
    read_study = cache(partial(tables.read, ACCEPTED))
    for study in tables.STUDIES.values():
        for name, text in tables.blocks(study, read_study).items():
            assert f"<!-- {name} -->\n{text}\n<!-- end -->" in RESULTS
    assert f"<!-- summary -->\n{tables.summary(read_study)}\n<!-- end -->" in FINDINGS


def test_the_readme_says_what_the_page_says() -> None:
    for sentence in findings().sentences:
        assert f"- {sentence} " in README
    found = README.partition("## What was found")[2].partition("## What it is for")[0]
    for number in re.findall(r"\d+\.\d", found):
        assert number in FINDINGS + RESULTS, number


def test_the_readme_counts_the_claims() -> None:
    ran = [{own.finding for own in claim.regimes if own.columns} for claim in read_claims().claims]
    seen, unseen = (sum(own == {finding} for own in ran) for finding in ("seen", "not seen"))
    said = f"Of {len(ran)} claims of papers, asked on made data and on these titles, {NUMBERS[seen]} are seen in both, "
    assert f"{said}{NUMBERS[unseen]} in neither," in README


def test_the_first_line_of_the_readme_is_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    assert f"Version {project['version']} · {project['license']} · Python {python} or later ·" in README
