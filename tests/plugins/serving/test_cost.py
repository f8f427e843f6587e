"""`xmcbench answer-cost`: quality beside milliseconds, memory and disk of trained models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from commands import told
from fakes import TRUSTED
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.reporting import words
from xmcbench.trial.predictions import Predictions
from xmcbench_plugins.serving.cost import WITHIN, Cost, _recall, advice, on_front, shown

METRIC = "P@5"


def cost(name: str, quality: float, milliseconds: float, lower: tuple[str, ...] = ()) -> Cost:
    times = milliseconds, milliseconds, 1.0, 1.0
    return Cost(name, "made", {METRIC: quality}, None, 10, *times, 0, 0, None, lower)


COSTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 150)), min_size=1, max_size=8).map(
    lambda pairs: [cost(str(n), quality / 20, float(ms)) for n, (quality, ms) in enumerate(pairs)]
)


@given(COSTS)
def test_the_front_holds_exactly_the_models_that_no_other_one_replaces(costs: list[Cost]) -> None:
    for one, first in zip(costs, on_front(costs), strict=True):
        better = [
            other
            for other in costs
            if (other.metrics[METRIC], -other.alone_ms) != (one.metrics[METRIC], -one.alone_ms)
            and other.metrics[METRIC] >= one.metrics[METRIC]
            and other.alone_ms <= one.alone_ms
        ]
        assert first == (not better)


@given(COSTS)
def test_the_advice_names_the_best_model_of_each_limit_or_none(costs: list[Cost]) -> None:
    lines = advice(costs).splitlines()
    for limit in WITHIN:
        (line,) = (own for own in lines if str(limit) in own.split(" ms")[0].replace(",", "").split())
        fast = [one for one in costs if one.alone_ms <= limit]
        if not fast:
            assert line.startswith("No model answers within")
        else:
            assert line.endswith(f"the highest {METRIC}, {100 * max(one.metrics[METRIC] for one in fast):.2f}.")


def test_a_table_is_best_first_and_marks_the_front() -> None:
    text = shown([cost("slow", 0.2, 9), cost("good", 0.4, 30), cost("fast", 0.3, 2)])
    names = [line.split()[0] for line in text.splitlines() if line.split()[:1] and line[0] in "gsf"]
    assert names == ["good*", "fast*", "slow"]
    assert text.endswith(
        "Within 5 or 20 ms, fast has the highest P@5, 30.00.\nWithin 100 ms, good has the highest P@5, 40.00."
    )


def test_where_lower_values_are_better_the_lowest_is_the_best() -> None:
    lower = METRIC.partition("@")[:1]
    text = shown([cost("slow", 0.4, 9, lower), cost("good", 0.2, 30, lower), cost("fast", 0.3, 2, lower)])
    names = [line.split()[0] for line in text.splitlines() if line.split()[:1] and line[0] in "gsf"]
    assert names == ["good*", "fast*", "slow"]
    assert "P@5 (min)" in text
    assert text.endswith(
        "Within 5 or 20 ms, fast has the lowest P@5, 30.00.\nWithin 100 ms, good has the lowest P@5, 20.00."
    )


def rows_of(printed: str) -> dict[str, str]:
    """The rows of a printed table, by the names of their models."""
    return {line.split("  ")[0].rstrip("*"): line for line in printed.splitlines() if " MB " in line}


def test_models_answer_and_an_approximate_search_says_what_it_misses(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    dexml = {"method": "dexml", "encoder": "nano", "negatives": "in-batch", "batch_size": 8}
    bench.run(bench.suite({"encoder": dexml, "popular": {"method": "popular"}}, budget={"steps": 2}), debug=True)
    asked = ("answer-cost", "encoder", "popular", "--texts", "10", "--metrics", "P@1,P@5", *bench.places)
    code, printed, _ = told(capsys, *asked, "--search", "exact,faiss-hnsw", "--figures", bench.root / "figures")
    rows = rows_of(printed)
    assert (code, set(rows)) == (0, {"encoder, exact", "encoder, faiss-hnsw", "popular"})
    assert rows["encoder, exact"].endswith(" -")
    assert " to " in rows["encoder, faiss-hnsw"]
    drawn = (bench.root / "figures" / "answer-cost-fake-20.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in rows)
    few = ("--batch", "10", "-k", "50", "--search", "exact,exact", "--vectors", "float32,bf16")  # of 20 labels
    code, printed, _ = told(capsys, *asked, *few)
    assert "fake-20: quality of 10 test texts" in printed
    rows = rows_of(printed)
    assert (code, set(rows)) == (0, {"encoder, exact, float32", "encoder, exact, bf16", "popular"})
    assert rows["encoder, exact, float32"].endswith(" -")
    assert " to " in rows["encoder, exact, bf16"]
    code, printed, said = told(capsys, *asked, "--vectors", "bf16,pq")
    assert (code, printed) == (2, "")
    assert said == "error: encoder on fake-20: vectors: pq needs at least 256 labels, found 20\n"


def test_settings_that_no_model_can_have_are_told_before_any_is_measured(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    own = {"method": "colbert", "encoder": "nano", "batch_size": 8}
    bench.run(bench.suite({"own": own, "popular": {"method": "popular"}}, budget={"steps": 2}), debug=True)
    asked = ("--texts", "10", "--metrics", "P@1", *bench.places)
    for runs, expected in (
        (("popular", "own"), "method 'colbert' defines its own score, which is searched exactly"),
        (("popular",), "--search, --vectors: expected an encoder among the trials, found popular"),
    ):
        code, printed, said = told(capsys, "answer-cost", *runs, *asked, "--search", "exact,faiss-ivf")
        assert (code, printed) == (2, "")
        assert said.startswith(f"error: {expected}")
        assert said.count("\n") == 1


def test_models_that_fail_leave_the_others_and_those_of_one_label_have_keys(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    methods = {"popular": {"method": "popular"}, "words": {"method": "tfidf-nn"}}
    bench.run(bench.suite(methods, budget={"steps": 2}, seeds=[0, 1]), debug=True)
    records = {(record.trial.label, record.trial.seed): record for record in bench.store.records()}
    keys = [records[name].key for name in (("popular", 0), ("popular", 1), ("words", 0))]
    asked = ("answer-cost", *keys, keys[0], "--texts", "10", "--metrics", "P@1", *bench.places)
    model = bench.store.directory(keys[2]) / "model"
    damaged = next(path for path in model.iterdir() if path.name != "manifest.json")
    damaged.write_bytes(b"damaged")
    code, printed, said = told(capsys, *asked)
    assert (code, set(rows_of(printed))) == (2, {f"popular {key}" for key in keys[:2]})
    assert f"error: words: {damaged}: damaged" in said
    shutil.rmtree(model)
    code, printed, said = told(capsys, *asked)
    assert (code, printed) == (2, "")
    assert said.startswith(f"error: {model}: not there: expected the trial's model")


def test_one_text_leaves_the_recall_of_a_search_open() -> None:
    one = Predictions(np.array([[3, 1]], np.int32), np.ones((1, 2), np.float32))
    assert _recall(one, one) == (1.0, 0.0, 1.0)


@pytest.mark.long
def test_rounded_vectors_have_the_quality_of_their_answers(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial with the setting `vectors: pq` knows it of all test texts."""
    pytest.importorskip("faiss")
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    plain = {"method": "dexml", "encoder": "static", "negatives": "in-batch", "batch_size": 32}
    methods = {"plain": plain, "rounded": plain | {"vectors": "pq"}, "popular": {"method": "popular"}}
    suite = bench.suite(methods, datasets=["catalog-2k-test-100"], budget={"steps": 30})
    records = bench.run(suite, debug=True)
    known = {label: f"{100 * record.metrics['nDCG@5']:.2f}" for label, record in records.items()}
    assert len(set(known.values())) == 3
    asked = ("plain", "popular", "--vectors", "float32,pq", "--texts", "10", "--metrics", "nDCG@5,P@5")
    code, printed, _ = told(capsys, "answer-cost", *asked, *bench.places)
    rows = {name: row.partition("  ")[2].split() for name, row in rows_of(printed).items()}
    own = [rows[name][0] for name in ("plain, float32", "plain, pq", "popular")]
    assert (code, own) == (0, [known["plain"], known["rounded"], known["popular"]])
    low, high = (100 * edge for edge in records["rounded"].intervals["nDCG@5"])
    assert rows["plain, pq"][1:4] == [f"({low:.1f}", "to", f"{high:.1f})"]
    assert "catalog-2k-test-100: quality of 100 test texts" in printed


