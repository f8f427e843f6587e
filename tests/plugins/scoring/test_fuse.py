"""`xmcbench fuse`: a result like any other, fitted on queries that no part was trained on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import told
from fakes.bench import Bench

from xmcbench.data import load
from xmcbench.evaluation.fusion import ReciprocalRanks, fit_fusion
from xmcbench.evaluation.metrics import inverse_propensity
from xmcbench.runs.saved_model import load_saved_model, saved_model
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.record import Record
from xmcbench.trial.run import held_out_rows

SELECTION = {"queries": 12, "evaluations": 1}


@pytest.fixture
def trials(bench: Bench) -> dict[str, Record]:
    return bench.run(bench.suite(["fake-ok", "fake-rare"], selection=SELECTION), debug=True)


def run(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    return told(capsys, *arguments, *(() if "show" in arguments else bench.places[2:]))


def fused(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Record, str]:
    """The record of a fusion, and what was printed."""
    code, text, error = run(bench, capsys, "fuse", *arguments, "--store", bench.store.root)
    assert (code, error) == (0, "")
    (key,) = [line.split()[2] for line in text.splitlines() if line.startswith("stored as")]
    record = bench.store.record(key)
    assert record is not None
    return record, text


def refused(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that is said in place of a fusion."""
    code, _, error = run(bench, capsys, "fuse", *arguments, "--store", bench.store.root)
    assert code == 2
    (line,) = error.splitlines()
    return line


