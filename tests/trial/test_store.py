"""The store: what is written is there or is not, and what cannot be read or written is told in one line."""

from __future__ import annotations

import errno
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.files.atomic import atomic_write
from xmcbench.trial.budget import Budget
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record, Status, encode
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store, StoreError
from xmcbench.trial.trial import Trial


def record(**changes: object) -> Record:
    trial = Trial(
        label="a", method="m", distribution="d", version="1", config={}, dataset="x", dataset_hash="h", seed=0,
        budget=Budget(steps=1),
    )  # fmt: skip
    made = Record.model_validate({"key": "", "suite": "s", "trial": trial, "status": Status.OK} | changes)
    return made.model_copy(update={"key": made.trial.key})


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
    digest = store.write_predictions(KEY, given_predictions, "hash")
    back, truth = store.predictions(record(digests={PREDICTIONS: digest}))
    np.testing.assert_array_equal(back.indices, indices)
    np.testing.assert_array_equal(back.scores, given_predictions.scores)
    assert (back.indices.dtype, back.scores.dtype, truth) == (np.int32, np.float32, "hash")


def test_an_absent_record_is_none_and_an_absent_store_is_empty(store: Store) -> None:
    assert store.record(KEY) is None
    assert store.records() == []
    assert not store.in_flight(KEY)


