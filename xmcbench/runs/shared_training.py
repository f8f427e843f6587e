"""Shares one training among trials that differ only in how their model scores.

A method lists such settings in `scoring_settings`. A trial then loads the model of an otherwise identical stored trial
instead of training again. The cost of the training is charged to both trials.
"""

from __future__ import annotations

import logging
from dataclasses import fields

from xmcbench.files.manifest import DamagedFolder, check_manifest
from xmcbench.runs.saved_model import saved_model
from xmcbench.trial.budget import Ledger
from xmcbench.trial.method import Method
from xmcbench.trial.plugin_code import plugin_digest
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import TrainingLog
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial

_log = logging.getLogger(__name__)
AFTER_TRAINING = ("predict", "check", "score")  # stages that are not shared


def same_training(trial: Trial, method: Method, store: Store) -> Record | None:
    """A stored trial with the same training and a saved model, or None.

    With held-out queries it is None: the checkpoint that is best on them depends on how the model scores.
    """
    if not method.scoring_settings or trial.selection:
        return None
    wanted = _training(trial, method)
    for record in store.records():
        comparable = record.trial.method == trial.method and record.trial.dataset_hash == trial.dataset_hash
        same_code = record.code_digest in ("", plugin_digest(trial))
        if not comparable or not same_code or record.status not in SCORED or not saved_model(record, store).is_dir():
            continue
        if _training(record.trial, method) == wanted:
            try:
                check_manifest(saved_model(record, store))
            except DamagedFolder as damage:
                _log.warning("warning: %s; the model is not used, and training is done again", damage)
            else:
                return record
    return None


def restore_log(record: Record, log: TrainingLog) -> None:
    """Fill `log` with the costs and the curve of the record's training, without the time of its predictions."""
    known = {field.name for field in fields(Ledger)}
    ledger = {name: value for name, value in record.spent.items() if name in known}
    seconds = ledger.get("stage_seconds", {})
    ledger["stage_seconds"] = {stage: spent for stage, spent in seconds.items() if stage not in AFTER_TRAINING}
    log.restore({"curve": record.curve, "ledger": ledger})


def _training(trial: Trial, method: Method) -> str:
    """The key of the trial without the settings that only change scoring."""
    config = {name: value for name, value in trial.config.items() if name not in method.scoring_settings}
    return trial.changed(config=config).key
