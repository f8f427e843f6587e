"""One short training of each built-in method ends in its convergence corridor (`corridors.py`)."""

from __future__ import annotations

from pathlib import Path

import corridors
import pytest
from toy_fixtures import one_thread

from xmcbench.plugins.registry import OWN, registry
from xmcbench_plugins.external import OutsideMethod

__all__ = ["one_thread"]  # a fixture for every test here
METHODS = list(corridors.METHODS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corridors")


def test_every_built_in_method_has_a_corridor_of_its_current_versions() -> None:
    """Except those that run other programs, which few machines have."""
    own = [method for method in registry().all("method") if method.origin.distribution == OWN]
    names = {method.name for method in own if not issubclass(method.thing, OutsideMethod)}
    new, gone = sorted(names - set(METHODS)), sorted(set(METHODS) - names)
    assert not new, f"add the trainings of {new} to tests/corridor_methods.py, then run `python tests/corridors.py`"
    assert not gone, f"remove {gone} from tests/corridor_methods.py and tests/corridors.yaml: no such method"
    stored = corridors.stored()
    assert set(stored) >= set(METHODS), "run `python tests/corridors.py`, which measures the corridors that are missing"
    assert {name: stored[name]["versions"] for name in METHODS} == {name: corridors.versions(name) for name in METHODS}


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_a_training_ends_in_its_corridor(name: str, cache: Path) -> None:
    assert not corridors.outside(corridors.train(name, 0, cache), corridors.stored()[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_mistake_leaves_the_corridor(name: str, cache: Path) -> None:
    values = corridors.train(name, 0, cache, corridors.METHODS[name].mistake)
    assert corridors.outside(values, corridors.stored()[name])


def test_an_update_without_a_raised_version_is_refused() -> None:
    stored = corridors.stored()
    with pytest.raises(SystemExit, match="no version was raised"):
        corridors.stale(METHODS, stored)
    older = {**stored["dexml"], "versions": {**stored["dexml"]["versions"], "method": 0}}
    assert corridors.stale(METHODS, {**stored, "dexml": older}) == ["dexml"]


def test_values_outside_are_named() -> None:
    corridor = {"versions": {}, "loss": {"mean": 2.0, "sd": 0.01}, "P@1": {"mean": 0.5, "sd": 0.0}}
    assert corridors.outside({"loss": 2.039, "P@1": 0.5039}, corridor) == []
    assert corridors.outside({"loss": 2.041, "P@1": float("nan")}, corridor) == [
        "P@1 nan, expected 0.5000 +- 0.0040",
        "loss 2.0410, expected 2.0000 +- 0.0400",
    ]
    assert corridors.outside({"P@1": 0.5}, corridor) == ["loss is in the corridor alone"]
