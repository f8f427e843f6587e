"""A plugin's code that changed while its version did not: the plan says so, and `--changed` trains again."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.bench import Bench

from xmcbench.plugins.registry import plugin_package, registry
from xmcbench.trial import provenance
from xmcbench_plugins.board.acceptance import outdated, problems


def edit(bench: Bench) -> None:
    """Change the plugin's file, as its author would between two runs."""
    module = bench.root / "site" / "xmcbench_fakes.py"
    module.write_text(module.read_text() + "\nFURTHER = 1\n")
    again()


def again() -> None:
    """What a new process starts with."""
    sys.modules.pop("xmcbench_fakes", None)
    importlib.invalidate_caches()
    registry.cache_clear()
    provenance._digest.cache_clear()
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


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *arguments], check=True)


def test_the_commit_of_a_plugin_is_that_of_its_own_repository(bench: Bench) -> None:
    """Without a repository, outside of its commits, and with changes a plugin's results cannot be submitted."""
    site, suite = bench.root / "site", bench.suite(["fake-ok"])

    def found() -> list[str]:
        again()
        record = bench.run(suite, debug=True, changed=True)["ok"]
        assert list(outdated(record)) == []
        bench.store.drop_record(record.key)
        return [problem for problem in problems(record) if "plugin" in problem]

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
    files = provenance.code_files(thing)
    assert files
    assert {path.parent.name for path in files} == {plugin_package(thing.__module__).rpartition(".")[2]}
