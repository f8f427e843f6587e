"""The papers' claims and what became of them here: which of two rows of a table is better, column by column.

`benchmarks/claims.py` writes the file from accepted records. A claim is about two rows of a paper's table. Each regime
is one attempt at it: two settings of a suite, of which every column of the table is compared. What a regime says always
has its scale beside it; it says "reproduced" or "contradicted" only at the paper's own scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from xmcbench.files.yaml_lines import read_model
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.trial.record_fields import Frozen

CLAIMS = Path(__file__).parent / "leaderboard" / "claims.yaml"
TrialKey = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sign = Literal["+", "-", "?"]  # of a difference; ?: the interval, corrected for the number of claims, contains 0
Finding = Literal["seen", "not seen", "undecided", "not run yet"]
FINDINGS: tuple[Finding, ...] = get_args(Finding)
AT_PAPERS_SCALE = {"seen": "reproduced", "not seen": "contradicted"}


class _Model(Frozen):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class PaperPair(_Model):
    """Two rows of a paper's table."""

    table: str = Field(description="paper and table, as in `dexml Table 4`")
    better: str = Field(description="label of the better row")
    than: str = Field(description="label of the other row")

    def is_about(self, row: PublishedRow) -> bool:
        """Whether the row is the better one."""
        return (self.table, self.better) == (row.source, row.label)

    def printed(self, published: Iterable[PublishedRow]) -> dict[str, dict[str, float]]:
        """By metric and dataset: the better row minus the other, in per cent, of all columns printed for both."""
        rows = [row for row in published if row.source == self.table]
        than = {row.dataset: row.metrics for row in rows if row.label == self.than}
        found: dict[str, dict[str, float]] = {metric: {} for row in rows for metric in row.metrics}
        for better in (row for row in rows if row.label == self.better and row.dataset in than):
            for metric in better.metrics.keys() & than[better.dataset].keys():
                difference = better.metrics[metric] - than[better.dataset][metric]
                found[metric][better.dataset] = round(100 * difference, 4)
        return {metric: regimes for metric, regimes in found.items() if regimes}


class Column(_Model):
    """A metric of the two settings, in per cent."""

    metric: str
    better: str = Field(description="mean over seeds of the setting that is the better row in the paper")
    than: str = Field(description="mean over seeds of the other setting")
    difference: str = Field(description="the first minus the second")
    interval: tuple[str, str] = Field(description="95 %, over test queries and seeds")
    sign: Sign = Field(description="of the difference at 5 %, corrected by Holm for the number of claims; ?: undecided")


class Scale(_Model):
    """At what scale the trials ran."""

    dataset: str
    labels: int
    encoder: str
    length: str = Field(description="of training, the budget in words")
    papers: bool = Field(False, description="whether dataset, encoder and length are the paper's")

    def __str__(self) -> str:
        return f"{self.dataset}, {self.labels:,} labels, {self.encoder}, {self.length}"


class Regime(_Model):
    """One attempt at a claim: two settings of a suite over the seeds that were fixed before."""

    suite: str
    better: str = Field(description="label of the setting that is the better row in the paper")
    than: str = Field(description="label of the other setting")
    scale: Scale | None = None
    finding: Finding = "not run yet"
    columns: tuple[Column, ...] = ()
    better_keys: tuple[TrialKey, ...] = Field((), description="keys of the trials, one for each seed")
    than_keys: tuple[TrialKey, ...] = Field((), description="keys of the other trials")
    older: str = Field("", description="the versions of older code that the trials ran with")

    @property
    def verdict(self) -> str:
        """The finding in words: those of a reproduction only at the paper's scale."""
        if self.finding == "not run yet":
            return f"not run yet: `xmcbench run suites/{self.suite}.yaml`"
        if self.scale is not None and self.scale.papers:
            return AT_PAPERS_SCALE.get(self.finding, self.finding)
        return f"{self.finding} here"

    def column(self, metric: str) -> Column | None:
        """The column of a metric."""
        return next((column for column in self.columns if column.metric == metric), None)

    def __str__(self) -> str:
        """The verdict with its scale."""
        return f"{self.verdict} ({self.scale})" if self.columns else self.verdict


class Claim(_Model):
    """A claim of a paper."""

    id: str = Field(pattern=r"^[a-z0-9-]+$", description="a short name")
    claim: str = Field(min_length=1, description="the claim in words")
    paper: PaperPair
    shown: str = Field(description="the metric that the claim names: it decides, and the figure shows it")
    remark: str = Field("", description="what differs between the two rows of the paper besides")
    needs: str = Field("", description="what the claim needs and no machine had on which the claims ran")
    regimes: tuple[Regime, ...]

    def is_about(self, row: PublishedRow) -> bool:
        """Whether the row is the one that the paper claims to be better."""
        return self.paper.is_about(row)

    def __str__(self) -> str:
        """The claim and what every regime says of it, in one line."""
        return f"{self.claim} ({self.paper.table}): {'; '.join(map(str, self.regimes)) or f'needs {self.needs}'}"


class Question(_Model):
    """A question that no table of a paper answers."""

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    question: str = Field(min_length=1)
    of: str = Field("", description="the claim whose difference is asked for under another condition")
    regime: Regime
    changes: tuple[Column, ...] = Field((), description="this difference minus that of the claim's regime")


class ClaimFile(_Model):
    """A file of claims and questions."""

    claims: tuple[Claim, ...]
    questions: tuple[Question, ...] = ()


def read_claims(path: Path = CLAIMS) -> ClaimFile:
    """The claims of a file. Raises `XMCBenchError` with file, line and key of each mistake."""
    return read_model(ClaimFile, path, exact=True)
