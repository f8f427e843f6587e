"""The conformance suite: built-in plugins keep their contracts, and each broken rule is found and explained."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from commands import told
from fakes.bench import Bench

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Ledger
from xmcbench_plugins.conformance.outside_count import OutsideCount, miscounted
from xmcbench_plugins.conformance.rules import find_kind, make_subject, outcome, read_settings, rules_of

from fakes import cheats, sabotage  # isort: skip

CHEAP = [("method", "popular"), ("evaluator", "nDCG"), ("sampler", "clustered"), ("tracker", "tensorboard")]
TEACHER = {"name": "annotated"}
METHODS: dict[str, dict[str, Any]] = {
    "dexml": {},
    "ict": {},
    "infer-retrieve-rank": {"teacher": TEACHER},
    "lmtx": {"teacher": TEACHER},
    "maclr": {},
    "ngame": {},
    "ova": {},
    "prime": {},
    "rts": {},
    "tfidf-label": {},
    "tfidf-nn": {},
    "unidec": {},
    "untrained": {},
}


@pytest.fixture
def plugin(bench: Bench) -> Iterator[Bench]:
    """A bench with the plugin that breaks its contracts."""
    with sabotage(bench.root / "site"):
        yield bench


def broken_rules(kind: str, name: str, folder: Path, settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The rules that a plugin breaks, with what was found."""
    subject = make_subject(kind, name, settings or {}, folder, folder / "data")
    results = [outcome(rule, subject) for rule in rules_of(kind)]
    return {result.rule.name: result.explanation for result in results if result.broken}


@pytest.mark.parametrize(("kind", "name"), CHEAP)
def test_a_built_in_plugin_keeps_its_contract(kind: str, name: str, tmp_path: Path) -> None:
    registry.cache_clear()
    assert broken_rules(kind, name, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_built_in_method_keeps_its_contract(name: str, tmp_path: Path) -> None:
    assert broken_rules("method", name, tmp_path, METHODS[name]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sampler", "evaluator", "tracker"])
def test_every_other_built_in_plugin_keeps_its_contract(kind: str, tmp_path: Path) -> None:
    for known in registry().all(kind):
        (tmp_path / known.name).mkdir()
        assert broken_rules(kind, known.name, tmp_path / known.name) == {}, known.name


@pytest.mark.parametrize(
    ("kind", "name", "rule", "found"),
    [
        ("method", "mutating", "settings-are-immutable", "the setting depths is a list"),
        ("method", "tuples", "predictions-are-ranked", "predict returned tuple"),
        ("method", "spender", "the-budget-is-kept", "charged {'steps': 100.0}, allowed {'steps': 3}"),
        ("method", "global", "no-global-generator-is-used", "fit draws from numpy.random"),
        ("method", "hashing", "another-process-trains-the-same", "queries differ between this process and another"),
        ("method", "counting", "predictions-repeat", "queries differ between the first call and the second"),
        ("method", "load-other", "the-loaded-model-predicts-the-same", "differ from those of the saved model"),
        ("method", "pickling", "the-model-is-saved-without-pickle", "model.bin holds a pickle"),
        ("method", "resuming", "a-resumed-training-equals-an-unbroken-one", "the unbroken training and the resumed"),
        ("method", "reader", "no-test-file-is-read", "the method opened "),
        ("method", "words", "odd-texts-are-handled", "IndexError: list index out of range (xmcbench_sabotage.py:"),
        ("method", "pairs", "a-single-label-is-handled", "ValueError: kth(=1) out of bounds"),
        ("evaluator", "Two", "values-are-fractions", "Two@1 is 2.0"),
        ("evaluator", "Nan", "values-are-fractions", "Nan@1 is nan"),
        ("evaluator", "Text", "values-are-fractions", "could not convert string to float: 'high'"),
        ("evaluator", "Array", "values-are-fractions", "TypeError: only "),
        ("teacher", "half", "every-pair-is-answered-once", "expected each of 0..39 once"),
        ("tracker", "single", "trials-side-by-side-are-handled", "AssertionError: already begun"),
        ("sampler", "restless", "batches-are-a-pure-function", "is another when it is asked for"),
        ("sampler", "unsorted", "pools-hold-labels-once", "the pool of batch 0 is not sorted, or has a label twice"),
    ],
)
def test_a_broken_rule_is_found(plugin: Bench, kind: str, name: str, rule: str, found: str) -> None:
    subject = make_subject(kind, name, {}, plugin.root, plugin.root / "data")
    (checked,) = [each for each in rules_of(kind) if each.name == rule]
    result = outcome(checked, subject)
    assert found in str(result.found)
    section = result.explanation.splitlines()[2].partition("section ")[2].strip('"')
    page = Path(__file__).parents[3] / "docs" / "writing-a-plugin.md"
    assert f"## {section}\n" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "rule", "found"),
    [
        ("own-pass", "all-work-is-charged", "fit encoded "),
        ("pass-in-index", "all-work-is-charged", "texts in the stage index, which is for 16 labels"),
        ("trains-uncharged", "all-work-is-charged", "fit trained in the stage uncharged"),
        ("trains-in-predict", "all-work-is-charged", "predict trained"),
        ("gradient-in-predict", "all-work-is-charged", "predict trained"),
        ("multiplies-once", "all-work-is-charged", " flops, and 0 when it ran again"),
        ("child-process", "all-work-is-charged", "child processes of fit computed "),
        ("negative-seconds", "all-work-is-charged", "spent.stage_seconds.train: found -345"),
        ("shared-cache", "seeds-share-nothing", "queries differ between a seed after another and the seed alone"),
        ("home-cache", "seeds-share-nothing", "queries differ between a seed after another and the seed alone"),
        ("reads-environment", "no-setting-is-read-from-the-environment", "xmcbench_cheats.py:"),
        ("stores-path", "the-loaded-model-predicts-the-same", "the method opened "),
        ("stores-model-path", "the-loaded-model-predicts-the-same", "the method opened "),
    ],
)
def test_an_honest_accident_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, rule: str, found: str
) -> None:
    monkeypatch.setenv("HOME", str(bench.root / "home"))
    with cheats(bench.root / "site"):
        subject = make_subject("method", name, {}, bench.root, bench.root / "data")
        if rule == "seeds-share-nothing":
            assert subject.fitted.predict()
        (checked,) = [each for each in rules_of("method") if each.name == rule]
        assert found in str(outcome(checked, subject).found)


