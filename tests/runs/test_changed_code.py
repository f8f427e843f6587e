"""A plugin's code that changed while its version did not: the plan says so, and `--changed` trains again."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.files.manifest import checked_folder
from xmcbench.plugins import code
from xmcbench.plugins.registry import plugin_package, registry
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.runs.saved_model import load_saved_model, saved_model
from xmcbench.runs.tuning import run_plan
from xmcbench.trial import provenance


def edit(bench: Bench, more: str = "\nFURTHER = 1\n") -> None:
    """Change the plugin's file, as its author would between two runs."""
    module = bench.root / "site" / "xmcbench_fakes.py"
    module.write_text(module.read_text() + more)
    again()


def again() -> None:
    """What a new process starts with."""
    sys.modules.pop("xmcbench_fakes", None)
    importlib.invalidate_caches()
    registry.cache_clear()
    code._code_at.cache_clear()
    code._home.cache_clear()
    provenance._commit_of.cache_clear()


def test_a_hit_says_that_the_code_changed_and_changed_trains_again(bench: Bench) -> None:
    suite = bench.suite(["fake-ok"])
    first = bench.run(suite, debug=True)["ok"]
    assert len(first.code_digest) == 64
    assert bench.plan(suite)["ok"][0] == "hit"
    assert provenance.CHANGED not in bench.plan(suite)["ok"][1]
    edit(bench)
    action, reason = bench.plan(suite)["ok"]
    assert action == "hit"
    assert reason.endswith("; code changed, version did not: --changed trains it again")
    assert bench.plan(suite, changed=True)["ok"] == ("run", "again: code changed, version did not")
    second = bench.run(suite, debug=True, changed=True)["ok"]
    assert second.key == first.key
    assert second.code_digest != first.code_digest
    assert bench.plan(suite, changed=True)["ok"][0] == "hit"


def test_a_comment_is_no_change_and_a_helper_beside_the_plugin_is_one(bench: Bench) -> None:
    suite, helper = bench.suite(["fake-ok"]), bench.root / "site" / "helper_of_fakes.py"
    helper.write_text("SCALE = 1\n")
    edit(bench, "\nimport helper_of_fakes\n")
    first = bench.run(suite, debug=True)["ok"]
    edit(bench, "\n# a comment\n")
    assert provenance.CHANGED not in bench.plan(suite)["ok"][1]
    helper.write_text("SCALE = 2\n")
    again()
    assert provenance.CHANGED in bench.plan(suite)["ok"][1]
    assert bench.run(suite, debug=True, changed=True)["ok"].code != first.code


def test_seeds_of_two_codes_are_two_rows_and_the_older_one_is_marked(bench: Bench) -> None:
    own = {"ok": {"method": "fake-ok"}}
    bench.run(bench.suite(own, seeds=[0, 1]), debug=True)
    for record in [*bench.store.records()]:  # not in the same second as the next one
        bench.store.write_record(record.model_copy(update={"ended": "2026-01-01T00:00:00+00:00"}))
    edit(bench)
    bench.run(bench.suite(own, seeds=[0, 1, 2]), debug=True)
    rows = leaderboard(bench.store.records()).groups[0].rows
    assert {row.seeds: bool(row.older) for row in rows} == {(0, 1): True, (2,): False}


def test_a_dataset_that_its_plugin_makes_anew_is_read_anew(bench: Bench) -> None:
    """Whether or not its author thought of the fingerprint: trials of older data stand in a table of their own."""
    suite = bench.suite(["fake-ok"])
    first = bench.run(suite, debug=True)["ok"]
    edit(bench, "\n# a comment\n")
    assert bench.plan(suite)["ok"][0] == "hit"
    edit(bench, "\nNUM_TEST = 35\n")
    second = bench.run(suite, debug=True)["ok"]
    assert second.trial.dataset_hash != first.trial.dataset_hash
    assert [len(group.rows) for group in leaderboard(bench.store.records()).groups] == [1, 1]


def test_samples_of_two_codes_are_not_compared(bench: Bench) -> None:
    """A tuning goes on after the plugin was edited: its samples are in the store, some of them of older code."""
    tune = {"space": {"ok": {"strength": {"low": 0.5, "high": 2.0}}}, "num_samples": 3, "budget": {"steps": 2}}
    suite = bench.suite(["fake-ok"], selection={"queries": 5, "metric": "P@1"}, tune=tune)

    def tuned(**settings: Any) -> set[str]:
        runner = bench.runner(suite, debug=True, **settings)
        run_plan(runner, runner.plan(), bench.heard)
        return {own.code for own in bench.store.records() if own.trial.held_out_only}

    assert len(tuned()) == 1
    lost = next(own for own in bench.store.records() if own.trial.held_out_only)
    bench.store.drop_record(lost.key)
    edit(bench)
    with pytest.raises(XMCBenchError, match=r"samples of ok on fake-20 are of code .* and code .*: `xmcbench run"):
        tuned()
    assert len(tuned(changed=True)) == 1


def test_a_worker_notes_the_code_that_it_imported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plugin is edited while a suite runs, the record has the code that made it, not the planned one."""
    suite = bench.suite(["fake-ok"])
    monkeypatch.setattr("xmcbench.runs.runner.plugin_code", lambda trial: {"digest": "0" * 64, "form": 2, "git": {}})  # noqa: ARG005
    record = bench.run(suite, debug=True)["ok"]
    assert record.code == provenance.plugin_digest(record.trial) != "0" * 64


def test_the_model_of_another_trial_is_refused(bench: Bench) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    assert load_saved_model(bench.store, record)
    with checked_folder(saved_model(record, bench.store)) as made:
        (made / "other.json").write_text("a whole model, with a manifest of its own")
    with pytest.raises(XMCBenchError, match=f"the model of another trial: .*, the record of {record.key} says"):
        load_saved_model(bench.store, record)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *arguments], check=True)


def test_the_commit_of_a_plugin_is_that_of_its_own_repository(bench: Bench) -> None:
    """Without a repository, outside of its commits, and with changes a plugin's results cannot be submitted."""
    board = pytest.importorskip("xmcbench_plugins.board.acceptance")
    site, suite = bench.root / "site", bench.suite(["fake-ok"])

    def found() -> list[str]:
        again()
        record = bench.run(suite, debug=True, changed=True)["ok"]
        assert list(board.outdated(record)) == []
        bench.store.drop_record(record.key)
        return [problem for problem in board.problems(record) if "plugin" in problem]

    assert found() == ["the code of its plugin is in no git repository, expected a commit"]
    git(site, "init", "-q")
    git(site, "commit", "-q", "--allow-empty", "-m", "nothing")
    changes = ["the code of its plugin had changes that no commit holds, expected a clean git tree"]
    assert found() == changes, "the file is in no commit"
    (site / ".gitignore").write_text("*.py\n")
    assert found() == changes, "an ignored file is in no commit"
    git(site, "add", "-f", "xmcbench_fakes.py")
    git(site, "commit", "-q", "-m", "plugin")
    assert found() == []
    edit(bench)
    assert found() == changes


@pytest.mark.parametrize("name", ["dexml", "tfidf-nn", "lmtx"])
def test_the_files_of_a_plugin_are_those_of_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XMCBENCH_PLUGINS", raising=False)
    registry.cache_clear()
    thing = registry().method(name).thing
    files = provenance.code_files("method", name)
    assert files
    assert {path.parent.name for path in files} == {plugin_package(thing.__module__).rpartition(".")[2]}
