"""Several workers on this machine: they fit together, one of them answers, and none outlives another's failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench
from processes import gone, until

from xmcbench.runs.executor import RunningTrial
from xmcbench.runs.local import WorkerServer
from xmcbench.suite.resources import Share
from xmcbench.trial.record import Record, Status

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")
TWO = Share(workers=2)


def told(bench: Bench) -> list[tuple[int, int]]:
    """The size of its group and the process number of each worker, by rank."""
    paths: list[Path] = sorted(bench.root.glob("results/trials/*/worker-*.json"))
    return [tuple(json.loads(path.read_text())) for path in paths]


def test_every_worker_fits_and_one_answers(bench: Bench) -> None:
    suite = bench.suite({"partners": {"method": "fake-partners"}, "ok": {"method": "fake-ok"}})
    records = bench.run(suite, share=TWO)
    assert [size for size, _ in told(bench)] == [2, 2]
    assert {label: (record.status, record.workers) for label, record in records.items()} == {
        "partners": (Status.OK, 2),
        "ok": (Status.OK, 1),  # it knows nothing of workers
    }
    assert records["partners"].metrics == records["ok"].metrics
    assert records["partners"].key == bench.run(suite)["partners"].key
    assert bench.heard.begun == [], "how many workers there are makes no other trial of it"


@pytest.mark.parametrize(
    ("last", "status", "message"),
    [
        ("fails", Status.ERROR, "worker out of work"),
        ("dies", Status.OOM, "killed by signal 9, most likely out of memory"),
    ],
)
def test_one_workers_failure_ends_all_and_is_what_the_record_tells(
    last: str, status: Status, message: str, bench: Bench
) -> None:
    record = bench.run(bench.suite({"partners": {"method": "fake-partners", "last": last}}), share=TWO)["partners"]
    assert record.failure is not None
    assert (record.status, record.failure.message) == (status, message)
    assert len(told(bench)) == 2
    assert all(until(lambda pid=pid: gone(pid)) for _, pid in told(bench))


def test_a_killed_server_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[WorkerServer] = []
    start, end = WorkerServer.__init__, RunningTrial.outcome

    def noted(self: WorkerServer, log: int) -> None:
        servers.append(self)
        start(self, log)

    def kill(trial: RunningTrial, *arguments: Any) -> Record:
        servers[0].process.kill()
        servers[0].process.wait()
        return end(trial, *arguments)

    monkeypatch.setattr(WorkerServer, "__init__", noted)
    monkeypatch.setattr(RunningTrial, "outcome", kill)
    records = bench.run(bench.suite(["fake-ok", "fake-rare"]))
    assert len(servers) == 2
    assert records["rare"].status is Status.OK
