"""A record file is as it was written, or it is not read; older ones are brought up to date."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, RecordError, Status, decode, encode
from xmcbench.trial.store import Store
from xmcbench.trial.trial import SCHEMA_VERSION, Trial


def record(**changes: Any) -> Record:
    trial = Trial(
        label="a", method="m", distribution="d", version="1", config={"lr": 1e-3}, dataset="x", dataset_hash="h",
        seed=0, budget=Budget(steps=1),
    )  # fmt: skip
    outcome: dict[str, Any] = {"key": trial.key, "suite": "s", "trial": trial, "status": Status.OK}
    return Record(**outcome | {"metrics": {"P@1": 0.1 + 0.2}, "intervals": {"P@1": (0.1, 0.4)}} | changes)


WRITTEN = encode(record())


def test_what_is_written_is_read() -> None:
    assert decode(WRITTEN) == record()
    assert json.loads(WRITTEN)["schema_version"] == SCHEMA_VERSION


def test_what_an_outside_program_computed_is_unknown() -> None:
    """Also in a record from before this was noted: most of its processor time was that of child processes."""
    spent = {"steps": 0, "flops": 0, "epochs": 2.0, "fit_cpu_seconds": 10.0}
    assert record(spent=spent | {"fit_children_cpu_seconds": 1.0}).not_counted == frozenset()
    older = record(spent=spent | {"fit_children_cpu_seconds": 9.0}).not_counted
    assert {"steps", "flops", "encoder_tokens"} <= older
    assert "epochs" not in older
    noted = record(spent={"not_counted": ["steps"], "steps": 3}, curve=[{"fraction": 1.0, "steps": 3, "P@1": 0.5}])
    assert noted.not_counted == {"steps"}
    assert "steps" not in noted.counted
    assert noted.counted_curve == [{"fraction": 1.0, "P@1": 0.5}]


@settings(max_examples=300)
@given(data=st.data())
def test_no_change_of_a_byte_goes_unnoticed(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(WRITTEN) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != WRITTEN[place]))
    with pytest.raises(RecordError) as caught:
        decode(WRITTEN[:place] + bytes([other]) + WRITTEN[place + 1 :])
    assert "\n" not in str(caught.value)


@given(end=st.integers(0, len(WRITTEN) - 2))
def test_a_file_cut_short_is_no_record(end: int) -> None:
    with pytest.raises(RecordError, match="not a record: not JSON"):
        decode(WRITTEN[:end])


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_give_anything_but_a_line(content: bytes) -> None:
    with pytest.raises(RecordError) as caught:
        decode(content)
    assert "\n" not in str(caught.value)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(WRITTEN) | fields).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(metrics={"P@1": 0.99}), "edited after it was written"),
        (changed(), "edited after it was written"),  # laid out anew: whether more was done cannot be told
        (changed(digest=None), "found no digest, expected one"),
        (record().model_dump_json().encode(), "found no digest, expected one"),
        (changed(schema_version=99), "found schema version 99, expected 3: another xmcbench wrote it"),
        (
            changed(schema_version=2),
            "found schema version 2, expected 3",
        ),
        (changed(schema_version=0), "found schema version 0, expected 3"),
        (changed(schema_version="3"), "found schema version '3'"),
        (changed(schema_version=True), "found schema version True"),
        (b"[]", "found schema version None"),
        (encode(record().model_copy(update={"metrics": {"P@1": 52.0}})), r"metrics\.P@1: Input should be less than"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode(content)


def test_what_older_code_made_is_recognised() -> None:
    made = record()
    assert made.older_than({"method": 3}) == ""
    trial = made.trial.changed(versions={"method": 1, "engine": 2, "teacher t": 1})
    made = record(trial=trial, key=trial.key)
    assert made.older_than({"method": 1, "engine": 2}) == ""
    assert made.older_than({"method": 2, "engine": 2, "teacher t": 4}) == "method 1, now 2; teacher t 1, now 4"


def test_every_version_but_the_release_is_in_the_key() -> None:
    trial = record().trial
    assert trial.changed(version="9").key == trial.key
    raised = trial.changed(versions={"engine": 2})
    assert raised.key != trial.key
    assert raised.key_of_any_version == trial.key_of_any_version
    assert trial.changed(seed=1).key_of_any_version != trial.key_of_any_version


def test_a_store_reads_what_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.write_record(record())
    for key, content in {
        "old": changed(schema_version=2),
        "cut": WRITTEN[:-40],
        "empty": b"",
        "new": changed(schema_version=4),
    }.items():
        store.directory(key).mkdir(parents=True)
        (store.directory(key) / "record.json").write_bytes(content)
    (tmp_path / "trials" / "stray").write_text("no folder")
    (store.directory("folder") / "record.json").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert {found.key for found in store.records()} == {record().key}
    assert len(caplog.messages) == 5
    assert all(line.startswith(f"warning: {tmp_path}") and "\n" not in line for line in caplog.messages)
