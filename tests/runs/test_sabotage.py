"""Methods and evaluators that break the contract without failing: what the record of each trial says.

`tests/plugins/conformance` has what `xmcbench check` finds, `tests/plugin_registry` what the registry refuses, and
`tests/tracking` what becomes of a tracker that fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from commands import call, told
from fakes.bench import Bench
from processes import gone, until

from xmcbench.runs.executor import RunningTrial
from xmcbench.runs.predicting import differs
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record

from fakes import install_fakes, sabotage  # isort: skip

# By method: the status of its trial, and the start of the reason. "" is for a trial without a failure.
ENDINGS = {
    "load-raises": ("invalid", "the saved model cannot be used: ValueError: no such format in two lines"),
    "load-other": ("invalid", "predictions differ from those of the saved model, loaded again: 'test 0' gets 0:"),
    "saves-nothing": ("invalid", "the saved model cannot be used: FileNotFoundError: "),
    "neighbours": ("invalid", "predictions depend on the other queries of the call or on their order: 'test"),
    "counting": ("invalid", "predictions depend on the other queries of the call or on their order: 'test"),
    "fake-order": ("invalid", "predictions depend on the other queries of the call or on their order"),
    "reader": ("invalid", "the method opened "),
    "quiet-reader": ("invalid", "the method opened "),
    "mutating": ("invalid", "fit changed the method's settings"),
    "replacing": ("invalid", "fit changed the method's settings"),
    "tuples": ("invalid", "predict returned tuple, expected xmcbench.Predictions"),
    "nothing": ("invalid", "predict returned NoneType, expected xmcbench.Predictions"),
    "short": ("invalid", "predictions are of shape (39, 20), expected (queries, k) = (40, 20)"),
    "narrow": ("invalid", "predictions are of shape (40, 3), expected (queries, k) = (40, 20)"),
    "floats": ("invalid", "labels are of type float64, expected integers"),
    "out-of-range": ("invalid", "the predictions of test query 15 hold a label outside 0..19: 27"),
    "twice": ("invalid", "the predictions of test query 9 hold a label twice"),
    "rising": ("invalid", "the predictions of test query 0 hold scores that do not descend"),
    "half-nan": ("invalid", "the predictions of test query 0 hold a score that is NaN"),
    "infinite": ("invalid", "the predictions of test query 0 hold an infinite score"),
    "exits": ("error", "0"),
    "vanishes": ("error", "the worker ended with code 0 and left no record"),
    "interrupts": ("error", "killed by signal 2 (SIGINT)"),
    "recursive": ("error", "maximum recursion depth exceeded"),
    "spender": ("over_budget", ""),
    "surroundings": ("ok", ""),
    "thread": ("ok", ""),
    "fake-ok": ("ok", ""),
}


@pytest.fixture
def saboteurs(bench: Bench) -> Iterator[Bench]:
    """A bench with the plugin that breaks its contracts."""
    with sabotage(bench.root / "site"):
        yield bench


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The records of one run of all methods: none stops another, the last of them behaves."""
    root = tmp_path_factory.mktemp("sabotage")
    with pytest.MonkeyPatch.context() as monkeypatch:
        (root / "site").mkdir()
        install_fakes(root / "site", monkeypatch)
        monkeypatch.setenv("XMCBENCH_CACHE", str(root / "cache"))
        bench = Bench(root)
        with sabotage(root / "site"):
            start = time.monotonic()
            records = bench.run(bench.suite({name: {"method": name} for name in ENDINGS}), cache=root / "cache")
            records["fake-ok"].provenance["seconds of all"] = time.monotonic() - start
    return records


@pytest.mark.long
@pytest.mark.parametrize("method", ENDINGS)
def test_what_the_record_says(endings: dict[str, Record], method: str) -> None:
    record, (status, reason) = endings[method], ENDINGS[method]
    assert record.status == status, record.failure
    message = record.failure.message if record.failure else ""
    assert message.startswith(reason)
    assert bool(message) == bool(reason)
    assert "\n" not in message


@pytest.mark.long
def test_a_thread_that_a_method_leaves_behind_holds_nothing_up(endings: dict[str, Record]) -> None:
    """It sleeps for ten hours."""
    assert endings["fake-ok"].provenance["seconds of all"] < 30_000


