"""Verification of accepted trials: maintainers run a trial again, and its metrics lie within the corridor of the runs.

The verified trials are in a file of the maintainers, outside the submissions: no submission can claim to be verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev

import yaml
from pydantic import BaseModel, ConfigDict, Field

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.files.validation import Problems, validate
from xmcbench.files.yaml_lines import read
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store

FEWEST_SEEDS = 3
WIDTH = 4.0  # standard deviations to either side of the mean
SMALLEST = 0.004  # half width of a corridor at least, a fraction: rounding differs between machines
HEADER = "# Written by `xmcbench submit KEY --verify`, which maintainers run. docs/leaderboard.md explains it.\n"


class Verification(BaseModel):
    """The runs of the maintainers that an accepted trial was verified by."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    key: str = Field(pattern=r"^[0-9a-f]{16}$", description="of the accepted trial")
    record: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its record file")
    commits: list[str] = Field(description="of the code that ran it again")
    seeds: list[int] = Field(min_length=FEWEST_SEEDS, description="that it was run with")
    corridor: dict[str, tuple[float, float]] = Field(description="lowest and highest value of each metric, fractions")


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    verified: list[Verification]


def read_verifications(path: Path) -> dict[str, Verification]:
    """The verifications of a file by key of the trial, none if the file does not exist.

    Raises `XMCBenchError` with file, line and key of each mistake.
    """
    if not path.exists():
        return {}
    document = read(path)
    problems = Problems(document)
    file = validate(_File, document.data, (), {}, problems)
    problems.check()
    assert file is not None
    return {one.key: one for one in file.verified}


def write_verifications(verifications: Mapping[str, Verification], path: Path) -> None:
    """Write a file that `read_verifications` reads."""
    content = {"verified": [verifications[key].model_dump(mode="json") for key in sorted(verifications)]}
    with atomic_write(path) as file:
        file.write((HEADER + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)).encode())


def is_verified(accepted: Store, record: Record, verifications: Mapping[str, Verification]) -> bool:
    """Whether the record is the one that was verified, with every metric within its corridor."""
    verification = verifications.get(record.key)
    if verification is None or verification.record != _digest(accepted, record):
        return False
    return not _outside(record, verification.corridor)


def verify(accepted: Store, record: Record, others: Sequence[Record]) -> Verification:
    """Verify an accepted trial by those of `others` that are runs of the same trial, seeds aside.

    Raises `XMCBenchError` if there are too few runs, or if a metric of the accepted trial lies outside the corridor.
    """
    runs = {other.trial.seed: other for other in others if other.status is Status.OK and _same(other, record)}
    if len(runs) < FEWEST_SEEDS:
        raise XMCBenchError(
            f"{record.key}: found {len(runs)} runs of this trial, expected {FEWEST_SEEDS} or more, each of another "
            f"seed; `xmcbench show {record.key} --format suite` prints its suite"
        )
    corridor = {name: _corridor([run.metrics[name] for run in runs.values()]) for name in record.metrics}
    if outside := _outside(record, corridor):
        raise XMCBenchError(f"{record.key}: not verified: {'; '.join(outside)}")
    commits = sorted({str((run.provenance.get("git") or {}).get("commit")) for run in runs.values()})
    digest = _digest(accepted, record)
    return Verification(key=record.key, record=digest, commits=commits, seeds=sorted(runs), corridor=corridor)


def _same(first: Record, second: Record) -> bool:
    """Whether both ran the same trial, seeds, labels and release aside, and have the same metrics."""
    trials = [record.trial.model_dump(exclude={"seed", "version", "label"}) for record in (first, second)]
    return trials[0] == trials[1] and first.metrics.keys() >= second.metrics.keys()


def _corridor(values: Sequence[float]) -> tuple[float, float]:
    mean, half = fmean(values), max(SMALLEST, WIDTH * stdev(values))
    return round(mean - half, 6), round(mean + half, 6)


def _outside(record: Record, corridor: Mapping[str, tuple[float, float]]) -> list[str]:
    """The metrics of the record outside the corridor, as text."""
    limits = {name: corridor.get(name, (0.0, -1.0)) for name in record.metrics}
    return [
        f"{name} is {record.metrics[name]:.4f}, the runs of the maintainers give {low:.4f} to {high:.4f}"
        for name, (low, high) in limits.items()
        if not low <= record.metrics[name] <= high
    ]


def _digest(accepted: Store, record: Record) -> str:
    return sha256((accepted.directory(record.key) / "record.json").read_bytes()).hexdigest()
