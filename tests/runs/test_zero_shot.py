"""The zero-shot track: no method sees a training annotation, whichever way it looks."""

from __future__ import annotations

import pytest
from fakes.bench import Bench

from xmcbench.evaluation import ZERO_SHOT_METRICS
from xmcbench.trial.record import Record, Status


def in_track(bench: Bench, track: str, method: str) -> Record:
    (record,) = bench.run(bench.suite([method], track=track)).values()
    return record


def test_a_method_that_asks_for_annotations_is_told_so(bench: Bench) -> None:
    record = in_track(bench, "zero-shot", "fake-ok")
    assert record.status is Status.ERROR
    assert record.failure is not None
    assert record.failure.type == "XMCBenchError"
    assert record.failure.message.startswith("method 'fake-ok' asks for training annotations")
    assert in_track(bench, "supervised", "fake-ok").status is Status.OK


def test_there_is_no_annotation_in_the_process(bench: Bench) -> None:
    """The one who searches it finds them in the other track: the search is one that finds."""
    record = in_track(bench, "supervised", "fake-blind")
    assert record.failure is not None
    assert record.failure.message == "found training annotations"
    record = in_track(bench, "zero-shot", "fake-blind")
    assert record.status is Status.OK


def test_tracks_share_no_result_and_figures_are_computed_alike(bench: Bench) -> None:
    zero_shot, again = (in_track(bench, "zero-shot", "fake-constant") for _ in range(2))
    supervised = in_track(bench, "supervised", "fake-constant")
    assert zero_shot.key == again.key != supervised.key
    assert (zero_shot.trial.track, supervised.trial.track) == ("zero-shot", "supervised")
    assert tuple(zero_shot.metrics) == ZERO_SHOT_METRICS
    assert all(zero_shot.metrics[name] == supervised.metrics[name] for name in ZERO_SHOT_METRICS)


@pytest.mark.parametrize("track", ["zero-shot", "supervised"])
def test_propensities_are_the_scorers_affair(bench: Bench, track: str) -> None:
    (record,) = bench.run(bench.suite(["fake-constant"], track=track, metrics=["PSP@5", "P@5"])).values()
    assert record.metrics["PSP@5"] == pytest.approx(0.25, abs=0.1)
