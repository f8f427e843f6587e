"""Metrics by name, "P@5" is the evaluator P at k = 5; and predictions to metrics with their intervals.

`Head:most=50@5` is the evaluator Head at k = 5 with its parameter `most` at 50 (`xmcbench/evaluation/parameters.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench.data.pairs import binary
from xmcbench.errors import UnknownNameError, XMCBenchError, reason_of, shown
from xmcbench.evaluation.bootstrap import intervals, resample
from xmcbench.evaluation.calibration import CalibrationMetric
from xmcbench.evaluation.label_metrics import LABEL_EVALUATORS, SEEN_EVALUATORS
from xmcbench.evaluation.metrics import EVALUATORS, Hits, MetricTerms, find_hits, inverse_propensity, label_counts
from xmcbench.evaluation.ranking import check_metrics, check_predictions
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.plugins.registry import registry
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    from xmcbench.trial.store import Store

DEFAULT_METRICS = (
    *(f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in (1, 3, 5)),
    *(f"R@{k}" for k in (1, 3, 5, 10, 100)),
)

AGREEMENT = 1e-6  # between a metric and the same metric by other code

# What papers on learning without annotations report (LMTX Section 2.6).
ZERO_SHOT_METRICS = (*(f"P@{k}" for k in (1, 3, 5)), *(f"R@{k}" for k in (1, 3, 5, 10, 100)))


class Evaluator(Protocol):
    """A family of metrics, one for each k. Plugins register instances through `register_evaluators`.

    An evaluator whose metric is a ratio of two sums over queries, or over labels, may also have a method
    `terms(hits, k)` that returns `MetricTerms`, the terms of each. Its metrics then get confidence intervals.

    An evaluator that computes the metric of another one by other code names that one in an attribute `repeats`. Where
    both are scored they must agree to `AGREEMENT`.

    An evaluator of errors has an attribute `lower_is_better` that is true. Rankings, ties, the choice of checkpoints
    and tuning then take the lowest value for the best.

    The other fields of an evaluator that is a dataclass are parameters, if they have a default that is a number, a bool
    or a string: `Head:most=50@5` is the metric of an evaluator whose field `most` is 50.
    """

    @property
    def name(self) -> str:
        """The part of a metric's name before the @."""

    @property
    def summary(self) -> str:
        """A definition in one line."""

    def compute(self, hits: Hits, k: int, /) -> float:
        """The metric at `k`, a fraction in 0..1."""


def parse_metric(metric: str, evaluators: Mapping[str, Evaluator]) -> tuple[Evaluator, int]:
    """The evaluator and the k that `metric` names, of those that `find_evaluators` found for it."""
    name, k = _split(metric, "")
    return evaluators[name], k


def find_evaluators(metrics: Iterable[str], where: str = "") -> dict[str, Evaluator]:
    """The registered evaluators that `metrics` name. Imports third-party plugins only where a name is not built in."""
    evaluators: dict[str, Evaluator] = {}
    for metric in metrics:
        name, k = _split(metric, where)
        family, _, given = name.partition(":")
        try:
            evaluators[name] = registry().thing("evaluator", family)
        except UnknownNameError:
            known = [f"{evaluator.name}@{k}" for evaluator in registry().all("evaluator")]
            raise registry().unknown("metric", metric, known, where) from None
        if ":" in name:
            from xmcbench.evaluation.parameters import with_parameters  # imports pydantic's adapters of types

            evaluators[name] = with_parameters(evaluators[name], given, metric, where)
    return evaluators


def lower_is_better(evaluators: Mapping[str, Evaluator]) -> tuple[str, ...]:
    """The names of those evaluators whose lower values are better."""
    return tuple(sorted(name for name, evaluator in evaluators.items() if getattr(evaluator, "lower_is_better", False)))


def _split(metric: str, where: str) -> tuple[str, int]:
    parts = re.fullmatch(r"(.+)@([1-9][0-9]{0,8})", metric, flags=re.ASCII)
    if parts is None:
        raise UnknownNameError("metric", metric, DEFAULT_METRICS, where)
    if int(parts[2]) > STORED:
        prefix = f"{where}: " if where else ""
        raise XMCBenchError(f"{prefix}metric {metric!r} needs more labels per query than the {STORED} that are stored")
    return parts[1], int(parts[2])


def repeated_metrics(metrics: Sequence[str]) -> list[str]:
    """The metrics by which registered evaluators compute some of `metrics` a second time."""
    repeats = {getattr(each.thing, "repeats", None): each.name for each in registry().all("evaluator")}
    parts = [_split(metric, "") for metric in metrics]
    return [f"{repeats[name]}@{k}" for name, k in parts if name in repeats]


def dataset_hits(predictions: Predictions, dataset: Dataset) -> Hits:
    """The hits of checked `predictions` for the dataset's test split, with card, texts, counts and propensities."""
    card = dataset.card
    targets = dataset.train.targets
    weights = inverse_propensity(targets, card.propensity_a, card.propensity_b)
    hits = find_hits(predictions, dataset.test.targets, weights, label_counts(targets), card)
    return replace(hits, texts=dataset.test.texts, label_texts=dataset.label_texts)


@contextmanager
def named_failure(metric: str) -> Iterator[None]:
    """Turn what an evaluator raises into one line that names the metric."""
    try:
        yield
    except XMCBenchError:
        raise
    except Exception as problem:
        raise XMCBenchError(f"the evaluator of {metric} failed: {reason_of(problem)}") from problem


