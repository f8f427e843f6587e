"""A fault of the disk is told apart from a fault of the method, whichever library meets it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from xmcbench.engine import checkpoint
from xmcbench.engine.workers import ALONE
from xmcbench.errors import XMCBenchError
from xmcbench.files.cached_folder import open_or_make
from xmcbench.run.worker import disk_fault


@pytest.mark.parametrize(
    "problem",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_known_by_any_librarys_words(problem: Exception) -> None:
    assert disk_fault(problem) == os.strerror(errno.ENOSPC)


def test_a_full_disk_is_known_behind_an_error_that_names_the_folder(tmp_path: Path) -> None:
    def full(_made: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(XMCBenchError, match="tokens cannot be written") as caught:
        open_or_make(tmp_path / "tokens", Path.exists, full, "tokens")
    assert disk_fault(caught.value) == os.strerror(errno.ENOSPC)


@pytest.mark.parametrize("problem", [ValueError("28"), FileNotFoundError(errno.ENOENT, "gone"), MemoryError()])
def test_other_faults_are_the_methods_own(problem: Exception) -> None:
    assert disk_fault(problem) is None


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
