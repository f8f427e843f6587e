"""Logs to Weights & Biases: to its server where the user is logged in, otherwise to files in the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking.tracker import Scalars, ScalarTracker, of_record, settings
from xmcbench.trial.record import Status

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
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
        self._runs: dict[str, Any] = {}

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

    def end(self, trial: Trial, record: Record) -> None:
        self._write(trial, of_record(record))
        run = self._runs.pop(trial.key)
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

    def _write(self, trial: Trial, scalars: Scalars) -> None:
        if scalars.values:
            self._runs[trial.key].log({**scalars.values, STEPS: scalars.step})
