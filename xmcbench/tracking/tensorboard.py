"""Logs to TensorBoard: `tensorboard --logdir results/tensorboard` shows the event files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking.tracker import ScalarTracker, settings
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

FLUSH_SECONDS = 10


class TensorBoard(ScalarTracker):
    """One folder of event files per trial, below `tensorboard/` in the store. The horizontal axis is training steps."""

    name: ClassVar[str] = "tensorboard"
    summary: ClassVar[str] = "event files under <store>/tensorboard"

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        import_extra("tensorboard", "tensorboard", "tracking with TensorBoard")

    def begin(self, trial: Trial) -> None:
        writer = import_extra("torch.utils.tensorboard", "tensorboard", "tracking with TensorBoard").SummaryWriter
        self._runs[trial.key] = writer(str(self.directory(trial)), flush_secs=FLUSH_SECONDS)

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
