"""Event files for TensorBoard: `tensorboard --logdir results/tensorboard` shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xmcbench.plugins.extras import import_extra
from xmcbench.tracking.scalars import Scalars, of_evaluation, of_progress, of_record, settings
from xmcbench.tracking.tracker import Tracker

if TYPE_CHECKING:
    from xmcbench.trial.record import Record
    from xmcbench.trial.run import TrialProgress
    from xmcbench.trial.trial import Trial

FLUSH_SECONDS = 10


class TensorBoard(Tracker):
    """A folder of event files a trial, below `tensorboard/` of the store. The axis is the number of steps."""

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
        """Where the trial's events lie; TensorBoard shows the path below `tensorboard/` as its name."""
        label = re.sub(r"[^\w.=,+-]+", "_", trial.label)
        return self.store / "tensorboard" / trial.dataset / f"{label}-seed{trial.seed}-{trial.key[:8]}"

    def step(self, trial: Trial, progress: TrialProgress) -> None:
        self._write(trial, of_progress(progress))

    def evaluation(self, trial: Trial, point: Mapping[str, float]) -> None:
        self._write(trial, of_evaluation(point))

    def end(self, trial: Trial, record: Record) -> None:
        found, writer = of_record(record), self._writers.pop(trial.key)
        writer.add_text("record", f"```json\n{record.model_dump_json(indent=1)}\n```", found.step)
        described = {**settings(trial), "status": str(record.status)}
        # This writes the figures as ordinary scalars too.
        writer.add_hparams(described, found.figures, run_name=".", global_step=found.step)
        writer.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _write(self, trial: Trial, scalars: Scalars) -> None:
        for name, value in scalars.figures.items():
            self._writers[trial.key].add_scalar(name, value, scalars.step)
