"""What a worker tells the process that started it: objects, which cross a pipe or a cluster as lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps, loads  # as they are before a method may change the module
from typing import Any

from xmcbench.trial.run import TrialProgress


@dataclass(frozen=True)
class DiskFault:
    """A file could not be read or written: no outcome of the trial."""

    message: str


@dataclass(frozen=True)
class Recorded:
    """The harness has written the record of the trial with this key."""

    key: str


@dataclass(frozen=True)
class FailureRecord:
    """The record of a failure, of a worker that may not see the store."""

    record: str  # JSON


@dataclass(frozen=True)
class Warned:
    """A trial that goes on has met something that its user should know."""

    message: str


Event = TrialProgress | DiskFault | Recorded | FailureRecord | Warned
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (TrialProgress, DiskFault, Recorded, FailureRecord, Warned)
}


def encode(event: Event) -> str:
    """A line that holds the event.

    >>> decode(encode(Recorded("0c")))
    Recorded(key='0c')
    """
    fields = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(event).items()}
    return dumps({"event": type(event).__name__, **fields}) + "\n"


def decode(line: bytes | str) -> Event:
    """The event in a line that `encode` made."""
    content = loads(line)
    event: Event = KINDS[content.pop("event")](**content)
    return event
