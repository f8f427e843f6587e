"""Settings of tuning: which settings of each method to search, with how many samples, and how."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from xmcbench.trial.budget import Budget
from xmcbench.trial.record_fields import Frozen

REPEATS = 2  # further seeds of a finalist
LARGEST = 2**53  # end of a range: a float holds every whole number up to it


class Range(Frozen, allow_inf_nan=False):
    """Numbers from `low` to `high`, whole if both ends are; with `log` the logarithm is drawn uniformly."""

    low: int | float = Field(description="lower end")
    high: int | float = Field(description="upper end; a range between whole numbers yields whole numbers")
    log: bool = Field(False, description="draw the logarithm uniformly")

    @model_validator(mode="after")
    def _not_empty(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"expected low below high, found {self.low} and {self.high}")
        if max(abs(self.low), abs(self.high)) > LARGEST:
            raise ValueError(f"expected numbers of at most {LARGEST:g}, found {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithm needs numbers above 0, found low {self.low}")
        return self

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = dict[str, Range | Annotated[list[Any], Field(min_length=1)]]  # by setting: a range, or values


class Tune(Frozen):
    """The key `tune` of a suite: how the settings of its methods are chosen."""

    space: dict[str, Space] = Field(
        min_length=1, description="`label: {setting: [values]}`, or a range; `{}`: the method is not tuned"
    )
    num_samples: int = Field(gt=0, description="samples per method and dataset")
    budget: Budget | None = Field(None, description="largest budget of a sample; null: that of the trial")
    metric: str | None = Field(None, description="metric that compares samples; null: the selection's")
    scheduler: Literal["none", "halving"] = Field(
        "none",
        description="none: every sample gets the whole budget; halving: each starts with a part, and the best get "
        "`reduction` times as much, trained anew",
    )
    reduction: int = Field(3, gt=1, description="halving: one sample in this many continues")
    searcher: Literal["random", "optuna"] = Field(
        "random", description="what proposes samples; optuna: tree-structured Parzen estimator"
    )
    finalists: int = Field(
        2,
        gt=0,
        description="best samples that are trained again with two other seeds each; the best mean is taken; 1: the "
        "best sample is taken as it is",
    )
    seed: int = Field(0, description="seed of the searcher")

    @property
    def rungs(self) -> int:
        """The number of budgets that a sample gets, one after another, while it is among the best."""
        return int(math.log(self.num_samples, self.reduction) + 1e-9) + 1 if self.scheduler == "halving" else 1

    @property
    def trainings(self) -> int:
        """About how many trainings a method takes on a dataset: how many samples continue depends on their quality."""
        samples: int = sum(math.ceil(self.num_samples / self.reduction**rung) for rung in range(self.rungs))
        return samples + (REPEATS * self.finalists if min(self.finalists, self.num_samples) > 1 else 0)
