"""Packed trials are the trials to the byte, and what installed copies have of their resamples ranks them alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xmcbench.evaluation.bootstrap import compact_resamples
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Row
from xmcbench.trial.packed import PACK, Packed, record_of
from xmcbench.trial.record import decode, encode
from xmcbench.trial.store import Store
from xmcbench_plugins.board.packing import add_packed, line_of, packed_path
from xmcbench_plugins.board.results import ACCEPTED

STORE = Store(ACCEPTED)


def test_every_accepted_line_gives_back_its_record_file_and_line() -> None:
    packed = Packed(ACCEPTED)
    assert packed.problems == []
    for key, own in packed.records.items():
        record = decode(own.content)  # checks the digest of the file
        assert record.key == key
        assert line_of(own.content, own.files) == own.line
        assert own.path == packed_path(ACCEPTED, record)
        assert STORE.resampled(record, record.metrics).keys() == record.intervals.keys()


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"trial": 1}', b'{"trial": {}, "key": "../../x"}', b"[" * 9999])
def test_a_line_of_another_form_is_named(line: bytes, tmp_path: Path) -> None:
    with pytest.raises((ValueError, RecursionError)):
        record_of(line)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "suite.jsonl").write_bytes(line + b"\nx")
    problems = Packed(tmp_path).problems
    assert [problem.split(": ")[0] for problem in problems] == [f"{tmp_path}/one/suite.jsonl:{n}" for n in (1, 2)]
    assert all("\n" not in problem for problem in problems)


def test_a_trial_takes_the_place_of_the_same_key_in_any_file(tmp_path: Path) -> None:
    first, second, *_ = STORE.records()
    for record in (first, second):
        add_packed(tmp_path, [(record, encode(record), {"a.bin": record.key.encode()})])
    moved = first.model_copy(update={"suite": "no file / name"})
    (path,) = add_packed(tmp_path, [(moved, encode(moved), {"b.bin": b"b"})])
    packed = Packed(tmp_path)
    assert path.name == "other.jsonl"
    assert packed.records.keys() == {first.key, second.key}
    assert packed.records[first.key].path == path
    assert (packed.file(first.key, "a.bin"), packed.file(first.key, "b.bin")) == (None, b"b")
    assert packed.file(second.key, "a.bin") == second.key.encode()
    assert Store(tmp_path).records() == sorted([moved, second], key=lambda record: record.key)


@given(
    values=arrays.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(2, 12)), elements=st.floats(-1, 1)),
    more=st.integers(1, 4),
)
def test_compact_resamples_have_the_covariances(values: np.ndarray, more: int) -> None:
    half = compact_resamples(values, len(values) + more).astype(np.float64)
    made = np.concatenate([half, -half], axis=1)
    np.testing.assert_allclose(made.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(made), np.cov(values), atol=1e-4)  # 16 significant bits


def test_an_installed_copy_shows_the_ties_and_intervals_of_a_clone(tmp_path: Path) -> None:
    """A wheel holds no packs of result files."""
    shutil.copytree(ACCEPTED, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob(f"*/*{PACK}"):
        path.unlink()
    here, installed = rows(STORE), rows(Store(tmp_path))
    assert [row.tied for row in installed] == [row.tied for row in here]
    assert any(row.tied for row in here)
    for own, other in zip(here, installed, strict=True):
        assert own.intervals.keys() == other.intervals.keys()
        for metric, ends in own.intervals.items():
            half = (ends[1] - ends[0]) / 2
            np.testing.assert_allclose(other.intervals[metric], ends, rtol=0, atol=half * 2**-16)  # significant bits


def rows(store: Store) -> list[Row]:
    records = {record.key: record for record in store.records()}
    board = leaderboard(records.values(), resampled=lambda key, names: store.resampled(records[key], names))
    return [row for group in board.groups for row in group.rows]
