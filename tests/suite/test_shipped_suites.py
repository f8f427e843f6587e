"""Every suite that is shipped is one the tool accepts, on whatever machine this is."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmcbench.data.source import FolderSource
from xmcbench.errors import UnknownNameError
from xmcbench.suite.suite import load_suite
from xmcbench_plugins.sources.debian import DebianPackages

SUITES = sorted(
    path for path in (Path(__file__).parents[2] / "suites").rglob("*.yaml") if path.stem != "hyperparameters"
)


def test_there_are_suites() -> None:
    assert {"quickstart.yaml", "dexml_synthetic.yaml", "evidence.yaml"} <= {path.name for path in SUITES}


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_shipped_suite_is_valid(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (FolderSource, DebianPackages):
        monkeypatch.setattr(source, "missing", lambda _self, _data_dir: None)  # what it asks for need not be here
    suite = load_suite(path, tmp_path)
    assert len(suite.variants) >= 2
    assert suite.name == path.stem.replace("_", "-")


def test_a_suite_of_the_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_suite(Path("quickstart"), tmp_path).name == "quickstart"
    assert load_suite(Path("ablations/prime_loss"), tmp_path).name == "prime-loss"
    monkeypatch.setattr(FolderSource, "missing", lambda _self, _data_dir: None)
    suite = load_suite(Path("paper/budget_ablation_1.3m"), tmp_path)  # .3m is no ending of a file
    assert suite.name == "budget-ablation-1.3m"
    with pytest.raises(UnknownNameError, match=r"unknown suite 'quikstart' \(did you mean 'quickstart'\?\)"):
        load_suite(Path("quikstart"), tmp_path)
