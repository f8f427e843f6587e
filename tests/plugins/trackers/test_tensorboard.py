from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench
from tracking.scripted import CURVE, play

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import Registry
from xmcbench_plugins.trackers import tools
from xmcbench_plugins.trackers.tools import TensorBoard

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def events(directory: Path) -> Any:
    """What TensorBoard reads in a folder."""
    found = accumulators.EventAccumulator(str(directory))
    found.Reload()
    return found


def test_event_files_hold_the_figures_of_the_records(bench: Bench) -> None:
    tracker = TensorBoard(bench.store.root)
    records = play(bench, [tracker])
    ok = records["ok"]
    found = events(tracker.directory(ok.trial))
    for name, value in ok.metrics.items():
        (point,) = found.Scalars(f"test/{name}")
        assert (point.step, point.value) == (5, pytest.approx(value))
    (point,) = found.Scalars("select/P@1")
    assert (point.step, point.value) == (CURVE["steps"], CURVE["P@1"])
    assert [(point.step, point.value) for point in found.Scalars("train/loss")] == [(2, 0.5)]
    assert [(point.step, point.value) for point in found.Scalars("spent/encoder_tokens")] == [(2, 70)]
    (text,) = found.Tensors("record/text_summary")
    assert json.loads(text.tensor_proto.string_val[0].decode().strip("`json\n"))["key"] == ok.key
    assert not any(
        tag.startswith("test/") for tag in events(tracker.directory(records["crash"].trial)).Tags()["scalars"]
    )


def test_names_stay_below_the_folder(tmp_path: Path, bench: Bench) -> None:
    suite = bench.suite({"../../a b/ok": {"method": "fake-ok"}})
    (step,) = bench.runner(suite).plan()
    directory = TensorBoard(tmp_path).directory(step.trial)
    assert directory.resolve().parent == (tmp_path / "tensorboard" / "fake-20").resolve()


def test_it_is_found_by_name_and_a_missing_package_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Registry().thing("tracker", "tensorboard") is TensorBoard

    def missing(module: str, extra: str, purpose: str) -> None:
        raise XMCBenchError(f"{purpose} needs {module} [{extra}]")

    monkeypatch.setattr(tools, "import_extra", missing)
    with pytest.raises(XMCBenchError, match=r"needs tensorboard \[tensorboard\]"):
        TensorBoard(tmp_path)
