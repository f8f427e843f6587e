"""Teachers in trials: what a record says, what a method cannot see, and what a failure leaves behind."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Status
from xmcbench_plugins.teachers.database import JudgementStore

from .server import PROMPT_SEVERAL, Server

PAIRS = 30 * 20  # of fake-20's training documents and labels


def asker(teacher: Any, **settings: Any) -> dict[str, Any]:
    return {"asker": {"method": "fake-asker", "teacher": teacher} | settings}


def remote(server: Server, **settings: Any) -> dict[str, Any]:
    told = {"name": "openai", "model": "m", "base_url": server.url, "prompt": PROMPT_SEVERAL, "retries": 0}
    return told | {"labels_per_prompt": 4} | settings


def test_the_annotations_are_in_another_process(bench: Bench) -> None:
    """The method looks for them after it has asked; the teacher knows them all the same."""
    suite = bench.suite(asker("annotated"), track="zero-shot")
    for debug in (True, False):
        (record,) = bench.run(suite, debug=debug).values()
        assert record.status is Status.OK, record.failure
        assert record.teacher == "annotated (recall 1, false accepts 0)"
        assert record.simulated_teacher
        assert record.spent["teacher_calls"] == PAIRS
        found, _ = bench.store.predictions(record)
        assert found.scores[0].sum() == 30  # as many yeses as training annotations


def test_a_record_without_a_teacher_names_none(bench: Bench) -> None:
    (record,) = bench.run(bench.suite(["fake-ok"]), debug=True).values()
    assert (record.teacher, record.simulated_teacher) == ("", False)


def test_documents_held_out_do_not_shift_the_others(bench: Bench) -> None:
    """A teacher that knows the dataset by row is asked about the rows that are left."""
    methods = {"asker": {"method": "fake-asker", "teacher": "annotated"}}
    (record,) = bench.run(bench.suite(methods, selection={"queries": 12, "metric": "P@1"}), debug=True).values()
    assert record.status is Status.OK
    database = JudgementStore(bench.store.root)
    yes = {(document, label) for document, label, answer, *_ in database.rows() if answer == "yes"}
    numbers = [int(document.removeprefix("train ")) for document, _ in yes]
    assert len(yes) == 18
    assert yes == {(f"train {i}", f"label {min(i % 23, i % 20)}") for i in numbers}


def test_a_second_trial_and_a_retry_ask_nobody(bench: Bench, server: Server) -> None:
    server.start()
    suite = bench.suite(asker(remote(server)), track="zero-shot", seeds=[0])
    (first,) = bench.run(suite, debug=True).values()
    again = bench.suite(asker(remote(server), rounds=2), track="zero-shot", seeds=[1])
    (second,) = bench.run(again, debug=True).values()
    assert server.answered().total() == PAIRS
    assert (first.spent["teacher_cached"], second.spent["teacher_cached"]) == (0, PAIRS)
    assert first.spent["teacher_tokens"] == second.spent["teacher_tokens"] > 0
    assert (first.teacher, first.simulated_teacher) == ("openai m", False)


def test_an_endpoint_that_stays_down_is_a_clear_record_and_costs_nothing(bench: Bench, server: Server) -> None:
    server.start(last=100)
    suite = bench.suite(asker(remote(server)), track="zero-shot")
    (record,) = bench.run(suite).values()
    assert record.status is Status.ERROR
    assert record.failure is not None
    assert (record.failure.type, record.failure.stage) == ("TeacherError", "fit")
    assert record.failure.message.startswith("teacher openai m at http://127.0.0.1:")
    assert re.search(r"; its earlier answers are cached; asked so far: [\d,]+ tokens$", record.failure.message)
    assert record.teacher == "openai m"
    assert server.answered().total() == 100
    server.start()
    (record,) = bench.run(suite, retry=True).values()
    assert record.status is Status.OK, record.failure
    assert set(server.answered().values()) == {1}
    assert server.answered().total() == PAIRS


def test_what_a_trial_waits_for_is_told_where_the_run_was_started(
    bench: Bench, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """And in the trial's log. Who started the run may see nothing else for hours."""
    server.start("429")
    (record,) = bench.run(bench.suite(asker(remote(server, retries=3)), track="zero-shot")).values()
    assert record.status is Status.OK
    told = "warning: teacher openai m: its server answers 429: such requests are sent again, up to 3 times each"
    assert caplog.text.count(told) == 1
    assert (bench.store.directory(record.key) / "log.txt").read_text().count(told) == 1


@pytest.mark.long
def test_a_killed_run_keeps_what_was_answered(bench: Bench, server: Server) -> None:
    server.start("slow")
    suite = bench.suite(asker(remote(server, retries=3)), track="zero-shot")
    runner = bench.runner(suite)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        runner.run(runner.plan(), bench.heard)
        os._exit(0)
    while server.answered().total() < 40:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (record,) = bench.run(suite).values()
    assert record.status is Status.OK
    twice = server.answered().total() - PAIRS
    assert 0 <= twice <= 16 * 4  # what was under way when it was killed
    assert len(server.answered()) == PAIRS


def test_a_budget_of_calls_ends_the_questions(bench: Bench, server: Server) -> None:
    server.start()
    suite = bench.suite(asker(remote(server)), track="zero-shot", budget={"teacher_calls": 70})
    (record,) = bench.run(suite, debug=True).values()
    assert record.status is Status.OK
    assert record.spent["teacher_calls"] == server.answered().total() == 70


@pytest.mark.parametrize(
    ("teacher", "complaint"),
    [
        ("anotated", r"suite.yaml:\d+: methods.asker.teacher: found 'anotated', unknown teacher.*mean 'annotated'"),
        ({"name": "annotated", "recal": 1.0}, r"methods.asker.teacher.recal: unknown key \(did you mean 'recall'"),
        ({"name": "annotated", "recall": 2.0}, r"methods.asker.teacher.recall: found 2.0, expected less than"),
        ({"name": "openai", "model": "m", "prompt": "{doc}"}, r"suite.yaml:\d+: methods.asker.teacher.prompt: found"),
        ({"name": "openai"}, r"methods.asker.teacher: missing key 'model'"),
        ({"recall": 1.0}, r"methods.asker.teacher: missing key 'name'"),
        (3, r"methods.asker.teacher: found 3"),
    ],
)
def test_a_wrong_teacher_is_an_error_with_its_line(bench: Bench, teacher: Any, complaint: str) -> None:
    with pytest.raises(XMCBenchError, match=complaint):
        bench.runner(bench.suite(asker(teacher)))


def test_every_setting_of_a_teacher_makes_another_trial(bench: Bench) -> None:
    teachers = ["annotated", {"name": "annotated", "recall": 0.9}, {"name": "annotated", "seed": 1}]
    methods = {f"asker-{i}": asker(teacher)["asker"] for i, teacher in enumerate(teachers)}
    same = {"name": "annotated", "recall": 1.0}
    plan = bench.runner(bench.suite(methods | {"same": asker(same)["asker"]})).plan()
    assert len({step.trial.key for step in plan}) == 3
    assert plan[0].trial.key == plan[3].trial.key
