"""How many trials run at once where a suite leaves that to the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
from fakes import TRUSTED
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.engine.planning.trials import _planner_here
from xmcbench.runs import side_by_side
from xmcbench.runs.runner import Runner, Settings
from xmcbench.runs.side_by_side import SPARE, at_once

GB = 1_000_000_000
SIZES = st.one_of(st.none(), st.integers(GB // 100, 100 * GB))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores and 20 GB of free memory, whatever this machine has."""
    _pretend(monkeypatch, 8, 20 * GB)


def _pretend(monkeypatch: pytest.MonkeyPatch, cores: int, free: int) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)
    monkeypatch.setattr(side_by_side.psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=free))


@pytest.mark.parametrize(
    ("trials", "needed", "count"),
    [(57, [GB], 8), (3, [GB], 3), (57, [GB, 5 * GB], 3), (57, [30 * GB], 1), (57, [None, GB], 8), (57, [None], 1)],
)
@pytest.mark.usefixtures("machine")
def test_cores_trials_and_the_memory_of_the_largest_limit_them(
    trials: int, needed: list[float | None], count: int
) -> None:
    found, why = at_once(trials, needed)
    assert found == count
    assert why.startswith(f"{count} trials run side by side" if count > 1 else "one trial runs at a time")


@given(st.integers(1, 64), st.integers(GB, 500 * GB), st.integers(1, 100), st.lists(SIZES, min_size=1))
def test_together_they_never_need_more_than_what_is_free(
    cores: int, free: int, trials: int, needed: list[float | None]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        _pretend(patched, cores, free)
        count, _ = at_once(trials, needed)
    assert 1 <= count <= min(cores, trials)
    assert count == 1 or count * max(size for size in needed if size is not None) <= SPARE * free


@pytest.fixture
def planner() -> Iterator[None]:
    """The planner of this process forgets the datasets that it read."""
    yield
    _planner_here.cache_clear()


def _runner(bench: Bench, parallel: int | None = None, only: Sequence[str] = ("a",), **suite: object) -> Runner:
    dexml = {"method": "dexml", "encoder": "nano", "negatives": "in-batch"}
    path = bench.suite({"a": dexml, "b": dexml | {"batch_size": 4}}, **suite)
    settings = Settings(path, bench.root / "data", bench.store.root, only=only, parallel=parallel)
    return Runner(settings)


@pytest.mark.usefixtures("planner")
def test_a_suite_asks_for_it_and_the_command_line_and_budgets_of_seconds_come_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
    _pretend(monkeypatch, 4, 50 * GB)
    auto, limits, seeds = {"parallel": "auto"}, {"steps": 2}, [0, 1, 2]
    assert _runner(bench, budget=limits, seeds=seeds).parallel == 1
    chosen = _runner(bench, budget=limits, seeds=seeds, resources=auto)
    assert (chosen.parallel, chosen.why_parallel.split(" run")[0]) == (3, "3 trials")
    assert _runner(bench, 2, budget=limits, seeds=seeds, resources=auto).parallel == 2
    assert _runner(bench, only=["b"], budget=limits, seeds=[0], resources=auto).parallel == 1
    assert _runner(bench, budget={"device_seconds": 9}, seeds=seeds, resources=auto).parallel == 1
