"""The interface of executors, and the simplest one: trials in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record

if TYPE_CHECKING:
    from xmcbench.runs.running_trial import Task


class Executor(Protocol):
    """Runs trials while its `with` block is open. Leaving the block ends unfinished trials without a record."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *problem: object) -> None: ...

    def check(self, needs: Needs) -> None:
        """Raise XMCBenchError if there can never be room for a trial with these needs."""

    def has_room(self, needs: Needs) -> bool:
        """Whether a trial with these needs may be started now."""

    def start(self, task: Task) -> None:
        """Start a trial. The caller holds its lock."""

    def finished(self) -> list[Record]:
        """The records of trials that ended since the last call. If there are none, waits a moment for one."""


class InProcess:
    """Runs one trial at a time in this process, for a debugger: exceptions pass through."""

    def __init__(self) -> None:
        self._finished: list[Record] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None: ...

    def check(self, needs: Needs) -> None: ...

    def has_room(self, needs: Needs) -> bool:  # noqa: ARG002  (of the protocol)
        return not self._finished

    def start(self, task: Task) -> None:
        from xmcbench.runs.attempt import Attempt

        record = Attempt(task.job, task.report).perform()
        assert record is not None, "the only worker is worker 0"
        self._finished.append(record)

    def finished(self) -> list[Record]:
        finished, self._finished = self._finished, []
        return finished
