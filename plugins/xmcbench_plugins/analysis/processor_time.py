"""Processor seconds of a trial over what its counts predict: a glance that finds work that nobody charged.

Trials on one dataset with one encoder say what an operation, a token and a step take. Those are asked whose operations
all follow from formulas, of encoders and scores. Work that a trial does and does not count, as of a module, a solver or
an encoder of its own, makes it take longer than its counts predict. So do other machines and slow code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import SCORED, Record

MOST = 1.5  # more than that wants an explanation
FEWEST = 6  # trials that predict
COUNTS = ("flops", "encoder_tokens", "steps")
OF_FORMULAS = ("encoder_flops", "scoring_flops")


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds of processors in `fit`, and what the counts of a trial predict from `trials` others."""

    seconds: float
    predicted: float
    trials: int

    @property
    def share(self) -> float:
        return self.seconds / self.predicted

    @property
    def unexplained(self) -> bool:
        """Whether it took so much longer that its submitter should say why."""
        return self.share > MOST

    def __str__(self) -> str:
        wants = f", above {MOST:g}: what takes it?" if self.unexplained else ""
        return f"processors took {self.share:.2f} times what its counts predict{wants}"


def processor_time(record: Record, others: Iterable[Record]) -> ProcessorTime | None:
    """The processor time of `record` beside that of trials in `others` with its dataset and encoder.

    None where its counts or its seconds are unknown, or fewer than `FEWEST` of the others, with other labels, predict.
    """
    counts = _counts(record)
    known = [(other.suite, numbers) for other in others if _predicts(other, record) and (numbers := _counts(other))]
    beside = [numbers for suite, numbers in known if suite == record.suite]  # most likely of the same machine
    measured = beside if len(beside) >= FEWEST else [numbers for _, numbers in known]
    if counts is None or len(measured) < FEWEST:
        return None
    seconds_R, counts_RC = (np.array(part, float) for part in zip(*measured, strict=True))
    scale_C = np.maximum(counts_RC.max(axis=0), 1.0)
    shares_RC = counts_RC / scale_C / seconds_R[:, None]  # relative errors: short trials say as much as long ones
    weights_C, _ = nnls(shares_RC, np.ones(len(seconds_R)))
    predicted = float(np.array(counts[1], float) / scale_C @ weights_C)
    return ProcessorTime(counts[0], predicted, len(measured)) if predicted > 0 else None


def _predicts(other: Record, record: Record) -> bool:
    """Whether `other` says what the counts of `record` take: all its operations follow from formulas."""
    trial, judged = other.trial, record.trial
    if (trial.dataset, trial.track) != (judged.dataset, judged.track) or trial.label == judged.label:
        return False
    if _encoder(other) != _encoder(record):
        return False
    spent = other.counted
    return bool(spent.get("steps")) and sum(spent.get(name, 0) for name in OF_FORMULAS) == spent.get("flops")


def _encoder(record: Record) -> object:
    """The encoder's settings, also those of a first method."""
    config = record.trial.config
    config = config.get("first", config)
    return config.get("encoder"), config.get("precision")


def _counts(record: Record) -> tuple[float, list[float]] | None:
    """Seconds of processors and the counts; None where one is unknown."""
    seconds, spent = record.spent.get("fit_cpu_seconds"), record.counted
    if record.status not in SCORED or not seconds or not all(name in spent for name in COUNTS):
        return None
    return float(seconds), [float(spent[name]) for name in COUNTS]


def processor_table(named: Iterable[tuple[str, Record]], others: Sequence[Record]) -> TextTable | None:
    """A line for each trial whose processor time others predict; None where none is."""
    times = [(name, time) for name, record in named if (time := processor_time(record, others))]
    if not times:
        return None
    rows = tuple(
        (name, f"{time.seconds:,.1f}", f"{time.predicted:,.1f}", f"{time.share:.2f}", str(time.trials))
        for name, time in times
    )
    notes = ["Predicted from operations, tokens and steps of other trials with the same encoder."]
    notes += [f"{name}: {time}" for name, time in times if time.unexplained]
    headings = ("trial", "seconds", "predicted", "share", "from trials")
    return TextTable("processor seconds of fit", headings, rows, tuple(notes))
