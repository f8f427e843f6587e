"""A run that needs no worker: two trials on a display, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from fakes.bench import Bench, Heard

from xmcbench.runs.progress import tracked
from xmcbench.tracking import Tracker
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import TrialProgress

CURVE = {"fraction": 0.5, "steps": 3.0, "P@1": 0.25}


def play(bench: Bench, trackers: Sequence[Tracker]) -> dict[str, Record]:
    """Tell trackers of a trial that ends well and one that fails; the records, by label."""
    plan = bench.runner(bench.suite(["fake-ok", "fake-crash"])).plan()
    records = {}
    with tracked(Heard(), trackers) as told:
        for number, step in enumerate(plan, start=1):
            label, trial = step.trial.label, step.trial
            told.begin(step, number, len(plan))
            told.progress(
                step, TrialProgress("train", 0.4, {"loss": 0.5, "step": 2}, {"steps": 2, "encoder_tokens": 70})
            )
            if label == "ok":
                told.progress(step, TrialProgress("predict", 0.0, {}, {"steps": 5}, (CURVE,)))
                outcome = {"metrics": {"P@1": 0.75, "nDCG@5": 0.5}, "spent": {"steps": 5}, "curve": [CURVE]}
            else:
                outcome = {"failure": Failure(type="ValueError", message="no way on"), "spent": {"steps": 2}}
            status = Status.OK if label == "ok" else Status.ERROR
            records[label] = Record(key=trial.key, suite="test", trial=trial, status=status, **outcome)
            told.end(step, records[label])
    return records
