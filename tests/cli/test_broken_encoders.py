"""A folder that is no whole encoder ends a run in a line before its plan; `--allow` says that it is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import told
from fakes.bench import Bench
from toy import save_small_encoder, toy_data

from xmcbench.plugins.registry import registry


@pytest.fixture
def suite(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A suite with an encoder of three layers, whose files hold two; and the folder."""
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    registry.cache_clear()
    folder = Path(save_small_encoder(tmp_path / "mine", toy_data()))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    methods = {"own": {"method": "untrained", "encoder": str(folder)}}
    return bench.suite(methods, datasets=["catalog-60"]), folder


def test_a_broken_folder_ends_the_run_before_its_plan(
    bench: Bench, suite: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = suite
    code, output, errors = told(capsys, "run", path, *bench.places, "--dry-run")
    assert (code, output) == (2, "")
    assert f"encoder {str(folder)!r}: 16 of its weights are not in its files, first 'encoder.layer.2." in errors
    assert "--allow" in errors
    (folder / "config.json").rename(folder / "kept.json")
    code, output, errors = told(capsys, "run", path, *bench.places, "--dry-run")
    assert (code, output) == (2, "")
    assert f"encoder {str(folder)!r} cannot be loaded: found no config.json in the folder" in errors
    (folder / "kept.json").rename(folder / "config.json")
    code, output, _ = told(capsys, "run", path, *bench.places, "--dry-run", "--allow")
    assert (code, "own" in output) == (0, True)
