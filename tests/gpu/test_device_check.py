"""`xmcbench check --device`: every check passes where a GPU does what it should, and says so where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from xmcbench.cli import main
from xmcbench.engine.device import default_device
from xmcbench_plugins.conformance import device_check
from xmcbench_plugins.conformance.device_check import Finding, findings

from .places import DEVICE, models_on

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["versions", "kernels", "equal to the CPU"])
def test_a_gpu_that_computes_what_the_cpu_does_passes(name: str) -> None:
    status, found, *_ = device_check.CHECKS[name](default_device())
    assert status == "ok", found


def test_other_numbers_than_the_cpus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = device_check._numbers

    def wrong(device: torch.device) -> Iterator[torch.Tensor]:
        for tensor in numbers(device):
            yield tensor * (1 + 1e-3) if device.type == DEVICE else tensor

    monkeypatch.setattr(device_check, "_numbers", wrong)
    status, found, advice = device_check.equality(default_device())
    assert status == "FAILED"
    assert found.startswith("numbers to 1.0e-03 (expected 0.0001)")
    assert "allow_tf32" in advice


@pytest.mark.parametrize(("share", "wanted"), [(1.0, "ok"), (1.5, "FAILED"), (0.5, "FAILED")])
def test_memory_is_compared_with_its_plan(monkeypatch: pytest.MonkeyPatch, share: float, wanted: str) -> None:
    held = [0.0]

    class Plans(device_check.Planner):
        def plan(self, *args: object) -> object:  # type: ignore[override]
            plan = super().plan(*args)  # type: ignore[arg-type]
            held[0] = share * plan.memory.total
            return plan

    monkeypatch.setattr(device_check, "Planner", Plans)
    if DEVICE != "cuda":
        monkeypatch.setattr(device_check, "STEPS", 1)
        monkeypatch.setattr(device_check, "DATASET", "catalog-200")
        monkeypatch.setattr(torch.get_device_module(DEVICE), "reset_peak_memory_stats", lambda: None, raising=False)
    monkeypatch.setattr(device_check, "device_peak_memory", lambda: int(held[0]))
    assert device_check.memory(default_device())[0] == wanted


def test_without_a_gpu_what_needs_one_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that raises is a finding, and the others are made all the same."""

    def broken(_: torch.device) -> device_check.Outcome:
        raise RuntimeError("CUDA error: no kernel image is available")

    monkeypatch.setitem(device_check.CHECKS, "kernels", broken)
    with models_on("cpu"):
        found = {finding.name: finding for finding in findings()}
    assert [found[name].status for name in ("GPUs", "equal to the CPU", "memory of a step")] == ["skipped"] * 3
    assert found["kernels"].status == "FAILED"
    assert found["kernels"].found == "RuntimeError: CUDA error: no kernel image is available"
    assert found["sandbox and compiler"].status == "ok", found["sandbox and compiler"].found
    assert "products are computed" in found["sandbox and compiler"].found


@pytest.mark.parametrize("status", ["ok", "FAILED"])
def test_the_command_prints_findings_and_advice(
    status: device_check.Status, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_check, "findings", lambda: [Finding("kernels", status, "found", "do this")])
    with pytest.raises(SystemExit) as end:
        main(["check", "--device"])
    assert end.value.code == (1 if status == "FAILED" else 0)
    assert capsys.readouterr().out.splitlines()[:2] == [f"{status:<8} kernels: found", "         do this"]


def test_a_name_or_the_device_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["check"], ["check", "dexml", "--device"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        assert "expected the NAME of a plugin, or --device, and not both" in capsys.readouterr().err
