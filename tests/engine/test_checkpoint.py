"""Checkpoints come back as they went, whole or not at all, to any number of workers; or say that they cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from many_workers import on_workers
from processes import mapped

from xmcbench.engine import checkpoint
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.engine.training.update import Update
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.files.manifest import DamagedFolder, write_manifest

GROUPS = {
    "encoder": {"layer.0.weight": torch.randn(3, 2).T, "half": torch.randn(2).bfloat16()},
    "optimizer": {"0.step": torch.tensor(3.0)},
    "sampler": {"nearest": torch.tensor([[1, -1]], dtype=torch.int32)},
}
NOTE = {"epoch": 2, "best": None, "curve": [{"fraction": 0.1, "P@1": 33.3}]}


def test_tensors_and_note_come_back(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "step-1"
    checkpoint.save(place, GROUPS | {"empty": {}}, NOTE, ALONE)
    (groups,), note = checkpoint.load(place)
    assert note == NOTE
    assert groups.keys() == GROUPS.keys()
    for group, tensors in GROUPS.items():
        assert groups[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert groups[group][name].dtype == tensor.dtype
            assert torch.equal(groups[group][name], tensor)
    assert [p.name for p in place.parent.iterdir()] == ["step-1"]


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    checkpoint.save(tmp_path / "x", {"a": {"one": shared, "two": shared[1:3]}}, {}, ALONE)
    assert checkpoint.load(tmp_path / "x")[0][0]["a"]["two"].tolist() == [1, 2]


def test_tensors_are_written_from_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.arange(12.0).view(4, 3)
    written: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(checkpoint, "save_file", lambda tensors, _: written.update(tensors))
    checkpoint._write(tmp_path / "file", {"table": {"weight": rows, "step": torch.tensor(3)}})
    assert written["table/weight"].data_ptr() == rows.data_ptr()
    part = {checkpoint.IDS: torch.arange(4), "weight": rows}
    assert dict(checkpoint.deal([dict(part)], torch.arange(4)))["weight"] is rows
    assert dict(checkpoint.deal([dict(part)], torch.tensor([1, 3])))["weight"].tolist() == rows[[1, 3]].tolist()


@pytest.mark.parametrize("file", ["worker-0.safetensors", "note.json", "worker-0.json"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "absent", "flip"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_is_used(
    tmp_path: Path, damage: str, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    places = [checkpoint.step_directory(tmp_path, step) for step in (1, 2)]
    for place in places:
        checkpoint.save(place, GROUPS, NOTE, ALONE)
    harm(places[1] / file, damage)
    with pytest.raises(DamagedFolder) as caught:
        checkpoint.load(places[1])
    assert str(places[1] / file) in str(caught.value) or file == "worker-0.json"
    assert "\n" not in str(caught.value)
    assert [place for place, _, _ in checkpoint.intact(tmp_path, NOTE)] == places[:1]
    assert f"warning: {places[1]}" in caplog.text
    assert not places[1].exists()


def harm(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    path.unlink()
    if damage != "absent":
        flipped = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
        path.write_bytes({"cut": whole[:-3], "noise": b"\xff" * 100, "empty": b"", "flip": flipped}[damage])


def test_a_note_without_a_key_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "step-1", GROUPS, {}, ALONE)
    with pytest.raises(DamagedFolder, match=r"note\.json: not a checkpoint: found no key 'epoch'"):
        checkpoint.load(tmp_path / "step-1", ["epoch"])
    (tmp_path / "step-1" / "note.json").write_text('{"note": {"epoch": 1}}')
    write_manifest(tmp_path / "step-1", ["worker-0.safetensors", "note.json"], "worker-0.json")
    with pytest.raises(DamagedFolder, match=r"note\.json: not a checkpoint: KeyError\('workers'\)"):
        checkpoint.load(tmp_path / "step-1")


def test_folders_of_workers_that_share_none_are_merged(tmp_path: Path) -> None:
    on_workers(2, save_apart, str(tmp_path))
    for rank in range(2):
        shutil.copytree(tmp_path / str(rank), tmp_path / "both", dirs_exist_ok=True)
    saved, note = checkpoint.load(tmp_path / "both" / "step-1")
    assert (len(saved), note) == (2, {"saved by": 0})
    harm(tmp_path / "both" / "step-1" / "worker-1.safetensors", "flip")
    with pytest.raises(DamagedFolder, match=r"worker-1\.safetensors: damaged"):
        checkpoint.load(tmp_path / "both" / "step-1")


def save_apart(workers: Workers, root: str) -> None:
    place = Path(root) / str(workers.rank) / "step-1"
    checkpoint.save(place, {"a": {"x": torch.ones(9)}}, {"saved by": workers.rank}, workers, shared=False)


def test_what_a_kill_left_half_written_is_not_a_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(checkpoint.step_directory(tmp_path, 9), GROUPS, NOTE, ALONE)
    checkpoint.save(checkpoint.step_directory(tmp_path, 10), GROUPS, NOTE, ALONE)
    newest = checkpoint.step_directory(tmp_path, 10)
    half = tmp_path / f".{checkpoint.step_directory(tmp_path, 11).name}.partial"
    shutil.copytree(newest, half)  # all is written but for the name
    assert next(checkpoint.intact(tmp_path, NOTE))[0] == newest
    checkpoint.save(checkpoint.step_directory(tmp_path, 11), GROUPS, NOTE, ALONE)
    assert not half.exists()
    checkpoint.prune(tmp_path, 2)
    assert sorted(p.name[-2:] for p in tmp_path.iterdir()) == ["10", "11"]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert not list(checkpoint.intact(tmp_path / "nowhere", NOTE))


ROWS = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
TOGETHER = torch.tensor(5.0)


def save_my_rows(workers: Workers, root: str) -> None:
    ids = torch.arange(7)[workers.rank :: workers.size]
    groups = {"table w": {checkpoint.IDS: ids, "weight": ROWS[ids], "steps": TOGETHER}}
    checkpoint.save(Path(root) / "step-1", groups, {"saved by": workers.rank}, workers)


@pytest.mark.parametrize("size", [1, 3])
def test_rows_are_dealt_to_another_number_of_workers(tmp_path: Path, size: int) -> None:
    on_workers(size, save_my_rows, str(tmp_path))
    saved, note = checkpoint.load(tmp_path / "step-1")
    assert note == {"saved by": 0}
    assert len(saved) == size
    for ids in np.array_split(np.random.default_rng(1).permutation(7), 2):
        rows = dict(checkpoint.deal([dict(groups["table w"]) for groups in saved], torch.from_numpy(ids)))
        assert torch.equal(rows["weight"], ROWS[ids])
        assert torch.equal(rows["steps"], TOGETHER)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads resident memory from Linux")
def test_of_a_checkpoint_that_is_loaded_nothing_large_stays_in_memory(tmp_path: Path) -> None:
    def update() -> tuple[Update, LabelTable]:
        parameter = torch.nn.Parameter(torch.ones(5))
        parameter.grad = torch.ones(5)
        table = LabelTable(torch.arange(100_000), 40, TableConfig(optimizer="adam"), seed=0)
        return Update([{"params": [parameter], "lr": 0.1}], {"w": table}, ALONE, None), table

    first, table = update()
    table(torch.arange(100_000)).sum().backward()
    first.apply(1.0, norm=1.0)
    checkpoint.save(tmp_path / "x", first.tensors(), {}, ALONE)
    saved, _ = checkpoint.load(tmp_path / "x")
    second, copied = update()
    second.load(saved)
    for name, tensor in table.state_dict().items():
        assert torch.equal(copied.get_buffer(name), tensor)
    assert saved[0]["optimizer"]
    assert mapped(tmp_path / "x" / "worker-0.safetensors") < 1e6  # 48 MB, of which the optimiser has 40 bytes


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
    checkpoint.save(tmp_path / "x", tensors, {}, ALONE)
    (groups,), _ = checkpoint.load(tmp_path / "x")
    *second, other = start()
    with torch.no_grad():
        for parameter, saved in zip(second, groups["p"].values(), strict=True):
            parameter.copy_(saved)
    checkpoint.load_optimizer(other, groups["optimizer"])
    for number in range(3, 6):
        step(tuple(first), optimizer, number)
        step(tuple(second), other, number)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
