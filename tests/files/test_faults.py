"""A fault of the machine is told apart from damage and from a fault of the method, and nothing is deleted for it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.bench import Bench
from safetensors import SafetensorError
from safetensors.torch import save_file

from xmcbench.data import load
from xmcbench.data.prepared import load_card
from xmcbench.engine import checkpoint
from xmcbench.engine.workers import ALONE
from xmcbench.errors import XMCBenchError
from xmcbench.files import manifest, regular
from xmcbench.files.atomic import atomic_directory, atomic_write
from xmcbench.files.manifest import DamagedFolder, check_manifest, open_or_make, write_manifest
from xmcbench.files.regular import MachineFault, machine_fault
from xmcbench.runs.saved_model import same_training
from xmcbench.trial.store import Store, StoreError
from xmcbench_plugins.teachers.database import JudgementStore

FAULTS = [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE]


def fail_to_read(patch: pytest.MonkeyPatch, part: str, code: int) -> None:
    """Reading any file whose path contains `part` fails with the error `code`; this process has checked no file."""
    opened = os.open

    def fail(path: Any, *arguments: Any, **options: Any) -> int:
        if part in os.fspath(path):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *arguments, **options)

    patch.setattr(regular.os, "open", fail)
    manifest._checked.clear()


@pytest.mark.parametrize(
    "problem",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("PytorchStreamWriter failed: No space left on device"),
    ],
)
def test_a_full_disk_is_known_by_any_librarys_words(problem: Exception) -> None:
    assert machine_fault(problem) == os.strerror(errno.ENOSPC)


@pytest.mark.parametrize("code", [errno.EFBIG, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EDQUOT])
def test_faults_of_the_machine_are_known_behind_other_errors(code: int) -> None:
    problem = ValueError("a library's words")
    problem.__cause__ = OSError(code, "what the machine says")
    assert (machine_fault(problem) or "").startswith(os.strerror(code))


def test_a_full_disk_is_known_behind_an_error_that_names_the_folder(tmp_path: Path) -> None:
    def full(_made: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(XMCBenchError, match="tokens cannot be written") as caught:
        open_or_make(tmp_path / "tokens", Path.exists, full, "tokens")
    assert machine_fault(caught.value) == os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    "problem", [ValueError("28"), FileNotFoundError(errno.ENOENT, "gone"), PermissionError(errno.EACCES, "no"), None]
)
def test_other_faults_are_the_methods_own(problem: Exception | None) -> None:
    assert machine_fault(problem) is None


@pytest.mark.parametrize("code", FAULTS)
def test_a_folder_that_cannot_be_read_is_not_damaged_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def open_text(folder: Path) -> str:
        return (folder / "text").read_text()

    def write(made: Path) -> None:
        (made / "text").write_text("healthy")

    folder = tmp_path / "cached"
    assert open_or_make(folder, open_text, write, "a text") == "healthy"
    for part in ("text", "manifest.json"):
        with monkeypatch.context() as patch:
            fail_to_read(patch, f"cached/{part}", code)
            with pytest.raises(
                MachineFault, match=rf"{os.strerror(code)}( \(raise `ulimit -n`\))?; nothing is deleted"
            ):
                open_or_make(folder, open_text, lambda _: pytest.fail("made again"), "a text")
    manifest._checked.clear()
    assert open_or_make(folder, open_text, lambda _: pytest.fail("made again"), "a text") == "healthy"


def test_a_missing_or_changed_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    write_manifest(tmp_path)
    (tmp_path / "a").write_text("contant")
    with pytest.raises(DamagedFolder, match="found the digest"):
        check_manifest(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(DamagedFolder, match="the file is missing"):
        check_manifest(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DamagedFolder):
        check_manifest(tmp_path)


@pytest.mark.parametrize("code", FAULTS)
def test_a_checkpoint_that_cannot_be_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    for step in (1, 2):
        place = checkpoint.step_directory(tmp_path, step)
        checkpoint.save(place, {"a": {"b": torch.ones(2)}}, {"step": step}, ALONE)
    with monkeypatch.context() as patch:
        fail_to_read(patch, "worker-0.safetensors", code)
        with pytest.raises(MachineFault):
            next(checkpoint.intact(tmp_path, ("step",)))
    manifest._checked.clear()
    assert [note["step"] for _, _, note in checkpoint.intact(tmp_path, ("step",))] == [2, 1]


def test_a_prepared_copy_that_cannot_be_read_ends_the_run_and_records_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = bench.runner(bench.suite(["fake-ok"]), debug=True)
    plan = runner.plan()
    with monkeypatch.context() as patch:
        fail_to_read(patch, "train_targets.indices", errno.EIO)
        with pytest.raises((MachineFault, StoreError), match="Input/output error"):
            runner.run(plan, bench.heard)
    assert bench.store.records() == []
    assert [record.status for record in runner.run(runner.plan(), bench.heard)] == ["ok"]


def test_a_model_that_cannot_be_read_is_not_trained_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from xmcbench.trial.method import build_method

    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    method = build_method(record.trial)
    monkeypatch.setattr(type(method), "scoring_settings", ("none",), raising=False)
    assert same_training(record.trial, method, bench.store)
    fail_to_read(monkeypatch, "/model/", errno.ESTALE)
    with pytest.raises(MachineFault):
        same_training(record.trial, method, bench.store)


def test_a_cached_folder_of_something_else_is_not_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and with its manifest, in the place of another folder."""
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    first, second = load("catalog-200"), load("catalog-300")
    folders = {path.name.rpartition("-")[0]: path for path in (tmp_path / "cache" / "datasets").glob("*-*[!k]")}
    other, own = folders["catalog-200"], folders["catalog-300"]
    for path in own.iterdir():
        path.unlink()
    for path in other.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    assert load_card("catalog-300").name == "catalog-300"
    assert "holds a copy of 'catalog-200-" in caplog.text
    assert load("catalog-300").card.content_hash == second.card.content_hash != first.card.content_hash


def test_what_is_written_follows_the_umask(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.touch(0o600)
    for umask, file_mode, folder_mode in ((0o002, 0o664, 0o775), (0o027, 0o640, 0o750)):
        path, folder = tmp_path / f"file-{umask}", tmp_path / f"folder-{umask}"
        before = os.umask(umask)
        try:
            with atomic_write(path) as file:
                file.write(b"content")
            with atomic_directory(folder) as made:
                (made / "file").write_text("content")
                (made / "tool").touch(0o700)
                (made / "link").symlink_to(private)
                (made / "below").mkdir(0o700)
                save_file({"weights": torch.ones(2)}, made / "below" / "model.safetensors")
        finally:
            os.umask(before)
        files = [path, folder / "file", folder / "below" / "model.safetensors"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {file_mode}
        assert {stat.S_IMODE(made.stat().st_mode) for made in (folder, folder / "below")} == {folder_mode}
        assert stat.S_IMODE((folder / "tool").stat().st_mode) == file_mode | 0o100
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_a_shared_store_of_judgements_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        JudgementStore(tmp_path)
        with Store(tmp_path).lock("key"):
            paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    finally:
        os.umask(before)
    assert {path.name for path in paths} >= {"judgements.sqlite", "judgements.sqlite-wal", "key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o664}


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-1"
    checkpoint.save(path, {"a": {"b": torch.ones(2)}}, {"step": 1}, ALONE)

    def full(_tensors: object, file: Path, **_: object) -> None:
        Path(file).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(SafetensorError):
        checkpoint.save(path, {"a": {"b": torch.zeros(2)}}, {"step": 2}, ALONE)
    assert checkpoint.load(path)[1] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]
