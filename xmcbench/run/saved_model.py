"""Loads the model that a finished trial saved."""

from __future__ import annotations

import os

from xmcbench.errors import XMCBenchError
from xmcbench.trial.build import build_method
from xmcbench.trial.method import Method
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


def load_saved_model(store: Store, record: Record) -> Method:
    """The trial's fitted method. Raises `XMCBenchError` if its model is missing, damaged or of another version."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # loading takes a moment: no bar
    directory = store.directory(record.key) / "model"
    if not directory.is_dir():
        raise XMCBenchError(f"{directory}: not there, so nothing can be predicted; `xmcbench run` makes it")
    try:
        method = build_method(record.trial)
        method.load(directory)
    except XMCBenchError:
        raise
    except Exception as problem:  # libraries raise many classes for a damaged or missing file
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{directory}: cannot be loaded: {reason}") from problem
    return method