@pytest.mark.long
def test_what_a_method_does_to_its_process_reaches_no_other_trial(endings: dict[str, Record]) -> None:
    """`surroundings` ran before: it clears the environment, changes the folder, and patches the method `fake-ok`."""
    assert list(ENDINGS).index("surroundings") < list(ENDINGS).index("fake-ok")
    assert endings["fake-ok"].metrics["P@1"] > 0


def ended(bench: Bench, method: str, **keys: object) -> Record:
    return bench.run(bench.suite({"it": {"method": method}}, **keys), cache=bench.root / "cache")["it"]


def test_global_generators_are_seeded(saboteurs: Bench) -> None:
    first = ended(saboteurs, "global")
    saboteurs.store.drop_record(first.key)
    assert first.metrics == ended(saboteurs, "global").metrics


def test_a_child_in_a_session_of_its_own_does_not_outlive_a_timeout(
    saboteurs: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = saboteurs.root / "cache" / "child"
    monkeypatch.setattr(RunningTrial, "overdue", property(lambda _: child.exists() and bool(child.read_text())))
    assert ended(saboteurs, "runaway").status == "timeout"
    assert until(lambda: gone(int(child.read_text())))


def test_predictions_survive_an_evaluator_that_fails(saboteurs: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    record = ended(saboteurs, "fake-ok", metrics=["P@1", "Bad@1"])
    assert record.status == "error"
    assert record.failure is not None
    assert record.failure.message == "the evaluator of Bad@1 failed: KeyError: 'gone'"
    command = ["rescore", record.key, *saboteurs.places, "--metrics", "Bad@1"]
    assert "the evaluator of Bad@1 failed" in told(capsys, *command)[2].splitlines()[-1]
    (saboteurs.root / "cache" / "mended").write_text("")
    assert call(*command) == 0
    rescored = saboteurs.store.record(record.key)
    assert rescored is not None
    assert rescored.status == "ok"
    assert rescored.metrics["Bad@1"] == 0.5


@pytest.mark.usefixtures("saboteurs")
def test_plugins_do_not_print_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, errors = told(capsys, "methods")
    assert "hello" not in out
    assert "hello from the plugin" in errors


def test_a_record_says_how_the_contract_was_checked(saboteurs: Bench) -> None:
    record = ended(saboteurs, "fake-ok")
    assert record.provenance["checks"] == {
        "test files": "audit hook",
        "network": "audit hook",
        "saved model": "forked process",
    }
    assert record.spent["stage_seconds"]["check"] > 0


def scored(rows: list[dict[int, float]], width: int) -> Predictions:
    indices, scores = np.full((len(rows), width), -1, np.int32), np.full((len(rows), width), -np.inf, np.float32)
    for i, row in enumerate(rows):
        indices[i, : len(row)], scores[i, : len(row)] = list(row), list(row.values())
    return Predictions(indices, scores)


def test_predictions_differ_if_they_differ_by_more_than_rounding() -> None:
    first = {4: 0.9, 1: 0.5, 2: 0.4999, 7: 0.1}
    others = [
        ({4: 0.9001, 2: 0.5, 1: 0.4999, 7: 0.1}, False),  # a swap of near ties
        ({4: 0.9, 1: 0.5, 2: 0.4999, 9: 0.1001}, False),  # at the end of the list another label as good
        ({4: 0.9, 1: 0.5, 2: 0.4999, 9: 0.3}, True),
        ({4: 0.7, 1: 0.5, 2: 0.4999, 7: 0.1}, True),
        ({1: 0.5, 2: 0.4999, 7: 0.1}, True),
        ({}, True),
    ]
    for other, expected in others:
        assert differs(scored([first], 4), scored([other], 4)).tolist() == [expected], other
    assert not differs(scored([{}], 4), scored([{}], 4)).any()


@pytest.mark.parametrize(("missed", "expected"), [(2, False), (3, True)])
def test_an_approximate_search_may_miss_a_tenth_of_the_labels(missed: int, expected: bool) -> None:
    row = {label: 1.0 - label / 30 for label in range(20)}
    other = dict(list({label: 1.0 - label / 30 for label in range(20 + missed)}.items())[missed:])
    assert differs(scored([row], 20), scored([other], 20)).tolist() == [expected]
