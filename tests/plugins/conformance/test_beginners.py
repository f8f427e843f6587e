"""The mistakes of beginners: `xmcbench check` tells the first cause, once, with file, line and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import told
from fakes.bench import Bench

from xmcbench.plugins.registry import registry
from xmcbench_plugins.conformance import smoke
from xmcbench_plugins.conformance.rules import make_subject, outcomes, rules_of

from fakes import beginner  # isort: skip

SOURCE = Path(__file__).parents[2] / "fakes" / "xmcbench_beginner.py"
PAGE = (Path(__file__).parents[3] / "docs" / "writing-a-plugin.md").read_text(encoding="utf-8")
LINES = {
    found[1]: f"xmcbench_beginner.py:{number}"
    for number, line in enumerate(SOURCE.read_text().splitlines(), 1)
    if (found := re.search(r"# HERE ([a-z-]+)$", line))
}
LINES["global-leak"] = "SEEN (xmcbench_beginner.py:"

# By method: the rule that tells, what it finds, how to mend it, and which rules are tried before (all, where it is "").
MISTAKES = {
    "fit-raises": ("it-fits-and-predicts", "fit raises ValueError: matmul", "this line first"),
    "predict-raises": ("it-fits-and-predicts", "predict raises AttributeError", "this line first"),
    "lists-in-predictions": ("it-fits-and-predicts", "'list' object has no attribute 'ndim'", "arrays of numpy"),
    "predict-without-k": ("it-fits-and-predicts", "takes 2 positional arguments but 3 were given", "(self, texts, k)"),
    "divides-by-zero": ("odd-texts-are-handled", "hold a score that is NaN", "handle empty texts"),
    "forgotten-charge": ("all-work-is-charged", "seconds in no stage", "run.ledger.stage"),
    "uncounted-products": ("all-work-is-charged", "seconds, and no operation of them is counted", "not_counted"),
    "wrong-dtype": ("predictions-are-ranked", "indices are int64, expected int32: .astype(np.int32)", "rank"),
    "global-leak": ("seeds-share-nothing", "fit changed SEEN", "run.cache"),
    "mutable-default": ("settings-are-immutable", "the setting depths is a list", "tuples"),
    "mutable-argument": ("no-global-changes", "changed MutableArgument.rows", "keep what is learnt in self"),
    "cannot-save": ("the-model-is-saved-without-pickle", "save raises TypeError: Object of type function", "JSON"),
    "endless-fit": ("it-fits-and-predicts", "fit has not ended after 1 seconds", "this line first"),
    "print-spam": ("little-is-printed", "printed 300 lines", "run.report"),
    "five-gigabytes": ("the-model-is-saved-without-pickle", "texts.npy has 5.0 of 5.0 GB", "save what predict needs"),
    "needs-training": ("the-loaded-model-predicts-the-same", "no attribute 'train'", "save what predict needs"),
    "unseeded": ("no-global-generator-is-used", "the first training and the second with the same seed", "run.rng"),
    "k-above-labels": ("predictions-are-ranked", "kth(=16) out of bounds", "evaluation.rank"),
    "learns-nothing": ("it-beats-the-most-frequent-labels", "its best label is right for ", "learning rate"),
}
SLOW_RULES = {"another-process-trains-the-same", "the-loaded-model-predicts-the-same", "seeds-share-nothing"}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("beginner")
    (root / "site").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "site"))
        patch.setenv("PYTHONPATH", str(root / "site"))
        patch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-mine")
        with beginner(root / "site"):
            yield root


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_line(mistakes: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else is: the rules that would fail for the same cause are not tried."""
    wanted, found, remedy = MISTAKES[name]
    if name == "endless-fit":
        monkeypatch.setattr(smoke, "LONGEST", 1.0)
        monkeypatch.setattr(smoke, "PATIENCE", 1)  # it sleeps
    rules = [rule for rule in rules_of("method") if rule.name == wanted or rule.name not in SLOW_RULES]
    if name in ("forgotten-charge", "uncounted-products"):  # which take seconds to fit
        rules = [rule for rule in rules if rule.first or rule.name == wanted]
    subject = make_subject("method", name, {}, mistakes / name, mistakes / "data")
    told = [result for result in outcomes(rules, subject) if result.found is not None]
    assert [result.rule.name for result in told if result.broken or result.rule.name == wanted] == [wanted]
    (result,) = [result for result in told if result.rule.name == wanted]
    line, *_, mend = result.explanation.splitlines()
    assert found in line
    assert LINES[name] in line
    assert remedy in mend
    if result.rule.first:
        assert line.endswith(f"; {len(rules) - 1 - [r.name for r in rules].index(wanted)} rules were not tried")


def test_a_method_without_a_mistake_is_told_nothing(mistakes: Path) -> None:
    subject = make_subject("method", "no-mistake", {}, mistakes / "none", mistakes / "data")
    rules = [rule for rule in rules_of("method") if rule.name not in SLOW_RULES]
    assert [result.explanation for result in outcomes(rules, subject) if result.found is not None] == []


@pytest.mark.usefixtures("mistakes")
def test_a_name_that_is_taken_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "check", "no-mistake", "--rule", "settings-are-immutable")
    clash = f"method 'no-mistake' of xmcbench-mine 1.0 ({LINES['no-mistake']}) is already registered by xmcbench-mine"
    assert f"note: beginner of xmcbench-mine 1.0 is broken: {clash} 1.0\n" in out


def test_a_package_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told(capsys, "new", "method", "mine-own")[0] == 0
    code, _, errors = told(capsys, "check", "mine-own")
    assert code == 2
    assert "./mine-own is not installed: pip install -e ./mine-own" in errors


def test_a_dataset_whose_files_are_absent_keeps_no_rules(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    registry.cache_clear()
    code, out, _ = told(capsys, "check", "eurlex-4k", "--data", bench.root / "nothing")
    assert code == 1
    assert re.search(r"^dataset eurlex-4k: \d of \d rules could not be checked here$", out, re.MULTILINE)


def test_every_mistake_is_in_the_documentation() -> None:
    """With the rule that tells it."""
    for name, (rule, _, _) in MISTAKES.items():
        assert f"`{rule}`" in PAGE, name
