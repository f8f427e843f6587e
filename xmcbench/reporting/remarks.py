"""What a record says of itself: parts of its method that never ran, and why it may be no better than `popular`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import FEW_STEPS, SCORED, Record

MOSTLY_CUT = 0.3  # share of the queries
FELL, ROSE = 0.7, 1.1  # of a curve: its end to its peak, its end to the evaluation before
COLLAPSED = 0.02  # the best metric of an encoder that maps all texts to one point


def idle_parts(record: Record) -> tuple[str, ...]:
    """The parts of the method that never ran; empty also for a method that is not installed, or of another version."""
    if record.status not in SCORED:
        return ()
    from xmcbench.trial.build import build_method  # imports numpy

    try:
        return tuple(idle.part for idle in build_method(record.trial).idle_parts(record.spent))
    except (XMCBenchError, ValidationError):
        return ()


def few_steps(record: Record) -> str:
    """That a training has hardly begun; empty for one that has."""
    steps = record.spent.get("steps", 0)
    return f"{steps} steps: lower batch_size or raise the budget" if 0 < steps < FEW_STEPS else ""


def what_is_wrong(record: Record) -> str:
    """What most likely keeps a trained method at the level of the most frequent labels, by the record's own figures."""
    return next(_problems(record))


def _problems(record: Record) -> Iterator[str]:
    config, spent = record.trial.config, record.spent
    rate = config.get("learning_rate")
    if few := few_steps(record):
        yield few
    if record.metrics and max(record.metrics.values()) < COLLAPSED:
        yield f"its embeddings have collapsed, or learning_rate {rate} is far too high"
    metric = record.trial.selection.metric if record.trial.selection else ""
    values = [point[metric] for point in record.curve if metric in point]
    if values and values[-1] < FELL * max(values):
        yield f"{metric} fell from {max(values):.3f} to {values[-1]:.3f}: lower learning_rate ({rate})"
    if len(values) > 1 and values[-1] > ROSE * values[-2]:
        yield f"{metric} still rose when the budget ended: raise it, or learning_rate ({rate})"
    if (share := spent.get("cut_queries", 0.0)) > MOSTLY_CUT:
        yield f"{share:.0%} of the queries are cut: raise max_query_length"
    yield f"learning_rate {rate} does not suit batches of {config.get('batch_size')}: `xmcbench tune` searches it"
