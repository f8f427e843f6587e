"""`xmcbench compare`: on trials that ran."""

from __future__ import annotations

import csv
import io

import pytest
from commands import told
from fakes.bench import Bench

import xmcbench.data
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import ComparedMetric
from xmcbench.evaluation.significance import Estimate
from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.compared import verdict


@pytest.fixture
def trials(bench: Bench) -> dict[str, Record]:
    return bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True)


def run(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, what is printed, and what is said of errors."""
    return told(capsys, *arguments, *bench.places)


def figures(text: str) -> dict[str, dict[str, str]]:
    """The rows of the first table of the CSV."""
    first = text.split("\n\n")[0]
    return {row["metric"]: row for row in csv.DictReader(io.StringIO(first))}


def test_figures_are_those_of_the_records_with_what_chance_would_give(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(bench, capsys, "compare", "ok", "rare", "--format", "csv")
    rows = figures(text)
    assert code == 0
    assert set(rows) == set(trials["ok"].metrics)
    for name, row in rows.items():
        ours, theirs = (trials[label].metrics[name] for label in ("ok", "rare"))
        assert (row["1"], row["2"]) == (f"{100 * ours:.2f}", f"{100 * theirs:.2f}")
        assert float(row["difference"].rstrip("*")) == pytest.approx(100 * (ours - theirs), abs=0.006)
        low, high = map(float, row["95 %"].split(" to "))
        assert ("*" in row["difference"]) == (not low <= 0 <= high)
        assert 0 < float(row["p"]) <= 1
    assert "P@5 by head, torso, tail" in text
    assert "P@5 by deciles" in text


def test_queries_that_change_are_shown_with_their_texts(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(bench, capsys, "compare", trials["ok"].key[:10], "fake-20/rare", "-k", "1", "--queries", "2")
    assert "hits among the first 1: 1 has more for " in text
    shown = text[text.index("\nquery ") :]
    assert shown.count("\nquery ") >= 1
    assert "true: " in shown
    assert "1 (1): +" in shown


@pytest.mark.usefixtures("trials")
def test_a_trial_is_no_better_than_itself(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(bench, capsys, "compare", "ok", "ok", "--format", "csv", "--metrics", "P@1")
    assert {name: (row["difference"], row["p"]) for name, row in figures(text).items()} == {"P@1": ("+0.00", "1.000")}


@pytest.mark.usefixtures("trials")
def test_without_the_dataset_figures_are_still_compared(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = run(bench, capsys, "compare", "ok", "rare", "--format", "csv")

    def gone(name: str, _: object) -> None:
        raise XMCBenchError(f"dataset {name!r} is not here")

    monkeypatch.setattr(xmcbench.data, "load", gone)
    code, text, said = run(bench, capsys, "compare", "ok", "rare", "--format", "csv")
    assert (code, figures(text)) == (0, figures(whole))
    assert "no breakdown and no example queries: dataset 'fake-20' is not here" in said


def test_what_cannot_be_compared_is_one_line(
    bench: Bench, trials: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = run(bench, capsys, "compare", "ok", "rare", "--metrics", "P@7")
    assert (code, said.count("\n")) == (2, 1)
    assert "unknown metric 'P@7'" in said
    other = trials["ok"].model_copy(update={"truth_hash": "e" * 64})
    bench.store.write_record(other)
    code, _, said = run(bench, capsys, "compare", "ok", "rare")
    assert (code, said.count("\n")) == (2, 1)
    assert "have different test labels" in said
    bench.store.write_record(trials["ok"])
    (bench.store.directory(trials["rare"].key) / "predictions.npz").write_bytes(b"")
    code, _, said = run(bench, capsys, "compare", "ok", "rare")
    assert (code, said.count("\n")) == (2, 1)
    assert "predictions.npz: damaged" in said


def test_all_seeds_of_two_configurations_are_compared(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(bench.suite(["fake-ok", "fake-rare"], seeds=[0, 1, 2]), debug=True)
    code, text, _ = run(bench, capsys, "compare", "ok", "rare", "--metrics", "P@1")
    assert code == 0
    assert text.startswith("The two do not differ significantly")
    said = " ".join(text.split())
    assert "over test queries and 3 seeds" in said
    assert "80 % power" in said
    assert "P@5 by" not in text


def test_the_answer_names_the_better_one_and_its_metrics() -> None:
    def metric(name: str, value: float) -> ComparedMetric:
        return ComparedMetric(name, value, 0.0, Estimate(value, 0.1))

    first, second, unclear = metric("P@1", 0.3), metric("P@3", -0.3), metric("P@5", 0.1)
    labels = ("a", "b")
    assert verdict(labels, [first]) == "a is significantly better by P@1."
    assert verdict(labels, [first, second, unclear]) == (
        "a is significantly better by P@1; b is significantly better by P@3; "
        "by the other 1 metric they do not differ significantly."
    )
    assert verdict(labels, [unclear]) == "The two do not differ significantly by any of these metrics."
    many = [metric(f"P@{k}", 0.3) for k in range(1, 7)]
    assert verdict(labels, many) == "a is significantly better by P@1, P@2, P@3, P@4 and 2 more metrics."


def test_seeds_that_differ_are_not_paired(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(bench.suite(["fake-ok"], seeds=[0, 1]), debug=True)
    bench.run(bench.suite(["fake-rare"], seeds=[0, 2]), debug=True)
    code, text, _ = run(bench, capsys, "compare", "ok", "rare")
    assert code == 0
    assert "and seeds (2 and 2), not paired" in " ".join(text.split())
