"""The papers' claims and what became of them here: a YAML file of claims, their published rows and their trials."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.files.validation import Problems, validate
from xmcbench.files.yaml_lines import read

CLAIMS = Path(__file__).parent / "leaderboard" / "claims.yaml"
State = Literal["reproduced", "contradicted", "not decided", "not tried"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Published(_Model):
    """Where a paper makes the claim: two rows of a table, or a place in the text."""

    text: str = Field("", description="where the paper says it, if there is no table")
    table: str = Field("", description="paper and table, as in `dexml Table 4`")
    dataset: str = Field("", description="the dataset of the two rows")
    better: str = Field("", description="label of the better row")
    than: str = Field("", description="label of the other row")

    def __str__(self) -> str:
        return self.text or f"{self.table}, {self.dataset}"


class Trials(_Model):
    """The two trials that decided the claim, and the difference of the metric in per cent."""

    suite: str = Field(description="the suite that ran them")
    dataset: str = Field(description="the dataset that they ran on")
    better: str = Field(description="label of the trial that should be better")
    than: str = Field(description="label of the other trial")
    difference: str = Field(description="the first minus the second")
    interval: tuple[str, str] = Field(description="95 % interval of the difference, paired bootstrap")


class Claim(_Model):
    """A claim that one setting is better than another in a metric."""

    id: str = Field(pattern=r"[a-z0-9-]+", description="a short name")
    claim: str = Field(min_length=1, description="the claim in words")
    metric: str = Field(description="the metric that it is about")
    published: Published
    state: State = Field(
        "not tried", description="whether the interval lies above 0, below 0, or holds 0; absent: not tried"
    )
    trials: Trials | None = Field(None, description="the trials that decided it")


class ClaimFile(_Model):
    """A file of claims."""

    claims: list[Claim]


def read_claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """The claims of a file. Raises `XMCBenchError` with file, line and key of each mistake."""
    located = read(path, exact=True)
    problems = Problems(located)
    file = validate(ClaimFile, located.data, (), {}, problems)
    problems.check()
    assert file is not None
    return tuple(file.claims)
