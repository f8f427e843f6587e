"""Logs to MLflow: to the server in MLFLOW_TRACKING_URI, otherwise to a database in the store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking.tracker import ScalarTracker, settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.trial import Trial

URI = "MLFLOW_TRACKING_URI"
KEY = "xmcbench.key"  # the tag that identifies the MLflow run of a resumed trial
MAX_PARAMETERS = 100  # per call of MLflow
MAX_VALUE_LENGTH = 500  # characters of a parameter's value that every MLflow store accepts


class MLflow(ScalarTracker):
    """One experiment per dataset and one MLflow run per trial. A resumed trial continues its MLflow run."""

    name: ClassVar[str] = "mlflow"
    summary: ClassVar[str] = f"runs on the server of ${URI}, otherwise in <store>/mlflow.db"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._client: Any = None
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # send nothing to third parties
        self._mlflow = import_extra("mlflow", "mlflow", "tracking with MLflow")

    @property
    def uri(self) -> str:
        """The tracking URI."""
        return os.environ.get(URI) or f"sqlite:///{(self.store / 'mlflow.db').absolute()}"

    def begin(self, trial: Trial) -> None:
        if self._client is None:
            self.store.mkdir(parents=True, exist_ok=True)
            self._client = self._mlflow.MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment(f"xmcbench/{trial.dataset}")
        if runs := self._client.search_runs([experiment], f"tags.`{KEY}` = '{trial.key}'", max_results=1):
            run = runs[0].info.run_id
            self._client.update_run(run, status="RUNNING")
        else:
            name = f"{trial.label} seed {trial.seed}"
            run = self._client.create_run(experiment, tags={KEY: trial.key}, run_name=name).info.run_id
            param = self._mlflow.entities.Param
            params = [param(name, value[:MAX_VALUE_LENGTH]) for name, value in settings(trial).items()]
            for start in range(0, len(params), MAX_PARAMETERS):
                self._client.log_batch(run, params=params[start : start + MAX_PARAMETERS])
        self._runs[trial.key] = run

    def _experiment(self, name: str) -> str:
        if (experiment := self._client.get_experiment_by_name(name)) is not None:
            return str(experiment.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=str((self.store / "mlflow").absolute())))

    def _write(self, run: str, values: dict[str, float], step: int) -> None:
        metric, milliseconds = self._mlflow.entities.Metric, int(time.time() * 1000)
        named = ((name.replace("@", "_at_"), float(value)) for name, value in values.items())
        self._client.log_batch(run, metrics=[metric(*pair, milliseconds, step) for pair in named])

    def _end(self, run: str, record: Record, metrics: dict[str, float], step: int) -> None:
        self._write(run, metrics, step)
        self._client.set_tag(run, "xmcbench.status", str(record.status))
        self._client.set_tag(run, "xmcbench.suite.suite", record.suite)
        self._client.set_terminated(run, "FINISHED" if record.status in (Status.OK, Status.SKIPPED) else "FAILED")

    def close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run, "KILLED")
