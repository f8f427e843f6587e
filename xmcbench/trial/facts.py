"""Facts of a trial that are neither counts nor metrics: why its training ended early, what chose weights and settings.

Each is an enum or a model here; words are made of them where they are shown (`xmcbench/reporting/words.py`). Records of
older code hold sentences in their place, which are read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NotRequired

from pydantic import BeforeValidator, Field, GetPydanticSchema
from typing_extensions import TypedDict

from xmcbench.trial.record_fields import Amount, Count, Frozen, Number, Tree


class Ended(StrEnum):
    """Why a training ended before its budget was spent."""

    FLAT = "flat"  # the metric on held-out queries no longer rose
    PASS_TOO_LARGE = "pass_too_large"  # a pass over the data did not fit into what was left of the budget
    STAGE_TOO_LARGE = "stage_too_large"  # a later stage of the method did not fit: the stage before it answers


class ChosenBy(StrEnum):
    """What chose the weights that predict, or the rule of a fusion."""

    NOTHING = "nothing"  # they are the last ones
    HELD_OUT = "held_out"  # training queries that were held out of training
    TEACHER = "teacher"  # a teacher's answers about training documents
    METHOD = "method"  # a way of the method's own
    UNKNOWN = "unknown"  # another program made the predictions


class Choice(Frozen):
    """What chose the weights that predict, or the rule of a fusion; by default nothing did."""

    by: ChosenBy = ChosenBy.NOTHING
    queries: Count = 0  # training queries that were looked at
    way: str = ""  # by the method itself: how, in its own words


def worth(metric: str, value: float, lower: Container[str] = ()) -> float:
    """How good a value of a metric is, so that more is better: its negative for evaluators in `lower`.

    >>> worth("P@1", 0.5, {"miss"}), worth("miss@5", 0.5, {"miss"})
    (0.5, -0.5)
    """
    return -value if is_lower(metric, lower) else value


def is_lower(metric: str, lower: Container[str]) -> bool:
    """Whether lower values of a metric are better: those of the evaluators in `lower` are."""
    return metric.partition("@")[0] in lower


def is_flat(
    curve: Sequence[Mapping[str, float]], metric: str, patience: int | None, lower: Container[str] = ()
) -> bool:
    """Whether the metric has not improved for `patience` evaluations; never without a patience."""
    values = [worth(metric, point[metric], lower) for point in curve]
    return patience is not None and bool(values) and len(values) - 1 - values.index(max(values)) >= patience


def chosen_share(
    curve: Sequence[Mapping[str, float]], metric: str, noted: float | None = None, lower: Container[str] = ()
) -> float:
    """The share of the budget after which the best weights by `metric` were evaluated; 1 where nothing was to choose.

    `noted` is what the method says itself, where its curve does not show it.
    """
    points = [point for point in curve if metric in point]
    if noted is not None or len(points) < 2:
        return 1.0 if noted is None else noted
    return min(1.0, max(points, key=lambda point: worth(metric, point[metric], lower)).get("fraction", 1.0))


def why_ended(spent: Mapping[str, Any]) -> Ended | None:
    """Why the training with this ledger ended before its budget was spent; None where no reason is noted."""
    if noted := spent.get("ended"):
        return Ended(noted)
    return Ended.PASS_TOO_LARGE if spent.get("refused_pass") else None


# Sentences of records from before these facts were typed.
_HELD_OUT = re.compile(r"train: ([0-9]+) queries held out")
_BY_TEACHER = re.compile(r"teacher: the best label of ([0-9]+) training documents")
_FLAT = re.compile(r"\S+@[0-9]+ had not risen for [0-9]+ evaluations")
_NO_STAGE = "the vectors of the training queries did not fit into the budget: the second stage learnt nothing"


def _choice(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    for by, sentence in ((ChosenBy.HELD_OUT, _HELD_OUT), (ChosenBy.TEACHER, _BY_TEACHER)):
        if match := sentence.fullmatch(value):
            return Choice(by=by, queries=int(match[1]))
    if value in ("none", "unknown"):
        return Choice(by=ChosenBy.NOTHING if value == "none" else ChosenBy.UNKNOWN)
    return Choice(by=ChosenBy.METHOD, way=value)


def _ended(value: Any) -> Any:
    if isinstance(value, str):
        if _FLAT.fullmatch(value):
            return Ended.FLAT
        if value == _NO_STAGE:
            return Ended.STAGE_TOO_LARGE
    return value


# The types of a record's fields, which also take the sentences of older records.
RecordedChoice = Annotated[Choice, BeforeValidator(_choice)]
RecordedEnd = Annotated[Ended, BeforeValidator(_ended)]


class SampleFields(TypedDict):
    """A configuration that tuning tried."""

    settings: Tree
    quality: Number | None
    trial: str
    budget: dict[str, Amount]
    again: NotRequired[list[Annotated[float, Field(allow_inf_nan=False)]]]  # qualities with other seeds


class ChosenFields(TypedDict, total=False):
    """How tuning chose a configuration (`xmcbench.runs.tuning.Search`)."""

    by: str
    metric: str
    on: RecordedChoice
    settings: Tree
    quality: Number
    samples: list[SampleFields]
    spent: dict[str, Amount]


# A plain mapping for readers, which look names up at run time; checked like the class.
Chosen = Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(ChosenFields))]
