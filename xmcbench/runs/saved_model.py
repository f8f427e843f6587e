"""The model that a finished trial saved: a folder that the method writes, whose manifest is checked on loading.

Trials that differ only in how their model scores share one training. A method lists such settings in
`scoring_settings`. A trial then loads the model of an otherwise identical stored trial instead of training again. The
cost of the training is charged to both trials.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from xmcbench.errors import XMCBenchError
from xmcbench.errors.secrets import holds_secret
from xmcbench.evaluation.calibration import Calibration
from xmcbench.files.atomic import atomic_write
from xmcbench.files.manifest import MANIFEST, check_manifest, checked_folder
from xmcbench.files.regular import MachineFault
from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.runs.fused import FusedModel
from xmcbench.trial.budget import Ledger, UnknownBudget
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.provenance import plugin_digest
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.run import TrainingLog
from xmcbench.trial.store import MODEL, PREDICTIONS, Store
from xmcbench.trial.trial import Trial

_log = logging.getLogger(__name__)
CALIBRATION = "calibration.json"  # in the folder of a model
AFTER_TRAINING = ("predict", "check", "score")  # stages that are not shared


def saved_model(record: Record, store: Store) -> Path:
    """The folder of the record's model."""
    return store.directory(record.key) / "model"


def model_digest(directory: Path) -> str:
    """What identifies a saved model: the SHA-256 of its manifest, which has the digests of all its files."""
    return sha256((directory / MANIFEST).read_bytes()).hexdigest()


def save_model(
    method: Method, directory: Path, calibration: Calibration | None = None
) -> dict[Path, tuple[int, int, int]]:
    """Write a fitted method into the folder `directory`, in place of what is there; the states of its files."""
    with checked_folder(directory) as made:
        method.save(made)
        if calibration is not None:
            (made / CALIBRATION).write_bytes(calibration.encode())
        if links := [path.name for path in made.rglob("*") if path.is_symlink()]:
            raise BrokenContractError(f"save made the link {links[0]!r}, expected files that hold the model")
        if method.info.secrets and (told := [path for path in made.rglob("*") if path.is_file() and _tells(path)]):
            raise BrokenContractError(f"save wrote a secret into {told[0].name}: a loaded model reads it with secret()")
    return file_states(directory)


def _tells(path: Path) -> bool:
    """Whether a file holds a secret."""
    return holds_secret(path.read_bytes())


def file_states(directory: Path) -> dict[Path, tuple[int, int, int]]:
    """Size, time and number of each file in the folder and below: equal where nobody has written there since."""
    states = {path: path.stat() for path in directory.rglob("*")}
    return {path: (state.st_size, state.st_mtime_ns, state.st_ino) for path, state in states.items()}


def leave_calibration(store: Store, trial: Trial, calibration: Calibration) -> None:
    """Have the trial, which has not run yet, save this calibration with its model."""
    with atomic_write(store.directory(trial.key) / CALIBRATION) as file:
        file.write(calibration.encode())


def load_calibration(store: Store, record: Record) -> Calibration | None:
    """The calibration of the record's model; None where the trial held out no queries to fit one on."""
    path = saved_model(record, store) / CALIBRATION
    return Calibration.decode(path.read_bytes()) if path.is_file() else None


def load_model(method: Method, directory: Path) -> None:
    """Load what `save_model` wrote. Raises `DamagedFolder` for files that are not those that were written."""
    check_manifest(directory)
    method.load(directory)


def present_model(record: Record, store: Store) -> Path:
    """The folder of the record's model, its files not checked. Raises `XMCBenchError` if it is missing."""
    directory = saved_model(record, store)
    if isinstance(record.trial.budget, UnknownBudget) and not record.parts:
        raise XMCBenchError(f"{record.trial.label}: imported predictions have no model: expected a run of xmcbench")
    if not directory.is_dir():
        maker = "fuse" if record.parts else "run"
        raise XMCBenchError(f"{directory}: not there: expected the trial's model, which `xmcbench {maker}` makes")
    if not (directory / MANIFEST).exists():
        raise XMCBenchError(f"{directory}: found no {MANIFEST}, so its files cannot be checked: run the trial again")
    return directory


def checked_model(record: Record, store: Store) -> Path:
    """The folder of the record's model, its files checked. Raises `XMCBenchError` if it is missing or damaged."""
    directory = present_model(record, store)
    check_manifest(directory)
    if (expected := record.digests.get(MODEL)) and (digest := model_digest(directory)) != expected:
        raise XMCBenchError(
            f"{directory}: the model of another trial: its manifest has the digest {digest[:12]}, the record of "
            f"{record.key} says {expected[:12]}"
        )
    return directory


def load_saved_model(store: Store, record: Record) -> Method:
    """The trial's fitted method. Raises `XMCBenchError` if its model is missing, damaged or of another version."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # loading takes a moment: no bar
    directory = checked_model(record, store)
    try:
        method = _fused(store, record) if record.parts else build_method(record.trial)
        method.load(directory)
    except XMCBenchError:
        raise
    except Exception as problem:  # libraries raise many classes for a damaged or missing file
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{directory}: cannot be loaded: {reason}") from problem
    return method


def _fused(store: Store, record: Record) -> FusedModel:
    """The models of a fusion's parts, without its rule. Raises XMCBenchError where a part has none, or another one."""
    parts = []
    for part in record.parts:
        stored = store.record(part.key)
        if stored is None or stored.digests.get(PREDICTIONS) != part.predictions:
            problem = "is not in the store" if stored is None else "was run again since"
            raise XMCBenchError(f"{record.trial.label}: its part {part.name} ({part.key}) {problem}: fuse again")
        parts.append(load_saved_model(store, stored))
    return FusedModel(parts)


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
                checked_model(record, store)
            except MachineFault:
                raise
            except XMCBenchError as damage:
                _log.warning("warning: %s; the model is not used, and training is done again", damage)
            else:
                return record
    return None


def restore_log(record: Record, log: TrainingLog) -> None:
    """Fill `log` with the costs and the curve of the record's training, without the time of its predictions."""
    known = {field.name for field in fields(Ledger)}
    ledger = {name: value for name, value in record.spent.items() if name in known}
    for name in ("stage_seconds", "stage_cpu_seconds"):
        seconds = ledger.get(name, {})
        ledger[name] = {stage: spent for stage, spent in seconds.items() if stage not in AFTER_TRAINING}
    ledger["clock"] = record.clock
    log.restore({"curve": record.curve, "ledger": ledger})


def _training(trial: Trial, method: Method) -> str:
    """The key of the trial without the settings that only change scoring."""
    config = {name: value for name, value in trial.config.items() if name not in method.scoring_settings}
    return trial.changed(config=config).key
