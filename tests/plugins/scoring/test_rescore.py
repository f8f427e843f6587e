from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import typer
from reporting.made import record as made
from typer.testing import CliRunner

import xmcbench.data
from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import rank, truth_hash
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.store import PREDICTIONS, Store
from xmcbench_plugins.scoring.commands import rescore

app = typer.Typer()
app.command()(rescore)


def made_dataset() -> Dataset:
    targets = sp.csr_array(np.eye(4, dtype=np.float32))
    card = DatasetCard(name="made", num_train=4, num_test=4, num_labels=4, content_hash="c" * 64)
    split, nothing = Split(["a", "b", "c", "d"], targets), sp.csr_array((4, 4), dtype=np.float32)
    return Dataset(card, split, split, ["a", "b", "c", "d"], nothing, nothing)


@dataclass
class World:
    """A store with two scored trials and a failed one, and the dataset they ran on."""

    store: Store
    dataset: Dataset

    def add(self, label: str, metrics: dict[str, float], status: Status = Status.OK) -> Record:
        scores = np.array([[4, 3, 2, 1]] * 2 + [[1, 2, 3, 4]] * 2)  # queries 0 and 3 get their label first
        predictions = rank(np.tile(np.arange(4), (4, 1)), scores, 4)
        changes = {"dataset_hash": self.dataset.card.content_hash, "metric_version": 0, "spent": {}}
        record = made(label, method=label, status=status, metrics=metrics, **changes)
        return self.write(record, predictions, truth_hash(self.dataset))

    def write(self, record: Record, predictions: Predictions, truth: str) -> Record:
        """Write predictions, and the record with their digest."""
        digest = self.store.write_predictions(record.key, predictions, truth)
        record = record.model_copy(update={"digests": {PREDICTIONS: digest}})
        self.store.write_record(record)
        return record

    def metrics(self, record: Record) -> dict[str, float]:
        now = self.store.record(record.key)
        assert now is not None
        return now.metrics

    def run(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--store", str(self.store.root), "--data", "somewhere"])
        if result.exception:
            raise result.exception
        return result.stdout


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(Store(tmp_path), made_dataset())

    def load(name: str, data_dir: Path) -> Dataset:
        assert (name, data_dir) == ("made", Path("somewhere"))
        return world.dataset

    monkeypatch.setattr(xmcbench.data, "load", load)
    return world


def test_figures_are_recomputed_and_the_change_is_told(world: World) -> None:
    wrong = world.add("wrong", {"P@1": 0.9, "R@2": 1.0})
    text = world.run()
    assert world.metrics(wrong) == {"P@1": 0.5, "R@2": 1.0}
    assert f"{wrong.key} wrong on made: P@1 90.0000 -> 50.0000, metric version 0 -> {METRIC_VERSION}\n" == text
    assert world.run() == f"{wrong.key} wrong on made: 2 metrics unchanged\n"


def test_figures_can_be_added_and_none_is_lost(world: World) -> None:
    record = world.add("dexml[lr=0.1]", {"P@1": 0.5})
    assert "nDCG@2 81.5465 (new)" in world.run("dexml[lr=0.1]", "--metrics", "nDCG@2")
    assert list(world.metrics(record)) == ["P@1", "nDCG@2"]


def test_only_the_trials_that_are_named_are_rescored(world: World) -> None:
    first, second = world.add("first", {"P@1": 0.9}), world.add("second", {"P@1": 0.9})
    failed = world.add("failed", {}, Status.ERROR)
    world.run("fir*")
    assert world.metrics(second) == {"P@1": 0.9}
    world.run(second.key)
    assert world.metrics(first) == world.metrics(second) == {"P@1": 0.5}
    with pytest.raises(XMCBenchError, match=r"matches 'failed'"):
        world.run("failed")
    with pytest.raises(XMCBenchError, match=r"matches 'secnd' \(did you mean 'second'\?\)"):
        world.run("secnd")
    assert world.metrics(failed) == {}


def test_predictions_for_another_truth_keep_their_figures(world: World) -> None:
    record, other = world.add("first", {"P@1": 0.9}), world.add("second", {"P@1": 0.8})
    predictions, _ = world.store.predictions(record)
    world.write(record, predictions, "e" * 64)
    with pytest.raises(
        XMCBenchError, match=f"^not rescored: {record.key} first: its predictions answer to the truth ee"
    ):
        world.run()
    assert world.metrics(record) == {"P@1": 0.9}
    assert world.metrics(other) == {"P@1": 0.5}


def test_a_dataset_that_has_changed_since_is_refused(world: World) -> None:
    record = world.add("first", {"P@1": 0.9})
    world.add("second", {"P@1": 0.9})
    world.dataset = replace(world.dataset, card=world.dataset.card.model_copy(update={"content_hash": "d" * 64}))
    with pytest.raises(
        XMCBenchError, match=r"has the content hash d+, the trial ran on c+ \(and 1 more of 2 records\)$"
    ):
        world.run()
    assert world.metrics(record) == {"P@1": 0.9}


def test_predictions_that_break_a_rule_get_no_figures(world: World) -> None:
    record = world.add("first", {"P@1": 0.9})
    predictions, answered = world.store.predictions(record)
    predictions.indices[2, 1] = predictions.indices[2, 0]
    world.write(record, predictions, answered)
    with pytest.raises(XMCBenchError, match="test query 2 hold a label twice"):
        world.run()


def test_unknown_metrics_and_empty_stores_are_errors(world: World) -> None:
    with pytest.raises(XMCBenchError, match="no records with predictions"):
        world.run()
    world.add("first", {"P@1": 0.5})
    with pytest.raises(XMCBenchError, match=r"^--metrics: unknown metric 'NDCG@5' \(did you mean 'nDCG@5'"):
        world.run("--metrics", "NDCG@5")
    with pytest.raises(XMCBenchError, match=r"^--metrics: unknown metric 'nDCG' \(did you mean 'nDCG@"):
        world.run("--metrics", "P@1,nDCG")


def test_another_trials_predictions_are_named(world: World) -> None:
    own, other = world.add("first", {"P@1": 0.9}), world.add("second", {"P@1": 0.9})
    ranked = rank(np.tile(np.arange(4), (4, 1)), np.array([[4, 3, 2, 1]] * 4), 4)
    world.write(other, ranked, truth_hash(world.dataset))
    places = [world.store.directory(record.key) for record in (other, own)]
    (places[1] / PREDICTIONS).write_bytes((places[0] / PREDICTIONS).read_bytes())
    with pytest.raises(XMCBenchError, match=r"predictions\.npz: damaged, or of another trial: found the digest"):
        world.run("first")
    assert world.metrics(own) == {"P@1": 0.9}