def test_a_part_of_a_method_that_never_ran_is_said(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    monkeypatch.setattr(words, "idle_parts", lambda record: (f"a part of {record.trial.label}",))
    bench.run(bench.suite({"popular": {"method": "popular"}}, budget={"steps": 2}), debug=True)
    asked = ("answer-cost", "popular", "--texts", "10", "--batch", "10", "--metrics", "P@1", *bench.places)
    assert told(capsys, *asked)[1].endswith("\n\npopular: never ran: a part of popular.\n")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--search", "exct"), "--search: unknown search 'exct' (did you mean 'exact'?)"),
        (("--vectors", "int4"), "--vectors: unknown vectors 'int4' (did you mean 'int8'?)"),
        (("--metrics", "P@7"), "has no P@7, expected of"),
        (("--metrics", ","), "--metrics: found ',', expected names"),
        (("--search", ","), "--search: found ',', expected names"),
        (("--figures", "/dev/null"), "/dev/null: File exists"),
        (("--texts", "1"), "--texts"),
    ],
)
def test_bad_input_is_one_line(
    bench: Bench, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], error: str
) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    code, printed, said = told(capsys, "answer-cost", "ok", "--metrics", "P@1", *options, *bench.places)
    assert (code, printed) == (2, "")
    assert error in said
    assert "Traceback" not in said


DRIVER = """
import os, time
from xmcbench_plugins.serving.cost import fresh_process

if __name__ == "__main__":
    with fresh_process() as fresh:
        print(fresh.submit(os.getpid).result(), flush=True)
        fresh.submit(time.sleep, 600).result()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_killed_command_leaves_no_process_that_measures(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    with subprocess.Popen([sys.executable, tmp_path / "driver.py"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        measuring = psutil.Process(int(driver.stdout.readline()))
        driver.kill()
    measuring.wait(timeout=60)
