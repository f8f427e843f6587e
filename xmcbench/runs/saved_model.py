"""The model that a finished trial saved: a folder that the method writes, whose manifest is checked on loading."""

from __future__ import annotations

import os
from pathlib import Path

from xmcbench.errors import XMCBenchError
from xmcbench.files.manifest import MANIFEST, check_manifest, checked_folder
from xmcbench.runs.file_guard import BrokenContractError
from xmcbench.trial.build import build_method
from xmcbench.trial.method import Method
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


def saved_model(record: Record, store: Store) -> Path:
    """The folder of the record's model."""
    return store.directory(record.key) / "model"


def save_model(method: Method, directory: Path) -> int:
    """Write a fitted method into the folder `directory`, in place of what is there. Returns its size in bytes."""
    with checked_folder(directory) as made:
        method.save(made)
        if links := [path.name for path in made.rglob("*") if path.is_symlink()]:
            raise BrokenContractError(f"save made the link {links[0]!r}, expected files that hold the model")
    return sum(path.stat().st_size for path in directory.rglob("*"))


def load_model(method: Method, directory: Path) -> None:
    """Load what `save_model` wrote. Raises `DamagedFolder` for files that are not those that were written."""
    check_manifest(directory)
    method.load(directory)


def checked_model(record: Record, store: Store) -> Path:
    """The folder of the record's model, its files checked. Raises `XMCBenchError` if it is missing or damaged."""
    directory = saved_model(record, store)
    if not directory.is_dir():
        raise XMCBenchError(f"{directory}: not there: expected the trial's model, which `xmcbench run` makes")
    if not (directory / MANIFEST).exists():
        raise XMCBenchError(f"{directory}: found no {MANIFEST}, so its files cannot be checked: run the trial again")
    check_manifest(directory)
    return directory


def load_saved_model(store: Store, record: Record) -> Method:
    """The trial's fitted method. Raises `XMCBenchError` if its model is missing, damaged or of another version."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # loading takes a moment: no bar
    directory = checked_model(record, store)
    try:
        method = build_method(record.trial)
        method.load(directory)
    except XMCBenchError:
        raise
    except Exception as problem:  # libraries raise many classes for a damaged or missing file
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{directory}: cannot be loaded: {reason}") from problem
    return method
