from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fakes.bench import Bench
from tracking.scripted import CURVE, play

from xmcbench.plugins.registry import Registry
from xmcbench_plugins.trackers.tools import KEY, URI, MLflow, settings

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all its tables, which take MLflow some seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, bench: Bench, database: Path) -> None:
    monkeypatch.delenv(URI, raising=False)
    monkeypatch.chdir(bench.root)
    bench.store.root.mkdir()
    shutil.copy(database, bench.store.root)


def test_runs_hold_settings_figures_and_outcome_of_the_trials(bench: Bench) -> None:
    tracker = MLflow(bench.store.root)
    records = play(bench, [tracker])
    client = mlflow.MlflowClient(tracking_uri=tracker.uri)
    experiment = client.get_experiment_by_name("xmcbench/fake-20")
    runs = {found.data.tags[KEY]: found for found in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {record.key for record in records.values()}
    ok, crash = (runs[records[label].key] for label in ("ok", "crash"))
    assert (ok.info.status, crash.info.status) == ("FINISHED", "FAILED")
    assert (ok.info.run_name, crash.data.tags["xmcbench.status"]) == ("ok seed 0", "error")
    assert ok.data.params == settings(records["ok"].trial)
    for name, value in records["ok"].metrics.items():
        assert ok.data.metrics[f"test/{name.replace('@', '_at_')}"] == value
    assert ok.data.metrics["train/loss"] == 0.5
    assert ok.data.metrics["select/P_at_1"] == CURVE["P@1"]
    (point,) = client.get_metric_history(ok.info.run_id, "test/P_at_1")
    assert point.step == 5


def test_a_trial_that_goes_on_goes_on_in_its_run_and_one_that_does_not_end_is_marked(bench: Bench) -> None:
    (step,) = bench.runner(bench.suite(["fake-ok"])).plan()
    for _ in range(2):
        tracker = MLflow(bench.store.root)
        tracker.begin(step.trial)
        tracker.close()
    client = mlflow.MlflowClient(tracking_uri=tracker.uri)
    experiment = client.get_experiment_by_name("xmcbench/fake-20")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"


def test_it_is_found_by_name_and_the_server_is_the_users(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Registry().thing("tracker", "mlflow") is MLflow
    monkeypatch.setenv(URI, "http://localhost:1")
    assert MLflow(bench.store.root).uri == "http://localhost:1"
