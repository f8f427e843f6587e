"""One thing to run: a method with a resolved configuration, a dataset, a seed and a budget."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from xmcbench.trial.budget import Budget, UnknownBudget

SCHEMA_VERSION = 2  # of keys, records and stored predictions; a change makes every key a new one
Track = Literal["supervised", "zero-shot"]  # in the second no method sees a training annotation


class Selection(BaseModel):
    """Training queries held out to choose among checkpoints. Test targets never choose anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queries: int = Field(1000, gt=0, description="training queries held out; they are not trained on")
    metric: str = Field("nDCG@5", description="figure the best checkpoint is chosen by")
    evaluations: int = Field(4, gt=0, description="how often quality is looked at, evenly over the budget")


class Trial(BaseModel):
    """All that determines a result. `label` and `dataset` are names for people and are not part of the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    method: str
    distribution: str
    version: str
    config: dict[str, Any]
    dataset: str
    dataset_hash: str
    seed: int
    budget: Budget | UnknownBudget
    selection: Selection | None = None
    track: Track = "supervised"

    def matches(self, name: str) -> bool:
        """Whether its label, or `dataset/label`, is `name` or matches it as a shell pattern."""
        names = (self.label, f"{self.dataset}/{self.label}")
        return name in names or any(fnmatchcase(each, name) for each in names)

    def changed(self, **changes: Any) -> Trial:
        """Another trial, with a key of its own: a copy would keep this one's."""
        return Trial.model_validate({**self.model_dump(), **changes})

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of a content hash: the same key is never run twice, two keys share no result."""
        content = self.model_dump(mode="json", exclude={"label", "dataset"})
        text = json.dumps([SCHEMA_VERSION, content], sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:16]
