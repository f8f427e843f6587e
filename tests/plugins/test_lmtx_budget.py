"""LMTX: when its cycles end, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from xmcbench.data.extent import Extent
from xmcbench.engine import embedding_method
from xmcbench.errors import XMCBenchError
from xmcbench.teachers import NO, UNPARSED
from xmcbench.trial.budget import UNCHARGED
from xmcbench.trial.meter import metering
from xmcbench.trial.run import HeldOut
from xmcbench_plugins.lmtx import LMTX, TEACHER_METRIC
from xmcbench_plugins.lmtx.cycles import Cycles

from .lmtx_trials import PLENTY, Trials, same, weights, yes_to_all

# When it ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "cycles", "best"),
    [([0.5, 0.6, 0.6, 0.9], 3, 1), ([0.5, 0.4, 0.9], 2, 0), ([0.1, 0.2, 0.3, 0.4, 0.5], 4, 3), ([0.5, 0.5], 2, 0)],
)
def test_it_stops_at_the_first_cycle_without_improvement_and_keeps_the_best(
    figures: list[float], cycles: int, best: int, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[dict[str, torch.Tensor]] = []
    given = iter(figures)

    def look(self: LMTX, *_: Any) -> float:
        ends.append(weights(self))
        return next(given)

    monkeypatch.setattr(LMTX, "_evaluate", look)
    method, run = trials.fitted(cycles=4)
    assert len(ends) == cycles
    assert same(weights(method), ends[best])
    assert len(list(run.checkpoint.glob("model-*"))) <= 2  # the best and the last


def test_the_development_figure_is_the_share_of_best_labels_that_are_accepted(trials: Trials) -> None:
    _, run = trials.fitted(cycles=1)
    truth = trials.data.targets.toarray()
    (point,) = run.log.curve
    assert point[TEACHER_METRIC] == np.mean([truth[pair] for pair in trials.asked[1]])
    assert point["cycle"] == 1
    assert point["teacher_calls"] == run.ledger.teacher_calls


def test_held_out_queries_of_a_suite_choose_where_there_are_some(trials: Trials) -> None:
    """In the supervised track `selection` means what it does everywhere; the teacher is not asked for the figure."""
    given = iter([0.3, 0.2])
    held_out = HeldOut(trials.data.texts[:9], lambda _: {"nDCG@5": next(given), "P@1": 0.0})
    run = trials.run(PLENTY, held_out=held_out)
    trials.fitted(run=run, cycles=4)
    assert [point["nDCG@5"] for point in run.log.curve] == [0.3, 0.2]
    assert len(trials.asked) == 2  # a shortlist each, and no development documents
    assert all(TEACHER_METRIC not in point for point in run.log.curve)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (NO, "toy: the teacher accepted no label of 60 documents"),
        (UNPARSED, "teacher scripted: none of 32 replies holds an answer"),
    ],
)
def test_a_teacher_that_accepts_nothing_is_one_line(answer: int, message: str, trials: Trials) -> None:
    with pytest.raises(XMCBenchError, match=message):
        trials.beside(str(answer), lambda *_: answer).fitted()


# What it costs --------------------------------------------------------------------------------------------------------


def test_every_part_is_charged(trials: Trials) -> None:
    """Shortlists once over documents and labels, development documents once more; a step is three passes."""
    with metering() as meter:
        method, run = trials.fitted(cycles=1)
    read = [int(count) for stage, count in meter.tokens.items() if stage not in ("index", UNCHARGED)]
    tokenizer, ledger = method.encoder.tokenizer, run.ledger
    queries = tokenizer.tokens(trials.data.texts, 16).lengths.sum()
    labels = tokenizer.tokens(trials.data.label_texts, 8).lengths.sum()
    assert ledger.queries == len({d for d, label in trials.asked[0] if trials.data.targets[d, label]})
    assert ledger.steps == -(-ledger.queries // 20)
    assert ledger.epochs == 1
    development = {document for document, _ in trials.asked[1]}
    again = tokenizer.tokens([trials.data.texts[own] for own in sorted(development)], 16).lengths.sum()
    assert len(development) == 30
    steps = (
        ledger.encoder_tokens - queries - labels - again
    )  # the documents that have a label once, and pools of 20 labels
    assert 0 < steps < queries + 20 * ledger.steps * 8
    assert ledger.encoder_tokens == sum(read), "what the encoder read in stages that are charged"
    distinct = {pair for pairs in trials.asked for pair in pairs}
    assert ledger.teacher_calls == len(distinct)
    sizes = Extent(len(trials.data.texts) - 3, trials.data.num_labels, 16, 8, documents=len(trials.data.texts))
    assert (
        ledger.teacher_calls <= method.foreseen(sizes, run.budget)["teacher_calls"] <= 5 * len(trials.data.texts) + 30
    )
    assert {"prepare", "mine", "train", "index"} <= ledger.stage_seconds.keys()


@pytest.mark.parametrize("limit", ["steps", "epochs", "encoder_tokens"])
def test_a_budget_ends_the_cycles_within_a_step(limit: str, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    budget = {"steps": 4, "epochs": 1.4, "encoder_tokens": 2300}
    _, run = trials.fitted({limit: budget[limit]}, cycles=9)
    assert run.ledger.fraction(run.budget) >= 1
    assert not run.ledger.over(run.budget)


def test_a_shorter_budget_is_a_shorter_schedule(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate of each cycle rises and falls, in the last one within what is left."""
    factors: list[float] = []
    warmup = embedding_method.warmup_linear

    def spy(fraction: float, share: float) -> float:
        factors.append(fraction)
        return warmup(fraction, share)

    monkeypatch.setattr(embedding_method, "warmup_linear", spy)
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    trials.fitted({"steps": 5}, cycles=9)  # an epoch is 3 steps
    assert factors == pytest.approx([1 / 6, 3 / 6, 5 / 6, 1 / 4, 3 / 4])


def test_a_teachers_budget_ends_the_questions_and_the_last_cycle_counts(trials: Trials) -> None:
    trials.says = yes_to_all
    method, run = trials.fitted({"teacher_calls": 40}, cycles=9)
    assert run.ledger.teacher_calls == 40
    assert run.ledger.queries == 40 / 5  # the documents that were asked about; their training is not cut
    (point,) = run.log.curve
    assert TEACHER_METRIC not in point
    assert not run.ledger.over(run.budget)
    assert method.num_parameters > 0


def test_what_a_teachers_budget_reaches_is_drawn(trials: Trials) -> None:
    """Not the lowest rows, which on sorted records would be of one kind; other seeds draw others."""
    trials.says = yes_to_all
    parts = []
    for seed in range(4):
        own = trials.beside(f"seed-{seed}")
        _, run = own.fitted(run=own.run({"teacher_calls": 50}, seed=seed), cycles=1)
        parts.append({document for document, _ in own.asked[0][: run.ledger.teacher_calls]})
    assert all(len(part) == 10 for part in parts)
    assert len(set(map(frozenset, parts))) == 4
    assert 15 < np.mean([document for part in parts for document in part]) < 45  # of 60
