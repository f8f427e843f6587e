"""Logs to TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import os
import re
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking import Point, Tracker, TrialProgress
from xmcbench.trial.record import Record, Status
from xmcbench.trial.trial import Trial, flatten

SPENT = ("encoder_tokens", "device_seconds")
URI = "MLFLOW_TRACKING_URI"
KEY = "xmcbench.key"  # the tag that identifies the MLflow run of a resumed trial
MAX_PARAMETERS = 100  # per call of MLflow
MAX_VALUE_LENGTH = 500  # characters of a parameter's value that every MLflow store accepts
STEPS = "steps"  # the horizontal axis: wandb's own step may not go back, but a resumed trial does
SECONDS = 20  # to begin or to finish a run of wandb; without a limit an unreachable server holds the process for days
INTERRUPTED = 255  # the exit code that wandb itself gives to a run that the user interrupts


class ScalarTracker(Tracker):
    """Writes values as they come: `train/loss`, `select/P@1`, `test/P@1`, `spent/encoder_tokens`."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._runs: dict[str, Any] = {}  # the tool's own, by key of the trial

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        spent = progress.spent
        values = {f"{progress.stage}/{name}": value for name, value in progress.metrics.items() if name != "step"}
        values |= {f"spent/{name}": float(spent[name]) for name in SPENT if name in spent}
        self._write(self._runs[trial.key], values, int(spent.get("steps", 0)))

    def evaluation(self, trial: Trial, point: Point) -> None:
        values = {f"select/{name}": value for name, value in point.metrics.items() if "@" in name}
        self._write(self._runs[trial.key], values, point.steps or 0)

    def end(self, trial: Trial, record: Record) -> None:
        metrics = {f"test/{name}": value for name, value in record.metrics.items()}
        self._end(self._runs.pop(trial.key), record, metrics, int(record.spent.get("steps", 0)))

    @abstractmethod
    def _write(self, run: Any, values: dict[str, float], step: int) -> None:
        """Write values after so many steps."""

    @abstractmethod
    def _end(self, run: Any, record: Record, metrics: dict[str, float], step: int) -> None:
        """Write the outcome: metrics on the test split, after so many steps."""


def settings(trial: Trial) -> dict[str, str]:
    """Everything that determines the trial's result, as text by dotted name."""
    return {name: str(value) for name, value in flatten(trial.model_dump(mode="json", exclude={"label"}))}


class TensorBoard(ScalarTracker):
    """One folder of event files per trial, below `tensorboard/` in the store. The horizontal axis is training steps."""

    name: ClassVar[str] = "tensorboard"
    summary: ClassVar[str] = "event files under <store>/tensorboard"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        import_extra("tensorboard", "tensorboard", "tracking with TensorBoard")

    def begin(self, trial: Trial) -> None:
        writer = import_extra("torch.utils.tensorboard", "tensorboard", "tracking with TensorBoard").SummaryWriter
        self._runs[trial.key] = writer(str(self.directory(trial)), flush_secs=10)

    def directory(self, trial: Trial) -> Path:
        """The folder of a trial's event files. TensorBoard shows its path below `tensorboard/` as the run's name."""
        label = re.sub(r"[^\w.=,+-]+", "_", trial.label)
        return self.store / "tensorboard" / trial.dataset / f"{label}-seed{trial.seed}-{trial.key[:8]}"

    def _write(self, run: Any, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            run.add_scalar(name, value, step)

    def _end(self, run: Any, record: Record, metrics: dict[str, float], step: int) -> None:
        run.add_text("record", f"```json\n{record.model_dump_json(indent=1)}\n```", step)
        hyperparameters = {**settings(record.trial), "status": str(record.status)}
        # This call also writes the metrics as ordinary scalars.
        run.add_hparams(hyperparameters, metrics, run_name=".", global_step=step)
        run.close()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()


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


class Wandb(ScalarTracker):
    """One wandb run per trial, grouped by dataset. The run's id is the trial's key, so a resumed trial continues it."""

    name: ClassVar[str] = "wandb"
    summary: ClassVar[str] = "runs on the wandb server after `wandb login`, otherwise files in <store>/wandb"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # send nothing to third parties
        self._wandb = import_extra("wandb", "wandb", "tracking with wandb")

    def begin(self, trial: Trial) -> None:
        self.store.mkdir(parents=True, exist_ok=True)
        run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "xmcbench"),
            group=trial.dataset,
            name=f"{trial.label} seed {trial.seed}",
            id=trial.key,
            dir=str(self.store),
            config=settings(trial),
            mode=self._mode(),
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(
                console="off", disable_code=True, disable_git=True, init_timeout=SECONDS, finish_timeout=SECONDS
            ),
        )
        run.define_metric("*", step_metric=STEPS)
        self._runs[trial.key] = run

    def _write(self, run: Any, values: dict[str, float], step: int) -> None:
        if values:
            run.log({**values, STEPS: step})

    def _end(self, run: Any, record: Record, metrics: dict[str, float], step: int) -> None:
        self._write(run, metrics, step)
        run.summary.update({"status": str(record.status), "suite": record.suite})
        run.finish(exit_code=0 if record.status in (Status.OK, Status.SKIPPED) else 1)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish(exit_code=INTERRUPTED)
        self._wandb.teardown()  # ends wandb's background process

    def _mode(self) -> str:
        """Offline where the user is not logged in: wandb would ask for a key and wait."""
        logged_in = "WANDB_MODE" in os.environ or self._wandb.login(prompt=False, verify=False)
        return os.environ.get("WANDB_MODE", "online") if logged_in else "offline"
