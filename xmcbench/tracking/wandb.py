"""Logs to Weights & Biases: to its server where the user is logged in, otherwise to files in the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking.tracker import ScalarTracker, settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.trial import Trial

STEPS = "steps"  # the horizontal axis: wandb's own step may not go back, but a resumed trial does
SECONDS = 20  # to begin or to finish a run; without a limit an unreachable server holds the process for days
INTERRUPTED = 255  # the exit code that wandb itself gives to a run that the user interrupts


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
