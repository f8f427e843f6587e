"""The resources of a trial on a machine or cluster. They are not in its key: they change speed, not results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Needs:
    """The resources that one trial requests; CPUs and GPUs are per worker."""

    workers: int = 1
    min_workers: int = 1  # the fewest it continues with when workers are lost
    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def single_worker(self) -> Needs:
        """These resources with one worker."""
        return replace(self, workers=1, min_workers=1)


class Share(BaseModel):
    """Resource settings of a trial. Unset fields are left to another `Share` or to the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    workers: int | None = Field(None, gt=0, description="processes that train a trial together (1)")
    min_workers: int | None = Field(
        None, gt=0, description="fewest to continue with when workers are lost (`workers`; Ray)"
    )
    cpus: float | None = Field(None, gt=0, description="CPUs per worker (1; Ray)")
    gpus: float | None = Field(None, ge=0, description="GPUs per worker, may be a fraction (0; Ray)")

    def over(self, other: Share) -> Share:
        """These settings, with unset fields filled in from `other`."""
        return Share(**{**other.set_fields(), **self.set_fields()})

    def set_fields(self) -> dict[str, float]:
        """The fields that are set, by name."""
        values = ((name, getattr(self, name)) for name in Share.model_fields)
        return {name: value for name, value in values if value is not None}


class Resources(Share):
    """The key `resources` of a suite: what every trial may use, and exceptions for some trials."""

    trials: dict[str, Share] = Field(
        {}, description="`GLOB: {the same keys}` for matching labels or dataset/labels; the last match wins"
    )

    def of(self, trial: Trial, command_line: Share) -> Needs:
        """The resources of `trial`; the command line comes before the suite.

        `min_workers` defaults to all workers.
        """
        share: Share = self
        for name, exception in self.trials.items():
            if trial.matches(name):
                share = exception.over(share)
        fields = command_line.over(share).set_fields()
        workers = int(fields.get("workers", 1))
        fewest = min(workers, int(fields.get("min_workers", workers)))
        return Needs(workers, fewest, fields.get("cpus", 1.0), fields.get("gpus", 0.0))
