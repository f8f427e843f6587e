"""Hostile submissions: each is named in a line in little memory, and the others are still checked."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench
from plugins.board.test_submission import CLEAN

from xmcbench.cli import main
from xmcbench.trial.packed import LINES, PACK
from xmcbench.trial.record import Record, encode
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench_plugins.board.packing import add_packed, packed_path


@pytest.fixture
def accepted(bench: Bench) -> Store:
    """Two accepted trials, of two suites."""
    for name in ("fake-ok", "fake-rare"):
        for record in bench.run(bench.suite([name], name=name), debug=True).values():
            clean = record.model_copy(update={"provenance": {**record.provenance, **CLEAN}})
            bench.store.write_record(clean)
            places = "--to", str(bench.root / "accepted"), "--store", str(bench.store.root)
            assert here("submit", record.key, *places)[0] == 0
    return Store(bench.root / "accepted")


def command(bench: Bench, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command in a process that may take 1 GB and 30 seconds of a core."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))

    done = subprocess.run(
        [sys.executable, "-c", "from xmcbench.cli import main; main()", *arguments],
        cwd=bench.root, capture_output=True, text=True, check=False, preexec_fn=limit,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def here(*arguments: str) -> tuple[int, str, str]:
    """As `command`, in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0), output.getvalue(), errors.getvalue()


def bomb(path: Path, rows: int = 40) -> None:
    """A small archive whose arrays take 2 GB."""
    path.write_bytes(_bomb(rows))


@cache
def _bomb(rows: int) -> bytes:
    zeros, content = b"\0" * 10_000_000, io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, kind in (("indices", "<i4"), ("scores", "<f4")):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = io.BytesIO()
                shape = (rows, 100 * 10_000_000 // rows // 4)
                layout = {"descr": kind, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(header, layout)
                file.write(header.getvalue())
                for _ in range(100):
                    file.write(zeros)
    return content.getvalue()


Harm = Callable[[Path, Record], None]  # of an accepted trial, below the folder of accepted results


def forged(**changes: Any) -> Harm:
    """A record with other content and the digest of it."""

    def write(root: Path, record: Record) -> None:
        add_packed(root, [(record, encode(record.model_copy(update=changes)), {})])

    return write


def bombed(root: Path, record: Record) -> None:
    """Predictions that unpack to 2 GB, and a record with their digest."""
    path = root / "bomb.npz"
    bomb(path)
    content, resampled = path.read_bytes(), Store(root).result(record, RESAMPLED)
    path.unlink()
    digests = {**record.digests, PREDICTIONS: sha256(content).hexdigest()}
    listed = encode(record.model_copy(update={"digests": digests}))
    add_packed(root, [(record, listed, {PREDICTIONS: content, RESAMPLED: resampled})])


def instead(ending: str, make: Callable[[Path], Any]) -> Harm:
    """Something else in place of the file of records, or of the pack beside it."""

    def write(root: Path, record: Record) -> None:
        path = packed_path(root, record).with_suffix(ending)
        path.unlink()
        make(path)

    return write


HOSTILE: dict[str, tuple[Harm, str]] = {
    "metric of many labels": (
        forged(metrics={"P@999999999": 0.5}, intervals={}),
        "metric 'P@999999999' needs more labels",
    ),
    "metric of many digits": (forged(metrics={"P@" + "9" * 5000: 0.5}, intervals={}), "unknown metric"),
    "spent in words": (forged(spent={"steps": "many"}), "not a record: spent.steps: Input should be a valid integer"),
    "largest step": (forged(spent={"steps": 9, "largest_step": [1]}), "not a record: spent.largest_step"),
    "provenance": (forged(provenance={"git": [1], "command": 3}), "not a record: provenance.git"),
    "zip bomb": (bombed, "found 250,000,000 entries, expected at most 4,000"),
    "pipe": (instead(PACK, os.mkfifo), "fake-rare.safetensors: not a regular file"),
    "pipe as records": (instead(LINES, os.mkfifo), "fake-rare.jsonl: not a regular file"),
    "device": (instead(LINES, lambda path: path.symlink_to("/dev/zero")), "fake-rare.jsonl: not a regular file"),
    "folder": (instead(LINES, Path.mkdir), "fake-rare.jsonl: not a regular file"),
    "link": (instead(PACK, lambda path: path.symlink_to("/etc/passwd")), "fake-rare.safetensors is not expected"),
    "large records": (instead(LINES, lambda path: path.write_bytes(b" " * 60_000_000)), "larger than 50,000,000"),
    "deep record": (instead(LINES, lambda path: path.write_text("[" * 100_000)), "not a record"),
    "missing pack": (instead(PACK, lambda _: None), "fake-rare.safetensors: the file is missing"),
    "no pack": (instead(PACK, lambda path: path.write_bytes(b"x" * 99)), "fake-rare.safetensors: damaged"),
}


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
def test_each_bad_submission_is_named_and_the_good_one_is_checked(bench: Bench, accepted: Store) -> None:
    of_suite = {record.suite: record for record in accepted.records()}
    bad, root = of_suite["fake-rare"], accepted.root
    whole = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for case, (harm, message) in HOSTILE.items():
        harm(root, bad)
        if case == "zip bomb":
            code, output, errors = command(bench, "submit", "--check", "--to", "accepted")
        else:
            code, output, errors = here("submit", "--check", "--to", str(root))
        assert code == 1, (case, errors)
        assert message in errors, (case, errors)
        assert "Traceback" not in errors, case
        assert "fake-ok" not in errors, case
        assert "metrics of" in output, case
        for path in packed_path(root, bad).parent.glob("fake-rare*"):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
    assert (last := here("submit", "--check", "--to", str(root)))[0] == 0, last


@pytest.mark.parametrize("arguments", [["rescore"], ["score", "bomb.npz", "--dataset", "fake-20"]])
def test_a_bomb_is_not_unpacked(bench: Bench, accepted: Store, arguments: list[str]) -> None:
    first, other = accepted.records()
    if arguments == ["rescore"]:
        arguments = ["rescore", "--store", "accepted"]
        bombed(accepted.root, first)
    else:
        bomb(bench.root / "bomb.npz")
    code, output, errors = command(bench, *arguments)
    assert code == 2
    assert len([line for line in errors.splitlines() if not line.endswith("s so far")]) == 1  # a busy machine says that
    assert "found 250,000,000 entries, expected at most" in errors
    assert "score" in arguments or other.key in output


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
def test_predictions_to_score_are_regular_files(bench: Bench) -> None:
    os.mkfifo(bench.root / "pipe")
    for path in (bench.root / "pipe", Path("/dev/zero"), bench.root):
        code, _, errors = here("score", str(path), "--dataset", "fake-20", "--data", str(bench.root))
        assert (code, errors) == (2, f"error: {path}: not a regular file\n")


def test_a_record_is_small_enough_to_read(accepted: Store) -> None:
    for record in accepted.records():
        assert len(json.dumps(record.model_dump(mode="json"))) < 1_000_000
