"""Trials that differ only in how their model scores share one training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench
from toy import save_small_encoder

from xmcbench.data import load
from xmcbench.runs.attempt import Attempt
from xmcbench.runs.job import Job
from xmcbench.runs.perform import perform
from xmcbench.suite.suite import load_suite
from xmcbench.trial.record import Record
from xmcbench_plugins.unidec import UniDEC

METHODS = {name: {"method": "unidec", "inference": name} for name in ("both", "de", "clf")}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The `inference` of every training, in order."""
    found: list[str] = []
    fit = UniDEC.fit

    def counted(method: UniDEC, *given: Any) -> None:
        found.append(method.config.inference)
        fit(method, *given)

    monkeypatch.setattr(UniDEC, "fit", counted)
    return found


def records(root: Path, store: str, methods: dict[str, Any] = METHODS, **keys: Any) -> dict[str, Record]:
    """Run the methods in this process, one after another."""
    (root / store).mkdir()
    dataset = load("catalog-100", root, root / "cache")
    encoder = {"name": str(root / "encoder"), "normalize": False}
    if not (root / "encoder").exists():
        save_small_encoder(root / "encoder", dataset.training_data())
    settings = {"batch_size": 16, "dimension": 16, "max_query_length": 8, "max_label_length": 8}
    suite = {"datasets": ["catalog-100"], "encoder": encoder, "budget": {"steps": 2}, "metrics": ["P@1", "P@5"]} | keys
    path = Bench(root / store).suite(methods, settings=settings, **suite)
    trials = load_suite(path, root).trials({"catalog-100": dataset.card.content_hash})
    common = {"suite": "s", "metrics": ["P@1", "P@5"], "data": root, "cache": root / "cache", "store": root / store}
    found = {trial.label: perform(Attempt(Job(trial=trial, **common))) for trial in trials}
    return {label: record for label, record in found.items() if record}


def test_one_training_serves_every_inference(fits: list[str], tmp_path: Path) -> None:
    """Every trial has its own key, predictions and metrics; what training spent is in each record."""
    shared = records(tmp_path, "shared", METHODS | {"weighed": {"method": "unidec", "fusion": 0.9}})
    assert fits == ["both"]
    first = shared["both"]
    assert {label: record.trained_by for label, record in shared.items()} == {
        "both": "", "de": first.key, "clf": first.key, "weighed": first.key
    }  # fmt: skip
    assert len({record.key for record in shared.values()}) == 4
    for record in shared.values():
        assert record.spent["steps"] == 2
        assert record.spent["encoder_tokens"] == first.spent["encoder_tokens"]
        assert record.num_parameters == first.num_parameters
    assert len({str(record.metrics) for record in shared.values()}) > 1
    alone = records(tmp_path, "alone", {"clf": METHODS["clf"]})
    assert alone["clf"].metrics == shared["clf"].metrics
    assert alone["clf"].trained_by == ""


def test_with_held_out_queries_each_inference_trains(fits: list[str], tmp_path: Path) -> None:
    """The checkpoint that is best on them depends on how the model scores."""
    found = records(tmp_path, "held-out", selection={"queries": 20, "metric": "P@1", "evaluations": 1})
    assert fits == ["both", "de", "clf"]
    assert {record.trained_by for record in found.values()} == {""}
