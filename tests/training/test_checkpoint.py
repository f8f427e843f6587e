"""Checkpoints come back as they went, or say that they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xmcbench.errors import XMCBenchError
from xmcbench.training import checkpoint

GROUPS = {
    "encoder": {"layer.0.weight": torch.randn(3, 2).T, "half": torch.randn(2).bfloat16()},
    "optimizer": {"0.step": torch.tensor(3.0)},
    "sampler": {"nearest": torch.tensor([[1, -1]], dtype=torch.int32)},
}
NOTE = {"epoch": 2, "best": None, "curve": [{"fraction": 0.1, "P@1": 33.3}]}


def test_tensors_and_note_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.safetensors"
    checkpoint.save(path, GROUPS | {"empty": {}}, NOTE)
    groups, note = checkpoint.load(path)
    assert note == NOTE
    assert groups.keys() == GROUPS.keys()
    for group, tensors in GROUPS.items():
        assert groups[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert groups[group][name].dtype == tensor.dtype
            assert torch.equal(groups[group][name], tensor)
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    checkpoint.save(tmp_path / "x", {"a": {"one": shared, "two": shared[1:3]}}, {})
    assert checkpoint.load(tmp_path / "x")[0]["a"]["two"].tolist() == [1, 2]


@pytest.mark.parametrize("harm", ["cut", "noise", "empty", "absent"])
def test_a_harmed_file_is_one_line(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, GROUPS, NOTE)
    whole = path.read_bytes()
    path.unlink()
    if harm != "absent":
        path.write_bytes({"cut": whole[:-3], "noise": b"\xff" * 100, "empty": b""}[harm])
    with pytest.raises(XMCBenchError, match="not a readable checkpoint") as caught:
        checkpoint.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_optimiser_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    def start() -> tuple[torch.nn.Parameter, torch.nn.Parameter, torch.optim.Optimizer]:
        parameters = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(1))
        return *parameters, torch.optim.AdamW([{"params": [parameters[0]]}, {"params": [parameters[1]]}], fused=True)

    def step(parameters: tuple[torch.nn.Parameter, ...], optimizer: torch.optim.Optimizer, number: int) -> None:
        sum(((p * number) ** 3).sum() for p in parameters).backward()
        optimizer.step()
        optimizer.zero_grad()

    *first, optimizer = start()
    for number in range(1, 3):
        step(tuple(first), optimizer, number)
    tensors = {"optimizer": checkpoint.optimizer_tensors(optimizer), "p": dict(zip("ab", first, strict=True))}
    checkpoint.save(tmp_path / "x", tensors, {})
    groups, _ = checkpoint.load(tmp_path / "x")
    *second, other = start()
    with torch.no_grad():
        for parameter, saved in zip(second, groups["p"].values(), strict=True):
            parameter.copy_(saved)
    checkpoint.load_optimizer(other, groups["optimizer"])
    for number in range(3, 6):
        step(tuple(first), optimizer, number)
        step(tuple(second), other, number)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
