"""What a worker says arrives as it was sent, and changes the state of its trial."""

from __future__ import annotations

import pytest

from xmcbench.runs.events import DiskFault, Event, FailureRecord, Recorded, decode, encode
from xmcbench.trial.run import TrialProgress

EVENTS: list[Event] = [
    TrialProgress("train", 0.5, {"loss": 0.25}, {"steps": 3}, ({"P@1": 0.5},)),
    DiskFault("results: no space left"),
    Recorded("0123456789abcdef"),
    FailureRecord('{"key": "é"}'),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_arrives_as_it_was_sent(event: Event) -> None:
    line = encode(event)
    assert line.index("\n") == len(line) - 1
    found = decode(line)
    assert type(found) is type(event)
    assert {**vars(found), "evaluations": ()} == {**vars(event), "evaluations": ()}
    assert [*getattr(found, "evaluations", ())] == [*getattr(event, "evaluations", ())]


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len({line.split(",")[0] for line in map(encode, EVENTS)}) == len(EVENTS)