def test_reciprocal_ranks_are_stored_shown_scored_and_listed(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record, text = fused(bench, capsys, "ok", "rare")
    assert text.startswith("ok + rare (reciprocal-ranks) on fake-20, 40 test queries, per cent")
    wanted = ReciprocalRanks().fuse([bench.store.predictions(trials[name])[0] for name in ("ok", "rare")], 20)
    found, _ = bench.store.predictions(record)
    assert np.array_equal(found.indices, wanted.indices)
    assert record.trial.budget == UnknownBudget()
    assert record.trial.config["parts"] == [trials["ok"].key, trials["rare"].key]
    assert record.metrics.keys() == trials["ok"].metrics.keys()
    store = ("--store", bench.store.root)
    for command in (("compare", record.key, "ok"), ("analyse", record.key, "ok"), ("rescore", record.key)):
        code, _, error = run(bench, capsys, *command, *store)
        assert (code, error) == (0, "")
    _, shown, _ = run(bench, capsys, "show", record.key, *store)
    assert "reciprocal-ranks" in shown
    _, listed, _ = run(bench, capsys, "leaderboard", "--dataset", "fake-20", *store)
    assert "ok + rare" in listed
    assert fused(bench, capsys, "ok", "rare", "--as", "again")[0].key == record.key


@pytest.mark.parametrize("rule", ["weighted", "tree"])
def test_rules_are_fitted_on_queries_that_all_trials_held_out(
    rule: str, bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record, text = fused(bench, capsys, "ok", "rare", "--rule", rule, "--metric", "nDCG@3", "--as", "both")
    assert "fitted on: train: 12 queries held out" in text
    assert record.selection_split == Choice(by=ChosenBy.HELD_OUT, queries=12)
    assert record.trial.label == "both"
    data = load("fake-20", bench.root / "data").training_data()
    selection = trials["ok"].trial.selection
    assert selection is not None
    rows, _ = held_out_rows(selection, 0, len(data.texts))
    held_out = data.rows(rows)
    parts = [load_saved_model(bench.store, trials[name]).predict(held_out.texts, 20) for name in ("ok", "rare")]
    weights = inverse_propensity(data.targets, data.card.propensity_a, data.card.propensity_b)
    fusion = fit_fusion("weighted" if rule == "weighted" else "tree", parts, held_out.targets, weights, "nDCG@3")
    wanted = fusion.fuse([bench.store.predictions(trials[name])[0] for name in ("ok", "rare")], 20)
    found, _ = bench.store.predictions(record)
    assert np.array_equal(found.indices, wanted.indices)
    if rule == "weighted":
        assert record.trial.config["weights"] == fusion.arrays()["weights_P"].tolist()
        assert "weights: " in text


def test_what_cannot_be_fused_is_one_line(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(bench, capsys, "ok").endswith("found 1 runs, expected two or more different ones")
    assert refused(bench, capsys, "ok", trials["ok"].key).endswith("found 2 runs, expected two or more different ones")
    assert "'okk'" in refused(bench, capsys, "okk", "rare")
    assert "unknown metric 'nDCK@5'" in refused(bench, capsys, "ok", "rare", "--metric", "nDCK@5")
    imported, _ = fused(bench, capsys, "ok", "rare")
    assert "has no model" in refused(bench, capsys, "ok", imported.key, "--rule", "tree")
    bench.run(bench.suite({"other": {"method": "fake-ok"}}, datasets=["random-pairs-30"]), debug=True)
    assert "on different datasets: fake-20" in refused(bench, capsys, "ok", "other")


@pytest.mark.usefixtures("trials")
def test_rules_need_queries_that_every_trial_held_out(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(bench.suite({"all": {"method": "fake-ok"}}), debug=True)
    line = refused(bench, capsys, "ok", "all", "--rule", "weighted")
    assert line.endswith(
        "all was trained on all training queries: run it with `selection` and without its `refit`, or use "
        "reciprocal-ranks"
    )
    few = {"queries": 1, "evaluations": 1}
    bench.run(bench.suite({"one": {"method": "fake-ok"}}, selection=few, seeds=[0]), debug=True)
    bench.run(bench.suite({"two": {"method": "fake-ok"}}, selection=few, seeds=[1]), debug=True)
    line = refused(bench, capsys, "one", "two", "--rule", "weighted")
    assert line.endswith("no training query in common: use runs of one seed and selection")


def test_damaged_predictions_are_named(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    path: Path = bench.store.directory(trials["ok"].key) / "predictions.npz"
    path.write_bytes(path.read_bytes()[:-9])
    assert "predictions.npz: damaged" in refused(bench, capsys, "ok", "rare")


@pytest.mark.parametrize("rule", ["reciprocal-ranks", "weighted", "tree"])
def test_a_fusion_predicts_by_the_models_of_its_parts(
    rule: str, bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = fused(bench, capsys, "ok", "rare", "--rule", rule)
    dataset = load("fake-20", bench.root / "data")
    stored, _ = bench.store.predictions(record)
    found = load_saved_model(bench.store, record).predict(dataset.test.texts, stored.k)
    nothing_ignored = np.diff(dataset.ignore_test.indptr) == 0
    assert nothing_ignored.sum() > 20
    assert np.array_equal(found.indices[nothing_ignored], stored.indices[nothing_ignored])
    code, text, error = run(bench, capsys, "predict", record.key, "--text", "a label", "--store", bench.store.root)
    assert (code, error) == (0, "")
    assert "label" in text
    pushed = run(bench, capsys, "hub", "push", record.key, "me/model", "--store", bench.store.root)
    assert pushed[0] == 2
    assert all(part in pushed[2] for part in (trials["ok"].key, trials["rare"].key))


def test_a_fusion_without_the_model_of_a_part_says_so(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = fused(bench, capsys, "ok", "rare")
    asked = ("predict", record.key, "--text", "a label", "--store", bench.store.root)
    part = trials["rare"]
    shutil.rmtree(saved_model(part, bench.store))
    code, _, error = run(bench, capsys, *asked)
    assert (code, len(error.splitlines())) == (2, 1)
    assert part.key in error
    assert "`xmcbench run` makes" in error
    bench.store.write_record(part.model_copy(update={"digests": {}}))
    assert "its part rare, seed 0" in run(bench, capsys, *asked)[2]
    assert "was run again since: fuse again" in run(bench, capsys, *asked)[2]
    shutil.rmtree(saved_model(record, bench.store))
    assert "`xmcbench fuse` makes" in run(bench, capsys, *asked)[2]
