"""One thing to run: a method with a resolved configuration, a dataset, a seed and a budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from operator import not_
from typing import Any, Literal

from pydantic import Field

from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.record_fields import LARGEST, Count, Frozen, Tree

SCHEMA_VERSION = 3  # of keys, records and stored predictions; a new schema makes every key a new one
Track = Literal["supervised", "zero-shot"]  # zero-shot: no method sees a training annotation
NOT_IN_KEY = frozenset({"label", "dataset", "version"})


class Selection(Frozen):
    """Training queries held out to choose among checkpoints. Test targets are never used for a choice."""

    queries: int = Field(1000, gt=0, le=LARGEST, description="training queries held out of training")
    metric: str = Field("nDCG@5", description="metric that chooses the checkpoint")
    evaluations: int = Field(4, gt=0, le=LARGEST, description="evaluations, evenly spaced over the budget")
    patience: int | None = Field(
        None,
        gt=0,
        le=LARGEST,
        exclude_if=not_,  # keys and records are those of selections that know none
        description="training ends when the metric has not risen for this many evaluations; null: with the budget",
    )
    refit: bool = Field(
        default=False,
        exclude_if=not_,
        description="the held-out queries choose only how long to train: the model is then trained anew on all "
        "training queries, with the share of the budget after which the best evaluation came. What the first training "
        "spent is recorded beside the budget (`choice`)",
    )


class Trial(Frozen):
    """Everything that determines a result, and so the trial's key.

    `label` and `dataset` are names for people and are not in the key. Neither is `version`, the distribution's release:
    a release that changes no result keeps every key, and one that does raises some of `versions`.
    """

    label: str
    method: str
    distribution: str
    version: str
    versions: dict[str, Count] = Field(default_factory=dict)  # of the code that the result depends on, by part
    config: Tree
    dataset: str
    dataset_hash: str
    seed: int = Field(ge=-LARGEST, le=LARGEST)
    budget: Budget | UnknownBudget
    selection: Selection | None = None
    track: Track = "supervised"
    # A sample of a tuning: held-out queries judge it, and it never sees the test split. Not in the key of other trials.
    held_out_only: bool = Field(default=False, exclude_if=not_)

    def matches(self, name: str) -> bool:
        """Whether its label, or `dataset/label`, is `name` or matches it as a shell pattern."""
        names = (self.label, f"{self.dataset}/{self.label}")
        return name in names or any(fnmatchcase(path, name) for path in names)

    def changed(self, **changes: Any) -> Trial:
        """A trial with these fields changed. Unlike `model_copy` it does not keep this trial's cached key."""
        return Trial.model_validate({**self.model_dump(), **changes})

    @property
    def unseen_queries(self) -> int:
        """The number of training queries that the model which predicts was not trained on."""
        return self.selection.queries if self.selection is not None and not self.selection.refit else 0

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of a hash of everything that determines the result. A key is run once."""
        return self._hash(NOT_IN_KEY)

    @cached_property
    def key_of_any_version(self) -> str:
        """Like `key`, but the same for all versions of the code."""
        return self._hash(NOT_IN_KEY | {"versions"})

    @cached_property
    def but_seed(self) -> str:
        """Equal for trials that differ in their seed, or in the release that ran them, alone."""
        return self.model_dump_json(exclude={"seed", "version"})

    def _hash(self, without: frozenset[str]) -> str:
        content = self.model_dump(mode="json", exclude=set(without))
        text = json.dumps([SCHEMA_VERSION, content], sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:16]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted name, in order; an empty mapping is a leaf.

    >>> dict(flatten({"encoder": {"name": "tiny"}, "steps": None}))
    {'encoder.name': 'tiny', 'steps': None}
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
