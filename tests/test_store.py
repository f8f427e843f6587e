"""The store: what is written is there or is not, and what cannot be read or written is told in one line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.budget import Budget
from xmcbench.files import atomic_write
from xmcbench.predictions import Predictions
from xmcbench.record import Record, Status
from xmcbench.store import Store, StoreError
from xmcbench.trial import Trial


def record(**changes: object) -> Record:
    trial = Trial(
        label="a", method="m", distribution="d", version="1", config={}, dataset="x", dataset_hash="h", seed=0,
        budget=Budget(steps=1),
    )  # fmt: skip
    return Record.model_validate({"key": trial.key, "suite": "s", "trial": trial, "status": Status.OK} | changes)


KEY = record().key


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@given(value=st.floats(0, 1))
def test_figures_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    store.write_record(record(metrics={"P@1": value}))
    (back,) = store.records()
    assert back == record(metrics={"P@1": value})


def test_predictions_come_back_exactly(store: Store) -> None:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 99, (7, 5)).astype(np.int32)
    given_predictions = Predictions(indices, rng.standard_normal((7, 5)).astype(np.float32))
    store.write_predictions(KEY, given_predictions, "hash")
    back, truth = store.predictions(KEY)
    np.testing.assert_array_equal(back.indices, indices)
    np.testing.assert_array_equal(back.scores, given_predictions.scores)
    assert (back.indices.dtype, back.scores.dtype, truth) == (np.int32, np.float32, "hash")


def test_an_absent_record_is_none_and_an_absent_store_is_empty(store: Store) -> None:
    assert store.record(KEY) is None
    assert store.records() == []
    assert not store.in_flight(KEY)


def edited(field: str, value: object) -> bytes:
    return json.dumps(json.loads(record().model_dump_json()) | {field: value}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (record().model_dump_json().encode()[:-9], "not a record: Invalid JSON"),
        (b"", "not a record"),
        (b"\xff\xfe", "not a record"),
        (edited("status", "fine"), "not a record: status: "),
        (edited("extra", 1), "not a record: extra: "),
        (edited("schema_version", 99), "found schema version 99, expected 1"),
        (edited("key", "0" * 16), "moved or edited"),
    ],
)
def test_a_damaged_record_is_named(store: Store, content: bytes, message: str) -> None:
    store.write_record(record())
    path = store.directory(KEY) / "record.json"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.records()
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more"])
def test_damaged_predictions_are_named(store: Store, content: bytes) -> None:
    path = store.directory(KEY) / "predictions.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"predictions\.npz: "):
        store.predictions(KEY)


def test_predictions_that_need_pickle_are_refused(store: Store) -> None:
    path = store.directory(KEY) / "predictions.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, indices=np.array([{}], dtype=object), scores=np.zeros(1), truth_hash=np.array("x"))
    with pytest.raises(StoreError, match="damaged"):
        store.predictions(KEY)


def test_a_full_disk_leaves_the_old_record_and_no_litter(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_record(record())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"record\.json: cannot write: No space left on device"):
        store.write_record(record(status=Status.ERROR))
    with pytest.raises(StoreError, match=r"predictions\.npz: cannot write: No space left on device"):
        store.write_predictions(KEY, Predictions(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32)), "h")
    monkeypatch.undo()
    assert store.record(KEY) == record()
    assert [path.name for path in store.directory(KEY).iterdir()] == ["record.json"]


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read and write everything")
def test_a_store_without_permission_is_named(store: Store) -> None:
    store.write_record(record())
    path = store.directory(KEY) / "record.json"
    path.chmod(0)
    with pytest.raises(StoreError, match=r"record\.json: cannot read: Permission denied"):
        store.records()


def test_a_store_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "results").write_record(record())


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_by_one(store: Store) -> None:
    with store.lock(KEY) as first, store.lock(KEY, wait=False) as second:
        assert first
        assert not second
    with store.lock(KEY, wait=False) as third:
        assert third