STATIC = {"encoder": {"name": "static", "words": "random", "dimension": 16}}


def outside_count_of(name: str, bench: Bench) -> tuple[str | None, str | None]:
    """What the outside counter finds, and what the rule without it does."""
    settings = STATIC if name.startswith("module") else {}
    subject = make_subject("method", name, settings, bench.root / name, bench.root / "data")
    by_name = {rule.name: rule for rule in rules_of("method")}
    names = "an-outside-counter-confirms-the-charges", "all-work-is-charged"
    counted, metered = (outcome(by_name[rule], subject).found for rule in names)
    return counted, metered


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("module-in-thread", "fit multiplied "),
        ("trains-solver", "linear solvers took "),
        ("trains-clusters", "fit trained KMeans of scikit-learn, whose operations nobody counts"),
        ("asks-transformer", "tokens with text encoders and charged 0"),
        ("calls-solver", "fit called svds of scipy, whose operations nobody counts"),
        ("module-that-broadcasts", "by broadcasting, and charged "),
        ("multiplies-in-index", "operations in the stage index, and charged 0 in all"),
        ("multiplies-uncharged", "operations in uncharged(), which is for evaluations"),
    ],
)
def test_what_nobody_charges_is_counted_from_outside(bench: Bench, name: str, found: str) -> None:
    with cheats(bench.root / "site"):
        counted, metered = outside_count_of(name, bench)
    assert found in str(counted)
    assert metered is None


def test_a_module_that_computes_in_the_loss_is_charged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the harness's watch, without which the outside counter finds it."""
    with cheats(bench.root / "site"):
        assert outside_count_of("module-in-loss", bench) == (None, None)
        monkeypatch.setattr("xmcbench.engine.matrix_products.watched", lambda _: nullcontext())
        (bench.root / "module-in-loss").rename(bench.root / "watched")
        assert "fit multiplied " in str(outside_count_of("module-in-loss", bench)[0])


def test_the_command_explains_what_is_broken(plugin: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "check", "Two")
    assert code == 1
    lines = out.splitlines()
    place = lines.index("BROKEN   values-are-fractions")
    assert [line.split(":")[0].strip() for line in lines[place + 1 : place + 5]] == ["found", "rule", "written", "mend"]
    assert lines[-1] == "evaluator Two: 2 broken rules"
    assert plugin.root.exists()


@pytest.mark.usefixtures("plugin")
def test_one_rule_is_checked_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for rule, printed in (
        ("values-are-fractions", ["BROKEN   values-are-fractions", "evaluator Two: 1 broken rules"]),
        ("value-fractions", []),
    ):
        _, out, errors = told(capsys, "check", "Two", "--rule", rule)
        assert out.splitlines()[:: max(1, len(out.splitlines()) - 1)] == printed
    assert "--rule: unknown rule 'value-fractions' (did you mean 'values-are-fractions'" in errors


@pytest.mark.usefixtures("plugin")
def test_wrong_names_and_settings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tuples'"):
        find_kind("tupels")
    with pytest.raises(XMCBenchError, match="method 'fake-asker': setting rounds: Input should be a valid integer"):
        make_subject("method", "fake-asker", {"rounds": "many"}, tmp_path, tmp_path)
    assert read_settings(["a.b=[1, 2]", "c=x"]) == {"a": {"b": [1, 2]}, "c": "x"}


def test_a_method_that_imports_a_framework_at_its_top_gets_a_hint(
    plugin: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin.root / "site" / "pandas.py").write_text("")
    module = plugin.root / "site" / "xmcbench_sabotage.py"
    module.write_text(module.read_text() + "\nimport pandas\n")
    monkeypatch.setitem(sys.modules, "pandas", None)  # so that what is there before is there afterwards
    del sys.modules["pandas"]
    hint = told(capsys, "methods")[1].splitlines()[-1]
    assert hint.startswith("hint: importing the plugins of xmcbench-mine imports pandas, ")
    assert hint.endswith("late_imports = ('pandas',)")
    assert registry().import_remark("xmcbench-fakes") == ""


def test_pytest_checks_a_plugin(plugin: Bench) -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "xmcbench_plugins.conformance.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, "--xmcbench-evaluator=Two", "-q"]
    done = subprocess.run(command, cwd=plugin.root, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "found: Two@1 is 2.0" in done.stdout
    assert "2 failed, 2 passed, 1 skipped" in done.stdout


def test_products_of_numpy_are_taken_as_charged_and_those_of_a_solver_are_not() -> None:
    """A method may charge what it multiplies in numpy, which nobody sees from outside."""
    ledger = Ledger(solver_flops=1000)
    assert miscounted(OutsideCount(), ledger) == ""
    assert "linear solvers took 500 operations" in miscounted(OutsideCount(solver_flops=500), ledger)
