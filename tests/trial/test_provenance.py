"""What a record says about where it was made."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from xmcbench.trial import provenance


def test_the_facts_of_a_record_are_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is that of the package's checkout, wherever the command was started."""
    monkeypatch.chdir(tmp_path)
    provenance.machine.cache_clear()
    provenance._git.cache_clear()
    facts = provenance.provenance(["/home/somebody/bin/xmcbench", "run", "suites/quickstart.yaml"])
    assert facts["command"] == ["xmcbench", "run", "suites/quickstart.yaml"]
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["memory_bytes"] > 2**28
    assert platform.node() not in facts["host"]
    checkout = Path(provenance.__file__).parents[2]
    if (checkout / ".git").exists() and shutil.which("git"):
        assert len(facts["git"]["commit"]) == 40
    assert provenance._git(tmp_path) == {}