def score(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, float]:
    """The values of `metrics`, fractions; impossible combinations of values are an error.

    A metric at k needs the best k labels (or all L): shorter predictions are an error, not a lower value.
    """
    parsed = {metric: parse_metric(metric, evaluators) for metric in metrics}
    held = hits.predictions.k
    for metric, (_, k) in parsed.items():
        if held < min(k, hits.truth.shape[1]):
            raise XMCBenchError(f"{metric} needs the best {k} labels per query, the predictions hold {held}")
    values: dict[str, float] = {}
    for metric, (evaluator, k) in parsed.items():
        with named_failure(metric):
            values[metric] = float(evaluator.compute(hits, k))
    check_metrics(values)
    for metric, (evaluator, k) in parsed.items():
        other = f"{getattr(evaluator, 'repeats', evaluator.name)}@{k}"
        if other in values and abs(values[metric] - values[other]) > AGREEMENT:
            raise XMCBenchError(f"{metric} is {values[metric]}, {other} is {values[other]}, expected them equal")
    return values


def metric_terms(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, MetricTerms]:
    """The terms per query of `metrics`. Metrics whose evaluator has no `terms` are left out."""
    by_metric = {}
    for metric in metrics:
        evaluator, k = parse_metric(metric, evaluators)
        if (terms := getattr(evaluator, "terms", None)) is not None:
            with named_failure(metric):
                by_metric[metric] = _checked(terms(hits, k))
    return by_metric


def _checked(terms: Any) -> MetricTerms:
    """The terms of an evaluator. Raises TypeError or ValueError where no interval follows from them."""
    if not isinstance(terms, MetricTerms):
        raise TypeError(f"terms returned {shown(terms)}, expected an xmcbench.evaluation.MetricTerms")
    shapes = [np.shape(part) for part in (terms.numerator, terms.denominator)]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1] or not all(shapes[0]):
        raise ValueError(f"terms returned arrays of shapes {shapes[0]} and {shapes[1]}, expected one number for each")
    if not (np.isfinite(terms.numerator).all() and np.isfinite(terms.denominator).all()):
        raise ValueError("terms returned a number that is not finite")
    return terms


@hookimpl
def register_evaluators(register: Callable[[Evaluator], None]) -> None:
    """Register the metrics that are means over queries or over labels, those of some labels, and calibration."""
    for evaluator in (*EVALUATORS, *LABEL_EVALUATORS, *SEEN_EVALUATORS, CalibrationMetric()):
        register(evaluator)


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as an evaluator."""
    if not callable(getattr(thing, "compute", None)):
        raise TypeError(f"{thing!r} is not an Evaluator of xmcbench.evaluation: it does not define compute")
    name = getattr(thing, "name", "")
    if isinstance(name, str) and (wrong := set(name) & set(":@=,")):
        raise TypeError(f"the evaluator {name!r} has {min(wrong)!r} in its name, which separates k and parameters")
    if not isinstance(getattr(thing, "lower_is_better", False), bool):
        raise TypeError(f"{name}.lower_is_better is {thing.lower_is_better!r}, expected True or False")


@dataclass(frozen=True)
class Scores:
    """Metrics by name as fractions, and their replicates on resamples of the test queries, float32 [B] each."""

    metrics: dict[str, float]
    resampled: dict[str, np.ndarray]

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each metric that has replicates."""
        return intervals(self.resampled)


def score_predictions(
    predictions: Predictions, dataset: Dataset, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]
) -> Scores:
    """The scores of checked `predictions` for the dataset's test split."""
    hits = dataset_hits(predictions, dataset)
    return Scores(score(hits, metrics, evaluators), resampled_metrics(hits, metrics, evaluators))


def resampled_metrics(hits: Hits, metrics: Sequence[str], evaluators: Mapping[str, Evaluator]) -> dict[str, np.ndarray]:
    """The replicates of `metrics`, float32 [B] each. Metrics whose evaluator has no `terms` are left out."""
    return resample(metric_terms(hits, metrics, evaluators))


def truth_hash(dataset: Dataset) -> str:
    """SHA-256 of the test targets and the ignored test pairs, as sets: entry order and integer width do not matter."""
    digest = sha256()
    for matrix in (dataset.test.targets, dataset.ignore_test):
        pairs = binary(matrix)
        for part in (pairs.shape, pairs.indptr, pairs.indices):
            digest.update(np.asarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


def stored_predictions(store: Store, record: Record, dataset: Dataset) -> Predictions:
    """The predictions of a trial, valid for `dataset`.

    Raises `XMCBenchError` if the trial ran on other data, or if the predictions are damaged or were scored against
    other test targets.
    """
    name, content_hash = dataset.card.name, dataset.card.content_hash
    if content_hash != record.trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {name!r} has the content hash {content_hash[:12]}, the trial ran on "
            f"{record.trial.dataset_hash[:12]}"
        )
    predictions, stored_hash = store.predictions(record, dataset.test.targets.shape[0])
    if stored_hash != (expected := truth_hash(dataset)):
        raise XMCBenchError(
            f"its predictions answer to the truth {stored_hash[:12]}, dataset {name!r} has {expected[:12]}"
        )
    check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
    return predictions
