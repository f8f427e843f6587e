from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from typing import Any

import psutil
import pytest
from fakes.bench import Bench
from tracking.scripted import CURVE, play

from xmcbench.plugins.registry import Registry
from xmcbench.tracking.tracker import Listener
from xmcbench.trial.record import Record
from xmcbench_plugins.trackers import tools
from xmcbench_plugins.trackers.tools import Wandb, settings

wandb = pytest.importorskip("wandb")
messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")

HEADER, BLOCK = 7, 32768  # bytes: of a file and of a piece of a record; of the blocks that no piece crosses


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who is not logged in, whose files stand in the test's folder."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_SILENT", "WANDB_ERROR_REPORTING", "WANDB_SERVICE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what the tracker sets goes with the test
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / name))


@dataclass
class Logged:
    """What a file of an offline run holds."""

    history: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    run: Any = None
    exit_code: int | None = None


def pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind (1 whole, 2 first, 3 middle, 4 last) and content of the pieces of a log in LevelDB's format."""
    at = HEADER
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at)
        yield kind, data[at + HEADER : at + HEADER + length]
        at += HEADER + length


def logged(path: Path) -> Logged:
    found, whole = Logged(), b""
    for kind, piece in pieces(path.read_bytes()):
        whole += piece
        if kind in (2, 3):
            continue
        record, whole = messages.Record.FromString(whole), b""
        which = record.WhichOneof("record_type")
        if which == "run":
            found.run = record.run
            found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif which == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found.history.append(row)
        elif which == "summary":
            found.summary |= {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.summary.update
            }
        elif which == "exit":
            found.exit_code = record.exit.exit_code
    return found


def files(bench: Bench, record: Record) -> list[Path]:
    return sorted(bench.store.root.glob(f"wandb/offline-run-*/run-{record.key}.wandb"))


def services() -> list[psutil.Process]:
    """Background processes of wandb that this process started."""
    return [child for child in psutil.Process().children(recursive=True) if "wandb" in child.name()]


def test_files_of_a_user_who_is_not_logged_in_hold_settings_figures_and_outcome(bench: Bench) -> None:
    records = play(bench, [Wandb(bench.store.root)])
    assert not services()
    (path,) = files(bench, records["ok"])
    ok = logged(path)
    assert {name: value for name, value in ok.config.items() if name != "_wandb"} == settings(records["ok"].trial)
    assert (ok.run.project, ok.run.run_group, ok.run.display_name) == ("xmcbench", "fake-20", "ok seed 0")
    rows = [{name: value for name, value in row.items() if not name.startswith("_")} for row in ok.history]
    assert rows == [
        {"train/loss": 0.5, "spent/encoder_tokens": 70, "steps": 2},
        {"select/P@1": CURVE["P@1"], "steps": CURVE["steps"]},
        {"test/P@1": 0.75, "test/nDCG@5": 0.5, "steps": 5},
    ]
    assert ok.exit_code == 0
    assert (ok.summary["status"], ok.summary["suite"]) == ("ok", "test")
    (path,) = files(bench, records["crash"])
    crash = logged(path)
    assert (crash.exit_code, crash.summary["status"]) == (1, "error")


def test_a_trial_that_does_not_end_is_marked_and_goes_on_under_its_id(bench: Bench) -> None:
    (step,) = bench.runner(bench.suite(["fake-ok"])).plan()
    for _ in range(2):
        tracker = Wandb(bench.store.root)
        tracker.begin(step.trial)
        tracker.close()
    assert not services()
    found = [logged(path) for path in sorted(bench.store.root.glob("wandb/offline-run-*/*.wandb"))]
    assert {one.run.run_id for one in found} == {step.trial.key}
    assert {one.exit_code for one in found} == {tools.INTERRUPTED}


def test_a_server_that_does_not_answer_is_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (step,) = bench.runner(bench.suite(["fake-ok"])).plan()
    monkeypatch.setattr(tools, "SECONDS", 1)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    warnings: list[str] = []
    with closing(create_server(("127.0.0.1", 0))) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        listener = Listener(Wandb(bench.store.root), warnings.append)
        listener.send("begin", step.trial)
        listener.close()
    wandb.teardown()
    (warning,) = warnings
    assert warning.startswith("tracker 'wandb' failed and receives no further events: ")
    assert not services()


def test_it_is_found_by_name() -> None:
    assert Registry().thing("tracker", "wandb") is Wandb
