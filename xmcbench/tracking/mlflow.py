"""Runs in MLflow: on the server that MLFLOW_TRACKING_URI names, otherwise in a database in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xmcbench.plugins.extras import import_extra
from xmcbench.tracking.scalars import Scalars, of_evaluation, of_progress, of_record, settings
from xmcbench.tracking.tracker import Tracker
from xmcbench.trial.record import Status

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress
    from xmcbench.trial.trial import Trial

URI = "MLFLOW_TRACKING_URI"
KEY = "xmcbench.key"  # the tag by which a resumed trial finds its run
AT_ONCE = 100  # parameters that MLflow takes in one call
LONGEST = 500  # characters of a parameter's value that every MLflow store takes


class MLflow(Tracker):
    """An experiment a dataset, a run a trial. A resumed trial goes on in its run."""

    name: ClassVar[str] = "mlflow"
    summary: ClassVar[str] = f"runs on the server of ${URI}, otherwise in <store>/mlflow.db"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._client: Any = None
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is tracked is nobody else's affair
        self._mlflow = import_extra("mlflow", "mlflow", "tracking with MLflow")
        self._runs: dict[str, str] = {}

    @property
    def uri(self) -> str:
        """Where runs go."""
        return os.environ.get(URI) or f"sqlite:///{(self.store / 'mlflow.db').absolute()}"

    def begin(self, trial: Trial) -> None:
        if self._client is None:
            self.store.mkdir(parents=True, exist_ok=True)
            self._client = self._mlflow.MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment(trial.dataset)
        known = self._client.search_runs([experiment], f"tags.`{KEY}` = '{trial.key}'", max_results=1)
        if known:
            run = known[0].info.run_id
            self._client.update_run(run, status="RUNNING")
        else:
            name = f"{trial.label} seed {trial.seed}"
            run = self._client.create_run(experiment, tags={KEY: trial.key}, run_name=name).info.run_id
            self._describe(run, trial)
        self._runs[trial.key] = run

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        self._write(trial, of_progress(progress))

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        self._write(trial, of_evaluation(point))

    def end(self, trial: Trial, record: Record) -> None:
        self._write(trial, of_record(record))
        run = self._runs.pop(trial.key)
        self._client.set_tag(run, "xmcbench.status", str(record.status))
        self._client.set_tag(run, "xmcbench.suite.suite", record.suite)
        self._client.set_terminated(run, "FINISHED" if record.status in (Status.OK, Status.SKIPPED) else "FAILED")

    def close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run, "KILLED")

    def _experiment(self, dataset: str) -> str:
        name = f"xmcbench/{dataset}"
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=str((self.store / "mlflow").absolute())))

    def _describe(self, run: str, trial: Trial) -> None:
        param = self._mlflow.entities.Param
        params = [param(name, value[:LONGEST]) for name, value in settings(trial).items()]
        for start in range(0, len(params), AT_ONCE):
            self._client.log_batch(run, params=params[start : start + AT_ONCE])

    def _write(self, trial: Trial, scalars: Scalars) -> None:
        metric, when = self._mlflow.entities.Metric, int(time.time() * 1000)
        found = scalars.figures.items()
        metrics = [metric(name.replace("@", "_at_"), float(value), when, scalars.step) for name, value in found]
        self._client.log_batch(self._runs[trial.key], metrics=metrics)
