"""The papers' claims and what became of them here: a YAML file of claims, their published rows and their trials."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from xmcbench.files.atomic import atomic_write
from xmcbench.files.validation import Problems, validate
from xmcbench.files.yaml_lines import read
from xmcbench.reporting.published import PublishedRow

CLAIMS = Path(__file__).parent / "leaderboard" / "claims.yaml"
HEADER = "# Written by benchmarks/claims.py. docs/leaderboard.md explains the format; docs/claims.md has the runs.\n"
TrialKey = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
State = Literal["reproduced", "contradicted", "not decided", "not tried"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, defer_build=True)


class Published(_Model):
    """Where a paper makes the claim: two rows of a table, or a place in the text."""

    text: str = Field("", description="where the paper says it, if there is no table")
    table: str = Field("", description="paper and table, as in `dexml Table 4`")
    dataset: str = Field("", description="the dataset of the two rows")
    better: str = Field("", description="label of the better row")
    than: str = Field("", description="label of the other row")

    def is_about(self, row: PublishedRow) -> bool:
        """Whether the row is the better one of the claim."""
        return (self.dataset, self.better) == (row.dataset, row.label) and row.source in self.table.split(", ")

    def __str__(self) -> str:
        return self.text or f"{self.table}, {self.dataset}"


class Trials(_Model):
    """The trials of the two settings, and the difference of the metric in per cent."""

    suite: str = Field(description="the suite that ran them")
    dataset: str = Field(description="the dataset that they ran on")
    better: str = Field(description="label of the trials that should be better")
    than: str = Field(description="label of the other trials")
    better_keys: tuple[TrialKey, ...] = Field((), description="their keys, one for each seed")
    than_keys: tuple[TrialKey, ...] = Field((), description="the keys of the other trials")
    difference: str = Field(description="the first minus the second")
    interval: tuple[str, str] = Field(description="95 % interval of the difference, paired bootstrap")


class Claim(_Model):
    """A claim that one setting is better than another in a metric."""

    id: str = Field(pattern=r"^[a-z0-9-]+$", description="a short name")
    claim: str = Field(min_length=1, description="the claim in words")
    metric: str = Field(description="the metric that it is about")
    published: Published
    state: State = Field(
        "not tried", description="whether the interval lies above 0, below 0, or holds 0; absent: not tried"
    )
    trials: Trials | None = Field(None, description="the trials that decided it")

    def __str__(self) -> str:
        """The claim, its state and the measured difference in one line."""
        if self.trials is None:
            return f"{self.claim}: {self.state}"
        low, high = self.trials.interval
        measured = f"{self.metric} {self.trials.difference} ({low} to {high}) on {self.trials.dataset}"
        return f"{self.claim}: {self.state}, {measured}"


class ClaimFile(_Model):
    """A file of claims."""

    claims: list[Claim]


def read_claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """The claims of a file. Raises `XMCBenchError` with file, line and key of each mistake."""
    content = read(path, exact=True)
    problems = Problems(content)
    file = validate(ClaimFile, content.data, (), {}, problems)
    problems.check()
    assert file is not None
    return tuple(file.claims)


def write_claims(claims: Iterable[Claim], path: Path = CLAIMS) -> None:
    """Write a file of claims that `read_claims` reads."""
    text = yaml.safe_dump(
        {"claims": [_plain(claim) for claim in claims]}, sort_keys=False, allow_unicode=True, width=120
    )
    with atomic_write(path) as file:
        file.write(f"{HEADER}{text}".encode())


def _plain(claim: Claim) -> dict[str, Any]:
    """The claim as a file has it, without what is not known."""
    return claim.model_dump(mode="json", exclude_defaults=True)


def state_of(interval: tuple[float, float]) -> State:
    """The state of a claim by the 95 % interval of the difference."""
    low, high = interval
    return "reproduced" if low > 0 else "contradicted" if high < 0 else "not decided"
