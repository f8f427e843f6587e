"""Logs to TensorBoard: `tensorboard --logdir results/tensorboard` shows the event files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xmcbench.errors import import_extra
from xmcbench.tracking.tracker import Scalars, ScalarTracker, of_record, settings

if TYPE_CHECKING:
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
        self._writers: dict[str, Any] = {}

    def begin(self, trial: Trial) -> None:
        writer = import_extra("torch.utils.tensorboard", "tensorboard", "tracking with TensorBoard").SummaryWriter
        self._writers[trial.key] = writer(str(self.directory(trial)), flush_secs=FLUSH_SECONDS)

    def directory(self, trial: Trial) -> Path:
        """The folder of a trial's event files. TensorBoard shows its path below `tensorboard/` as the run's name."""
        label = re.sub(r"[^\w.=,+-]+", "_", trial.label)
        return self.store / "tensorboard" / trial.dataset / f"{label}-seed{trial.seed}-{trial.key[:8]}"

    def end(self, trial: Trial, record: Record) -> None:
        scalars, writer = of_record(record), self._writers.pop(trial.key)
        writer.add_text("record", f"```json\n{record.model_dump_json(indent=1)}\n```", scalars.step)
        hyperparameters = {**settings(trial), "status": str(record.status)}
        # This call also writes the metrics as ordinary scalars.
        writer.add_hparams(hyperparameters, scalars.values, run_name=".", global_step=scalars.step)
        writer.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _write(self, trial: Trial, scalars: Scalars) -> None:
        for name, value in scalars.values.items():
            self._writers[trial.key].add_scalar(name, value, scalars.step)
