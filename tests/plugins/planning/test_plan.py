"""`xmcbench plan` as people use it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import call

from xmcbench.engine.planning import memory


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "process_bytes", lambda _: 5e8)
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    content = {
        "name": "x", "datasets": ["catalog-200"], "encoder": "tiny", "seeds": [0, 1],
        "budget": {"encoder_tokens": 20_000, "peak_bytes": 1e9},
        "methods": {"in-batch": {"method": "dexml", "negatives": "in-batch"}, "words": {"method": "tfidf-nn"}},
        "settings": {"batch_size": 16},
    }  # fmt: skip
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_every_trial_is_told_once_and_what_cannot_be_planned_is_named(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("plan", suite, "--accelerator", "h100", "--workers", "4", "--utilisation", "0.5") == 0
    shown = capsys.readouterr()
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("in-batch"))
    assert row[1] == "4"
    assert row[4].startswith("20.")
    assert row[-1] == "yes"
    assert "h100 (NVIDIA H100 data sheet, SXM), 50% of its peak assumed" in shown.out
    assert "memory per worker" in shown.out
    assert "not planned: catalog-200/words: trains no encoder of its own" in shown.err


def test_why_a_method_cannot_be_planned_is_said(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmtx = {"track": "zero-shot", "methods": {"lmtx": {"method": "lmtx", "teacher": "annotated"}}}
    suite.write_text(yaml.safe_dump(yaml.safe_load(suite.read_text()) | lmtx))
    call("plan", suite)
    assert "not planned: catalog-200/lmtx: it trains on what its teacher accepts" in capsys.readouterr().err


def test_what_does_not_fit_makes_the_exit_code(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", suite, "--set", "budget.peak_bytes=1e6", "--only", "in-batch", "--format", "csv") == 1
    assert ",no\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limit", "told"), [("encoder_tokens", "fails: about"), ("flops", "fails: before the first step a pass over")]
)
def test_a_trial_that_fails_before_its_first_step_makes_the_exit_code(
    limit: str, told: str, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(suite.read_text())
    content |= {"methods": {"p": {"method": "prime", "free_vectors": 16}}, "budget": {limit: 100}}
    suite.write_text(yaml.safe_dump(content))
    assert call("plan", suite) == 1
    assert "fails: catalog-200/p: before the first step a pass over 200 texts takes" in capsys.readouterr().err
    assert call("run", suite, "--dry-run") == 0
    assert told in capsys.readouterr().err
    assert call("run", suite, "--dry-run", "--set", f"budget.{limit}=1000000000000") == 0
    assert "fails" not in capsys.readouterr().err


def test_a_dry_run_tells_that_no_training_query_is_left(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for queries, told in ((479, False), (480, True)):
        assert call("run", suite, "--dry-run", "--set", f"selection.queries={queries}") == 0
        few = "in-batch on catalog-200: fails: selection.queries is 480, expected fewer than the 480 training queries"
        assert (few in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        ({"name": "minilm", "layers": 9}, "encoder 'minilm' has 6 layers, found layers: 9"),
        ({"name": "minilm", "layers": 6}, None),
        ({"name": "static", "words": "no/folder"}, "words 'no/folder': no such folder (known: "),
        ({"name": "static", "words": "minilm"}, None),
        ({"name": "hub:an-organisation/of-the-hub", "layers": 90}, None),  # nobody asks the hub before a run
    ],
)
def test_a_dry_run_tells_that_an_encoder_is_missing(
    encoder: dict[str, Any], told: str | None, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.write_text(yaml.safe_dump(yaml.safe_load(suite.read_text()) | {"encoder": encoder}))
    assert call("run", suite, "--dry-run") == 0
    noted = [line for line in capsys.readouterr().err.splitlines() if "fails:" in line]
    trained = [line for line in noted if line.startswith("note: in-batch on catalog-200: fails: ")]
    assert [told in line for line in trained] == [True] if told else noted == []


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        ({"name": "static", "words": "FOLDER"}, "no words of a static encoder: found no tokenizer.json"),
        ({"name": "FOLDER"}, "cannot be loaded: found no config.json in the folder"),
    ],
)
def test_a_folder_that_is_no_encoder_ends_a_dry_run(
    encoder: dict[str, Any], told: str, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {key: str(suite.parent) if value == "FOLDER" else value for key, value in encoder.items()}
    suite.write_text(yaml.safe_dump(yaml.safe_load(suite.read_text()) | {"encoder": named}))
    assert call("run", suite, "--dry-run") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert str(suite.parent) in error
    assert told in error


@pytest.mark.parametrize(
    ("method", "package", "told"),
    [
        (
            {"method": "dexml", "search": "faiss-hnsw"},
            "faiss",
            "search: faiss-hnsw with vectors: float32 needs faiss, which cannot be imported",
        ),
        ({"method": "dexml", "encoder": {"name": "minilm", "lora": {}}}, "peft", "lora needs peft, which cannot be"),
    ],
)
def test_a_dry_run_tells_that_a_package_is_missing(
    method: dict[str, Any],
    package: str,
    told: str,
    suite: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = yaml.safe_load(suite.read_text()) | {"methods": {"m": method}, "settings": {}}
    del content["encoder"]
    suite.write_text(yaml.safe_dump(content))
    for present in (True, False):
        if not present:
            monkeypatch.setitem(sys.modules, package, None)  # it cannot be imported, or found
        assert call("run", suite, "--dry-run") == 0
        assert (told in capsys.readouterr().err) is not present


def test_a_time_limit_that_is_too_short_is_told(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", suite, "--set", "timeout=1e-9", "--only", "in-batch", "--accelerator", "h100") == 1
    told = capsys.readouterr().err
    assert told.count("too long: ") == 1  # of two seeds
    assert "catalog-200/in-batch is predicted to take" in told


def test_devices_are_those_of_the_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ("--set", "resources={workers: 2, trials: {'in-*': {workers: 3}}}", "--only", "in-batch")
    call("plan", suite, *sets)
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("in-batch"))
    assert row[1] == "3"


def test_a_dataset_that_is_not_on_disk_is_planned(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--dataset", "eurlex-4k", "--only", "in-batch", "--query-tokens", "20")
    assert call("plan", suite, *arguments) == 0
    assert "eurlex-4k is not here: queries and labels of 20 and 128 tokens are assumed" in capsys.readouterr().out


def test_an_unknown_device_is_named(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", suite, "--accelerator", "h10") == 2
    assert "unknown accelerator 'h10' (did you mean 'h100'" in capsys.readouterr().err
