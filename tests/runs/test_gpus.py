"""Which GPUs a trial on this machine sees, and how many trials run at once. The GPUs are names: nothing computes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench.runs import gpus as gpus_module
from xmcbench.runs.gpus import DEVICE_FILES, Gpus, visible_gpus
from xmcbench.suite.resources import Needs, Share
from xmcbench.trial.record import Record

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks and signals are POSIX")


@pytest.fixture
def gpu_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the GPUs that this machine seems to have."""
    names = ["2", "5"]
    monkeypatch.setattr("xmcbench.runs.runner.visible_gpus", lambda: names)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return names


def seen(bench: Bench, record: Record) -> str | None:
    """The value of `CUDA_VISIBLE_DEVICES` in a trial."""
    environment: dict[str, str] = json.loads((bench.store.directory(record.key) / "environment.json").read_text())
    return environment.get("CUDA_VISIBLE_DEVICES")


def all_seen(bench: Bench) -> list[str | None]:
    return sorted(seen(bench, record) or "" for record in bench.store.records())


def test_a_plain_run_uses_every_gpu_at_once(bench: Bench, gpu_names: list[str]) -> None:
    """Two trials that wait for each other end, and each has seen a GPU of its own."""
    bench.run(bench.suite(["fake-meets"], seeds=[0, 1]))
    assert all_seen(bench) == gpu_names
    assert [record.spent["side_by_side"] for record in bench.store.records()] == [2, 2]


def test_a_budget_of_seconds_has_the_machine_for_itself(bench: Bench, gpu_names: list[str]) -> None:
    bench.run(bench.suite(["fake-sees"], seeds=[0, 1], budget={"device_seconds": 5}))
    assert all_seen(bench) == gpu_names[:1] * 2, "one after another, each on the first"
    assert all("side_by_side" not in record.spent for record in bench.store.records())


def test_a_trial_that_asks_for_no_gpu_sees_none(bench: Bench, gpu_names: list[str]) -> None:  # noqa: ARG001
    suite = bench.suite({"plain": {"method": "fake-sees"}, "words": {"method": "fake-sees-none"}})
    records = bench.run(suite)
    assert (seen(bench, records["plain"]), seen(bench, records["words"])) == ("2", "")
    bench.run(suite, store=bench.root / "hidden", share=Share(gpus=0))
    paths = list((bench.root / "hidden").glob("trials/*/environment.json"))
    assert [json.loads(path.read_text())["CUDA_VISIBLE_DEVICES"] for path in paths] == ["", ""]


def test_without_gpus_the_environment_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine whose GPU is not found: torch may know better."""
    monkeypatch.setattr("xmcbench.runs.runner.visible_gpus", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    records = bench.run(bench.suite(["fake-sees"]))
    assert seen(bench, records["sees"]) == "7"


def test_more_trials_than_gpus_share_them_where_that_is_asked_for(bench: Bench, gpu_names: list[str]) -> None:
    bench.run(bench.suite(["fake-sees"], seeds=[0, 1, 2]), parallel=3)
    assert set(all_seen(bench)) <= set(gpu_names)


def test_more_than_there_are_is_an_error(bench: Bench, gpu_names: list[str]) -> None:  # noqa: ARG001
    with pytest.raises(XMCBenchError, match=r"asks for 1 workers of 3 GPUs, and this machine has 2 GPUs: lower"):
        bench.run(bench.suite(["fake-sees"]), share=Share(gpus=3))


@given(
    names=st.integers(1, 8),
    trials=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, 0.0, 0.5, 1.0, 2.0])), max_size=12),
)
def test_gpus_are_dealt_out_evenly_and_come_back(names: int, trials: list[tuple[int, float | None]]) -> None:
    pool, given_out = Gpus([str(number) for number in range(names)]), []
    for workers, gpus in trials:
        needs, before = Needs(workers=workers, gpus=gpus), dict(pool.users)
        own = pool.has_free(needs)
        taken = pool.take(needs)
        assert len(set(taken)) == len(taken) == min(names, pool.wanted(needs))
        assert own == all(before[name] == 0 for name in taken)
        if taken:
            rest = [count for name, count in before.items() if name not in taken]
            assert max(before[name] for name in taken) <= min(rest, default=max(before.values()))
        given_out.append(taken)
    for taken in given_out:
        pool.give_back(taken)
    assert set(pool.users.values()) == {0}


@pytest.mark.parametrize(
    ("variable", "count", "wanted"),
    [
        (None, 2, ["0", "1"]),
        ("3,GPU-8932f937", 2, ["3", "GPU-8932f937"]),
        ("3,9", 1, ["3"]),  # the second is not there
        ("", 4, []),
    ],
)
def test_the_gpus_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, count: int, wanted: list[str]
) -> None:
    monkeypatch.setattr(gpus_module, "DEVICE_FILES", [str(tmp_path)])
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == wanted


def test_torch_is_not_asked_where_no_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_module, "DEVICE_FILES", ["/nowhere"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("importing torch takes seconds"))
    assert visible_gpus() == []
    assert "/dev/nvidiactl" in DEVICE_FILES
