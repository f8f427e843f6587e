"""What the maintainers trained again, and whether a result was reproduced: the state of a row.

A file of the maintainers has it, outside the submissions; `xmcbench submit KEY --verify` and `--retrain` write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from xmcbench.files.yaml_lines import read_model
from xmcbench.reporting.rows import MARGIN, Reproduced
from xmcbench.trial.record_fields import Frozen

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

FEWEST_SEEDS = 3
SAME = 0.01  # share of a cost by which two trainings of one trial may differ


class Verification(Frozen):
    """How close the fresh runs of the maintainers are to an accepted result."""

    records: dict[str, str] = Field(
        min_length=1, description="of the accepted trials: key and SHA-256 of the record file"
    )
    commits: list[str] = Field(description="of the code that ran it again")
    seeds: list[int] = Field(min_length=FEWEST_SEEDS, description="fresh ones, that it was run with")
    margins: dict[str, float] = Field(min_length=1, description="by metric: points within which both are shown to be")

    @property
    def agrees(self) -> bool:
        """Whether every metric is within the margin."""
        return max(self.margins.values()) <= MARGIN

    def __str__(self) -> str:
        metric, margin = max(self.margins.items(), key=itemgetter(1))
        return f"within {margin:.2f} points (widest: {metric}, {len(self.seeds)} fresh seeds)"


class Retraining(Frozen):
    """How an accepted trial differs from a training of the maintainers with its own seed."""

    records: dict[str, str] = Field(min_length=1, max_length=1, description="of the trial: key and SHA-256 of its file")
    commits: list[str] = Field(description="of the code that trained it again")
    points: dict[str, float] = Field(min_length=1, description="by metric: absolute difference")
    costs: dict[str, float] = Field(description="by cost: of the accepted trial, as a share of the training's")

    @property
    def agrees(self) -> bool:
        """Whether every metric is within the margin, and every cost the same."""
        near = max(self.points.values()) <= MARGIN
        return near and all(abs(share - 1) <= SAME for share in self.costs.values())

    def __str__(self) -> str:
        metric, points = max(self.points.items(), key=itemgetter(1))
        text = f"trained again: {metric} differs by {points:.2f} points"
        if not self.costs:
            return text + "; its costs depend on the clock"
        cost, share = max(self.costs.items(), key=lambda cost: abs(cost[1] - 1))
        return text + f", {cost} {share:.3f} times"


class Verifications(Frozen):
    """The maintainers' list of what they trained again."""

    verified: tuple[Verification, ...] = ()
    retrained: tuple[Retraining, ...] = ()

    def of(self, accepted: Store, record: Record) -> Verification | Retraining | None:
        """What was found of an accepted trial, unless its record has changed since: by fresh seeds, or by its own."""
        digest = record_digest(accepted, record)
        known: list[Verification | Retraining] = [*self.verified, *self.retrained]
        outcomes = [outcome for outcome in known if outcome.records.get(record.key) == digest]
        return min(outcomes, key=lambda one: not (isinstance(one, Verification) and one.agrees), default=None)


def read_verifications(path: Path) -> Verifications:
    """The verifications of a file, none if the file does not exist.

    Raises `XMCBenchError` with file, line and key of each mistake.
    """
    return read_model(Verifications, path) if path.exists() else Verifications()


def record_digest(accepted: Store, record: Record) -> str:
    """The SHA-256 of an accepted trial's record file."""
    return sha256(accepted.record_file(record.key)[1] or b"").hexdigest()


def reproduced(outcome: Verification | Retraining | None) -> Reproduced | None:
    """What a verification says of a trial; None where nobody trained it again."""
    if outcome is None:
        return None
    if not outcome.agrees:
        return Reproduced.NOT
    return Reproduced.VERIFIED if isinstance(outcome, Verification) else Reproduced.RETRAINED


def states(path: Path, accepted: Store, records: Iterable[Record]) -> dict[str, Reproduced]:
    """By key: the state of each of the accepted `records` that the file at `path` says something of."""
    verifications = read_verifications(path)
    listed: list[Verification | Retraining] = [*verifications.verified, *verifications.retrained]
    named = {key for outcome in listed for key in outcome.records}
    states = {one.key: reproduced(verifications.of(accepted, one)) for one in records if one.key in named}
    return {key: state for key, state in states.items() if state is not None}
