"""Whole runs with a teacher: what befalls its server changes nothing but the time it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench

from xmcbench.plugins.registry import registry
from xmcbench.teachers import TeacherError
from xmcbench.trial.record import Record, Status

from .server import PROMPT_SEVERAL, PROMPT_WRITE, Server


@pytest.fixture(autouse=True)
def with_our_plugins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")  # after the bench, which names the fakes alone
    registry.cache_clear()


LMTX = {"method": "lmtx", "cycles": 2, "shortlist": 6, "development": 20, "documents": 60}
PROMPTED = {"method": "infer-retrieve-rank", "prompt": PROMPT_WRITE, "shortlist": 6, "documents": 40}


def run(
    bench: Bench, url: str, encoder: str, method: dict[str, Any] = LMTX, **teacher: Any
) -> tuple[Record, np.ndarray]:
    """The record of a run, and what it predicts."""
    told = {"name": "openai", "model": "m", "base_url": url, "prompt": PROMPT_SEVERAL, "retries": 2} | teacher
    settings = {"encoder": encoder, "batch_size": 16, "max_query_length": 24, "max_label_length": 24}
    places = {"datasets": ["catalog-60"], "track": "zero-shot", "settings": settings, "budget": {"epochs": 3}}
    (record,) = bench.run(bench.suite({"taught": method | {"teacher": told}}, **places), debug=True).values()
    return record, bench.store.predictions(record)[0].indices


@pytest.mark.long
@pytest.mark.parametrize("method", [LMTX, PROMPTED], ids=lambda method: str(method["method"]))
def test_a_run_whose_server_was_killed_ends_as_one_whose_was_not(
    method: dict[str, Any], bench: Bench, server: Server, small_encoder: str, tmp_path: Path
) -> None:
    server.start()
    (tmp_path / "whole").mkdir()
    whole, expected = run(Bench(tmp_path / "whole"), server.url, small_encoder, method)
    assert whole.status is Status.OK
    assert set(server.answered().values()) == {1}
    pairs = server.answered()
    assert whole.spent["teacher_calls"] == pairs.total()
    server.kill()
    server.log.unlink()

    server.start(last=100)
    with pytest.raises(TeacherError, match="its earlier answers are cached"):
        run(bench, server.url, small_encoder, method)
    assert server.answered().total() >= 100
    server.start("429")
    record, predicted = run(bench, server.url, small_encoder, method)
    assert record.status is Status.OK
    assert np.array_equal(predicted, expected)
    assert server.answered() == pairs
    for name in ("teacher_calls", "teacher_prompt_tokens", "teacher_completion_tokens", "steps", "encoder_tokens"):
        assert record.spent[name] == whole.spent[name], name
    assert [point["teacher P@1"] for point in record.curve] == [point["teacher P@1"] for point in whole.curve]


@pytest.mark.parametrize("fault", ["500", "garbage", "slow", "half"])
def test_a_run_whose_server_has_faults_ends_well(bench: Bench, server: Server, small_encoder: str, fault: str) -> None:
    server.start(fault)
    record, _ = run(bench, server.url, small_encoder, concurrency=32)
    assert record.status is Status.OK
    assert set(server.answered().values()) == {1}
    assert record.spent["teacher_calls"] == server.answered().total()


def test_every_cycle_and_every_part_indexes_the_labels(bench: Bench, small_encoder: str) -> None:
    untrained = {"method": "untrained", "encoder": small_encoder}
    methods = {
        "cycles": {"method": "lmtx", "teacher": "annotated", "cycles": 4, "encoder": small_encoder, "batch_size": 16},
        "parts": {"method": "fuse", "rule": "reciprocal-ranks", "parts": [untrained] * 3},
    }
    suite = bench.suite(methods, datasets=["catalog-60"], budget={"epochs": 4})
    records = bench.run(suite, debug=True)
    assert [record.failure for record in records.values()] == [None, None]
    assert len(records["cycles"].curve) > 2
