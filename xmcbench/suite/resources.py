"""What a trial may take of a machine or a cluster. It is in no key: it decides how fast a result comes, not which."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Needs:
    """What one trial asks for; CPUs and GPUs are those of a worker."""

    workers: int = 1
    min_workers: int = 1  # with as few it goes on when workers were lost
    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def alone(self) -> Needs:
        """The same with one worker."""
        return replace(self, workers=1, min_workers=1)


class Share(BaseModel):
    """A part of what a trial may take; what is not said here is said elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int | None = Field(None, gt=0, description="processes that train a trial together")
    min_workers: int | None = Field(None, gt=0, description="fewest it goes on with when workers are lost (Ray)")
    cpus: float | None = Field(None, gt=0, description="of a worker (Ray)")
    gpus: float | None = Field(None, ge=0, description="of a worker (Ray)")

    def over(self, other: Share) -> Share:
        """What this says, and what `other` says where this says nothing."""
        return Share(**{name: getattr(other, name) for name in Share.model_fields} | self.said())

    def said(self) -> dict[str, float]:
        """What is said, by name."""
        values = ((name, getattr(self, name)) for name in Share.model_fields)
        return {name: value for name, value in values if value is not None}


class Resources(Share):
    """The key `resources` of a suite: what every trial may take, and what those of some names take instead."""

    trials: dict[str, Share] = Field({}, description="by GLOB of label or dataset/label; the later one wins")

    def of(self, trial: Trial, told: Share) -> Needs:
        """What `trial` asks for; what the command line `told` comes before the suite.

        Several workers are all needed, unless it is said that fewer will do.
        """
        share: Share = self
        for name, exception in self.trials.items():
            if trial.matches(name):
                share = exception.over(share)
        said = told.over(share).said()
        workers = int(said.get("workers", 1))
        fewest = min(workers, int(said.get("min_workers", workers)))
        return Needs(workers, fewest, said.get("cpus", 1.0), said.get("gpus", 0.0))
