"""Memory that ends in one trial of twenty: it has one record and one line, and the others are as if it had not run."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from commands import told
from fakes import install_own
from fakes.bench import Bench

from xmcbench.trial.record import Record, Status

SOURCE = """
import ctypes
import os
import resource
import signal

import numpy as np
import psutil
from xmcbench import hookimpl
from xmcbench_fakes import Ok

SPARE = 64 << 20  # bytes that the trial may still take


class Hungry(Ok):
    name = "hungry"

    class Config(Ok.Config):
        way: str = "array"

    def fit(self, train, run):
        taken = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE, resource.RLIM_INFINITY))
        if self.config.way == "array":  # numpy raises MemoryError
            np.ones(4 * SPARE, np.uint8)
        if self.config.way == "objects":  # Python itself has no room left, also not for a message
            found = []
            while True:
                found.append(bytearray(1 << 12))
        if self.config.way == "library":  # as C++ does whose exception nobody catches
            ctypes.CDLL(None).malloc.restype = ctypes.c_void_p
            assert not ctypes.CDLL(None).malloc(ctypes.c_size_t(4 * SPARE))
            os.abort()
        os.kill(os.getpid(), signal.SIGKILL)  # as the system's out-of-memory killer does


@hookimpl
def register_methods(register):
    register(Hungry)
"""
OTHERS = {f"ok-{number}": {"method": "fake-ok", "strength": 1.0 + number} for number in range(19)}
WAYS = {
    "array": {(Status.OOM, "MemoryError")},
    "objects": {(Status.OOM, "MemoryError"), (Status.ERROR, "Exit")},  # as there is room for a record, or none
    "library": {(Status.ERROR, "SIGABRT")},  # a signal that says nothing of memory
    "killer": {(Status.OOM, "SIGKILL")},
}


def alike(records: Iterable[Record]) -> dict[str, tuple[object, ...]]:
    """What of the other trials' records is not measured."""
    return {own.key: (own.status, own.metrics, own.spent["steps"]) for own in records if own.trial.label in OTHERS}


@pytest.mark.slow  # forty trials in processes of their own, four times
@pytest.mark.skipif(os.name != "posix", reason="limits of a process are POSIX")
@pytest.mark.parametrize("way", WAYS)
def test_memory_that_ends_in_one_of_twenty_trials_touches_no_other(
    way: str, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_own(bench.root / "site", monkeypatch, "hungry", SOURCE)
    alone = alike(bench.run(bench.suite(OTHERS), store=bench.root / "alone", debug=True).values())
    assert len(alone) == 19
    suite = bench.suite({"hungry": {"method": "hungry", "way": way}, **OTHERS})
    code, output, errors = told(capsys, "run", suite, *bench.places)
    assert code == 1
    assert alike(bench.store.records()) == alone
    (record,) = (own for own in bench.store.records() if own.trial.label == "hungry")
    assert record.failure
    assert (record.status, record.failure.type) in WAYS[way]
    assert sum(f"fake-20/hungry seed 0: {record.status}" in line for line in output.splitlines()) == 1, output
    assert "Traceback" not in output + errors
