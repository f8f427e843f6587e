"""LMTX: a killed run ends as an unbroken one, and pays no pair twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fitting import Killed, killer

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training import checkpoints
from xmcbench.files.manifest import write_manifest
from xmcbench.trial.run import Run
from xmcbench_plugins.lmtx import LMTX
from xmcbench_plugins.lmtx.cycles import CycleAnswers, Cycles
from xmcbench_plugins.teachers.charged_pairs import KEY

from .lmtx_trials import PLENTY, Trials, weights, yes_to_two_of_three

# Two runs of the same trial differ in these. A resumed one finds answers in the store that it was not charged for yet.
OWN = ("stage_seconds", "stage_cpu_seconds", "peak_bytes", "worker_bytes", "teacher_cached")


def outcome(method: LMTX, run: Run, data: TrainingData) -> Any:
    spent = {name: value for name, value in run.ledger.state().items() if name not in OWN}
    curve = [{name: value for name, value in point.items() if name != "device_seconds"} for point in run.log.curve]
    scores = method.predict(data.texts, 10).scores.tolist()
    return spent, curve, scores, {name: tensor.tolist() for name, tensor in weights(method).items()}


@pytest.mark.parametrize(
    ("kills", "settings"),
    [
        ([(1, 1), (1, 2), (2, 1)], {}),
        ([(2, 2), (2, 3)], {"start": "afresh", "accepted": "all", "negatives": "rejected"}),
    ],
)
def test_resumed_equals_unbroken(
    kills: list[tuple[int, int]], settings: dict[str, Any], trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", -1.0)
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_two_of_three
    unbroken = outcome(*trials.fitted(**settings), trials.data)
    here = trials.beside("killed")
    for cycle, step in kills:
        run = here.run(PLENTY, report=killer(cycle=cycle, step=step))
        with pytest.raises(Killed):
            here.fitted(run=run, **settings)
    assert outcome(*here.fitted(**settings), trials.data) == unbroken


@pytest.mark.parametrize("name", ["cycles-*/note.json", "cycles-*/answers-0.npz", "model-0/vectors.safetensors"])
def test_a_damaged_part_starts_the_cycles_again(
    name: str, trials: Trials, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_two_of_three
    unbroken = outcome(*trials.fitted(), trials.data)
    here = trials.beside("damaged")
    with pytest.raises(Killed):
        here.fitted(run=here.run(PLENTY, report=killer(cycle=2, step=1)))
    (path,) = here.run(PLENTY).checkpoint.glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert outcome(*here.fitted(), trials.data) == unbroken
    assert f"{path}: damaged" in caplog.text


@pytest.mark.parametrize("question", [7, 305, None])
def test_a_run_killed_while_the_teacher_is_asked_pays_no_pair_twice(
    question: int | None, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the first shortlist, at the development documents, and at the last question of all (None)."""
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_two_of_three
    unbroken = outcome(*trials.fitted(), trials.data)
    questions, total = [], len(np.fromfile(trials.charged, KEY))

    def dying(document: int, label: int) -> int:
        questions.append((document, label))
        if len(questions) == (question or total):
            raise Killed
        return yes_to_two_of_three(document, label)

    here = trials.beside("killed", dying)
    with pytest.raises(Killed):
        here.fitted()
    here.says = yes_to_two_of_three
    assert outcome(*here.fitted(), trials.data) == unbroken
    keys = np.fromfile(here.charged, KEY)
    assert len(np.unique(keys)) == len(keys) > 300


def test_a_run_that_had_ended_asks_and_trains_no_more(trials: Trials) -> None:
    first = outcome(*trials.fitted(), trials.data)
    assert outcome(*trials.fitted(), trials.data) == first
    assert trials.asked == []


def test_answers_are_kept_as_they_were(trials: Trials) -> None:
    run = trials.run(PLENTY)
    cycles = Cycles(run)
    asked = [CycleAnswers(np.arange(n), np.arange(n) * 2, np.arange(n) % 2 == 0, np.arange(n) % 2 == 1) for n in (4, 6)]
    run.ledger.teacher_calls = 10
    for answers in asked:
        cycles.add_answers(answers)
    cycles.model(0).mkdir()
    write_manifest(cycles.model(0))
    cycles.add_score(0.25)
    run = trials.run(PLENTY)
    again = Cycles(run)
    assert (again.scores, run.ledger.teacher_calls) == ([0.25], 10)
    for restored, written in zip(again.answers, asked, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(restored, written, strict=True))
    last, every = (again.pairs("yes", (9, 12), accumulated=flag).toarray() for flag in (False, True))
    assert np.flatnonzero(last.sum(1)).tolist() == [0, 2, 4]
    assert np.array_equal(every, last)