@pytest.mark.parametrize("content", [b"", b"{", encode(record()).replace(b'"ok"', b'"oom"')])
def test_a_damaged_record_is_named_and_the_others_are_read(
    store: Store, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    other = record(trial={**record().trial.model_dump(), "seed": 1})
    store.write_record(record())
    store.write_record(other)
    path = store.directory(KEY) / "record.json"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.record(KEY)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert store.records() == [other]
    assert caplog.messages == [f"warning: {caught.value}; left out"]


def test_a_record_in_the_place_of_another_is_named(store: Store) -> None:
    store.write_record(record())
    store.directory(KEY).rename(store.directory("0" * 16))
    with pytest.raises(StoreError, match=f"found the record of {KEY}, expected that of 0000000000000000"):
        store.record("0" * 16)
    assert store.records() == []


def test_metrics_on_resamples_come_back_for_the_same_truth_only(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    figures = {"P@1": np.arange(3, dtype=np.float32), "R@5": np.ones(3, dtype=np.float32)}
    answered = record(truth_hash="t")
    assert store.resampled(answered, ["P@1"]) == {}
    answered = record(truth_hash="t", digests={RESAMPLED: store.write_resampled(KEY, figures, "t")})
    back = store.resampled(answered, ["R@5", "R@7"])
    assert list(back) == ["R@5"]
    np.testing.assert_array_equal(back["R@5"], figures["R@5"])
    assert store.resampled(answered.model_copy(update={"truth_hash": "another"}), ["P@1"]) == {}
    assert not caplog.text
    (store.directory(KEY) / "resampled.safetensors").write_bytes(b"no")
    assert store.resampled(answered, ["P@1"]) == {}
    assert "resampled.safetensors: damaged, or of another trial: found the digest" in caplog.text


def test_missing_metrics_on_resamples_are_named(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for digests in ({RESAMPLED: "0" * 64}, {}):
        scored = record(truth_hash="t", metrics={"P@1": 0.5}, intervals={"P@1": (0.0, 1.0)}, digests=digests)
        assert store.resampled(scored, ["P@1"]) == {}
        assert "the file is missing; left out, `xmcbench rescore` makes it again" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("offset", [60, 200, -1])
def test_metrics_on_resamples_with_a_flipped_bit_are_named_and_left_out(
    store: Store, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    digest = store.write_resampled(KEY, {"P@1": np.arange(99, dtype=np.float32)}, "t")
    answered = record(truth_hash="t", digests={RESAMPLED: digest})
    path = store.directory(KEY) / "resampled.safetensors"
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    assert store.resampled(answered, ["P@1"]) == {}
    assert f"{path}: damaged, or of another trial: found the digest" in caplog.text


def test_damage_of_one_result_leaves_the_other(store: Store) -> None:
    ranked = Predictions(np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32))
    digests = {PREDICTIONS: store.write_predictions(KEY, ranked, "t")}
    digests[RESAMPLED] = store.write_resampled(KEY, {"P@1": np.ones(3, np.float32)}, "t")
    scored = record(truth_hash="t", digests=digests)
    (store.directory(KEY) / RESAMPLED).write_bytes(b"")
    assert store.predictions(scored)[1] == "t"
    assert store.resampled(scored, ["P@1"]) == {}
    digests[RESAMPLED] = store.write_resampled(KEY, {"P@1": np.ones(3, np.float32)}, "t")
    assert set(store.resampled(record(truth_hash="t", digests=digests), ["P@1"])) == {"P@1"}


def test_predictions_of_more_queries_than_expected_are_not_unpacked(store: Store) -> None:
    many = Predictions(np.zeros((2000, 100), np.int32), np.zeros((2000, 100), np.float32))
    large = record(digests={PREDICTIONS: store.write_predictions(KEY, many, "t")})
    assert len(store.predictions(large, 2000)[0]) == 2000
    with pytest.raises(StoreError, match="array indices: found 200,000 entries, expected at most 199,900"):
        store.predictions(large, 1999)


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
@pytest.mark.parametrize("name", ["record.json", "predictions.npz", "resampled.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_of_a_store_are_read(
    store: Store, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.directory(KEY) / name
    path.parent.mkdir(parents=True)
    {"pipe": os.mkfifo, "device": lambda place: place.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](path)
    known = record(truth_hash="t", digests={name: "0" * 64})
    for own, read in (("record.json", lambda: store.record(KEY)), (PREDICTIONS, lambda: store.predictions(known))):
        if name == own:
            with pytest.raises(StoreError, match=f"{name}: not a regular file"):
                read()
    assert store.resampled(known, ["P@1"]) == {}
    assert name != "resampled.safetensors" or f"{name}: not a regular file" in caplog.text


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more"])
def test_damaged_predictions_are_named(store: Store, content: bytes) -> None:
    path = store.directory(KEY) / "predictions.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"predictions\.npz: damaged: "):
        store.predictions(record(digests={PREDICTIONS: sha256(path.read_bytes()).hexdigest()}))


def test_predictions_that_need_pickle_are_refused(store: Store) -> None:
    path = store.directory(KEY) / "predictions.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, indices=np.array([{}], dtype=object), scores=np.zeros(1), truth_hash=np.array("x"))
    with pytest.raises(StoreError, match="found the type object, expected integers"):
        store.predictions(record(digests={PREDICTIONS: sha256(path.read_bytes()).hexdigest()}))


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


def test_a_lock_that_keeps_nobody_out_is_known(store: Store) -> None:
    """As on file systems that grant every lock: there another process gets what this one holds."""
    with store.lock(KEY):
        assert store.lock_holds(KEY)
    assert not store.lock_holds(KEY)


@pytest.mark.parametrize("place", ["trials", ""])
@pytest.mark.parametrize(
    "command",
    [
        "leaderboard", "compare a b", "show a", "rescore",
        "predict a --text x", "analyse a", "run {suite} --dry-run", "tables {suite}",
    ],
)  # fmt: skip
def test_every_command_names_a_store_whose_folder_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    from commands import told

    store, suite = tmp_path / "results", tmp_path / "suite.yaml"
    suite.write_text("name: t\ndatasets: [catalog-200]\nbudget: {steps: 2}\nmethods: {a: {method: popular}}\n")
    if place:
        store.mkdir()
    (store / place).write_text("no folder")
    words = command.format(store=store, suite=suite).split()
    code, _, errors = told(capsys, *words, *([] if "--check" in words else ["--store", store]))
    assert code == 2
    (line,) = (line for line in errors.splitlines() if not line.endswith("so far"))
    assert line.startswith(f"error: {store}")
