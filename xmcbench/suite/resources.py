"""The resources of a trial on a machine or cluster. They are not in its key: they change speed, not results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from xmcbench.trial.record_fields import Frozen
from xmcbench.trial.trial import Trial


@dataclass(frozen=True)
class Needs:
    """The resources that one trial requests; CPUs and GPUs are per worker."""

    workers: int = 1
    min_workers: int = 1  # the fewest it continues with when workers are lost
    cpus: float = 1.0
    gpus: float | None = None  # None: one where there are GPUs


class Share(Frozen):
    """Resource settings of a trial. Unset fields are left to another `Share` or to the defaults."""

    workers: int | None = Field(None, gt=0, description="processes that train a trial together (1)")
    min_workers: int | None = Field(
        None, gt=0, description="fewest to continue with when workers are lost (`workers`; Ray)"
    )
    cpus: float | None = Field(None, gt=0, description="CPUs per worker (1; Ray)")
    gpus: float | None = Field(
        None,
        ge=0,
        description="GPUs per worker, on Ray also a fraction; 0 hides all (1 if the method uses one and there is any)",
    )


class Resources(Share):
    """The key `resources` of a suite: what every trial may use, and exceptions for some trials."""

    parallel: Literal["auto"] | None = Field(
        None,
        description="`auto`: as many trials at once as cores and memory allow, without seconds in tables (one at a "
        "time, or one for each GPU)",
    )
    trials: dict[str, Share] = Field(
        {}, description="`GLOB: {the same keys}` for matching labels or dataset/labels; the last match wins"
    )

    def of(self, trial: Trial, command_line: Share) -> Needs:
        """The resources of `trial`; the command line comes before the suite.

        `min_workers` defaults to all workers.
        """
        exceptions = [share for name, share in self.trials.items() if trial.matches(name)]
        said: dict[str, Any] = {"workers": 1}
        for share in (self, *exceptions, command_line):
            said |= share.model_dump(exclude={"trials", "parallel"}, exclude_none=True)
        return Needs(**said | {"min_workers": min(said["workers"], said.get("min_workers", said["workers"]))})
