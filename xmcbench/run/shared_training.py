"""One training for trials that differ only in how their model scores.

A method names such settings in `scoring_settings`. Its trial then loads the model of a stored trial that is otherwise
the same, in place of training again. What training spent is charged to either trial.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from xmcbench.trial.budget import Ledger
from xmcbench.trial.method import Method
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import TrainingLog
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

AFTER_TRAINING = ("predict", "check", "score")  # stages that each trial spends time in itself


def same_training(trial: Trial, method: Method, store: Store) -> Record | None:
    """A stored trial whose training is this trial's, with its model; None where there is none.

    With held-out queries there is none: what scores best on them depends on how the model scores.
    """
    if not method.scoring_settings or trial.selection:
        return None
    wanted = _training(trial, method)
    for record in store.records():
        comparable = record.trial.method == trial.method and record.trial.dataset_hash == trial.dataset_hash
        usable = comparable and record.status in SCORED and saved_model(record, store).is_dir()
        if usable and _training(record.trial, method) == wanted:
            return record
    return None


def saved_model(record: Record, store: Store) -> Path:
    """The folder of the record's model."""
    return store.directory(record.key) / "model"


def restore_log(record: Record, log: TrainingLog) -> None:
    """Enter what the record's training spent and found; the time that its predictions took is left out."""
    known = {field.name for field in fields(Ledger)}
    ledger = {name: value for name, value in record.spent.items() if name in known}
    seconds = ledger.get("stage_seconds", {})
    ledger["stage_seconds"] = {stage: spent for stage, spent in seconds.items() if stage not in AFTER_TRAINING}
    log.restore({"curve": record.curve, "ledger": ledger})


def _training(trial: Trial, method: Method) -> str:
    """The key of the trial without the settings that only change scoring."""
    config = {name: value for name, value in trial.config.items() if name not in method.scoring_settings}
    return trial.changed(config=config).key
