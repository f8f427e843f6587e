"""The costs of a row, in the units of the charts."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from xmcbench.reporting.published import count_devices
from xmcbench.reporting.rows import Row
from xmcbench.trial.record import Record

CHART_COSTS = {
    "negative_pool": "negatives per query",  # as in PRIME, Figure 1: the labels that a query is scored against
    "encoder_tokens": "encoder tokens",
    "device_hours": "device hours",
    "flops": "floating-point operations",
    "batch_size": "batch size",
    "num_parameters": "parameters",
}
CURVE_COSTS = {
    "encoder_tokens": "encoder tokens",
    "flops": "floating-point operations",
    "steps": "optimiser steps",
    "device_seconds": "device seconds",
}  # what the points of a record's curve say of the budget


def costs(row: Row) -> dict[str, float]:
    """The known costs of a row, by name of `CHART_COSTS`; a cost of 0 is left out, since charts are logarithmic."""
    known = {name: row.facts[name] for name in CHART_COSTS if name in row.facts}
    if (hours := _device_hours(row)) is not None:
        known["device_hours"] = hours
    return {name: float(cost) for name, cost in known.items() if isinstance(cost, int | float) and cost > 0}


def _device_hours(row: Row) -> float | None:
    """Measured: what the budget covers, of all workers. Published: hours of training of all devices."""
    seconds, hours, hardware = (row.facts.get(name) for name in ("device_seconds", "training_hours", "hardware"))
    if row.source == "measured":
        workers = row.facts.get("workers", 1)
        return seconds * workers / 3600 if isinstance(seconds, float) and isinstance(workers, int) else None
    if not isinstance(hours, float) or not isinstance(hardware, str):
        return None
    return hours * count_devices(hardware)


def share_spent(record: Record) -> float:
    """The share of its budget that a trial spent: of the limit that is closest to being used up, or the furthest over.

    An unknown budget has no limit; nothing is spent of it.
    """
    limits = record.trial.budget.spending().items()
    return max((float(record.spent.get(name, 0.0)) / limit for name, limit in limits), default=0.0)


def mean_curve(records: Sequence[Record]) -> dict[str, list[float]]:
    """Quality along the budget, mean over the seeds of a row: values by what was spent, in per cent by metric.

    `METRIC ±` is half the 95 % interval over seeds, where there are several. It ends where the first seed ended; empty
    where a seed has no curve.
    """
    points = list(zip(*(record.curve for record in records), strict=False))
    if not points:
        return {}
    known = [name for name in points[0][0] if all(name in own for point in points for own in point)]
    found: dict[str, list[float]] = {}
    for name in known:
        values = [[own[name] for own in point] for point in points]
        if name in (*CURVE_COSTS, "fraction"):
            found[name] = [float(f"{fmean(own):.4g}") for own in values]
        else:
            found[name] = [round(100 * fmean(own), 2) for own in values]
            if len(records) > 1:
                found[f"{name} ±"] = [round(100 * _half_width(own), 2) for own in values]
    return found


def _half_width(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of `values`."""
    from xmcbench.evaluation.significance import Estimate  # scipy

    own = Estimate(0.0, 0.0, stdev(values) / sqrt(len(values)), len(values) - 1.0)
    return own.interval[1]
