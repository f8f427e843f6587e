"""Checkpoints of a training: written every minute and after each evaluation, read when a killed trial is resumed."""

from __future__ import annotations

import time

from xmcbench.engine import checkpoint
from xmcbench.engine.training import selection
from xmcbench.engine.training.loop import Position
from xmcbench.engine.training.selection import BestWeights
from xmcbench.engine.training.steps import TrainingSteps
from xmcbench.engine.workers import from_worker_0
from xmcbench.files.manifest import DamagedFolder

SECONDS = 60.0  # between checkpoints: a kill costs at most that much training, and the step in flight
QUICK = 3.0  # seconds: where writing takes n times as long, n times as many seconds pass between checkpoints
NOTED = ("epoch", "index", "best", "best_step", "ledger", "curve")  # keys of a checkpoint's note
NUM_STORED = 2  # checkpoints: the newest, and the one before


class Checkpoints:
    """Writes and reads what training needs to continue as if it had not stopped."""

    def __init__(self, steps: TrainingSteps, position: Position, best: BestWeights) -> None:
        self.steps, self.position, self.best = steps, position, best
        self.run, self.workers = steps.method.run, steps.workers
        self._stored_step = -1
        self._stored_at = time.monotonic()
        self._write_seconds = 0.0  # of the last checkpoint

    def save_if_due(self) -> None:
        """Write a checkpoint when the last one is `SECONDS` old, or older where writing is slow: 5 % of the time."""
        seconds = SECONDS * max(1.0, self._write_seconds / QUICK)
        if from_worker_0(time.monotonic() - self._stored_at - seconds, self.workers) > 0:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the current step, unless there is one."""
        if self._stored_step != self.run.ledger.steps:
            started = time.monotonic()
            with self.run.ledger.uncharged():
                self._write()
            self._write_seconds = time.monotonic() - started
            self._stored_step = self.run.ledger.steps
        self._stored_at = time.monotonic()

    def _write(self) -> None:
        root, exchange, steps = self.run.checkpoint, self.run.exchange, self.steps
        groups = steps.optimizers.tensors()
        if self.workers.rank == 0:
            groups |= {**steps.method.tensors(), "sampler": steps.sampler.state()}
        note = {**vars(self.position), "best": self.best.metric, "best_step": self.best.step, **self.run.log.state()}
        place = checkpoint.step_directory(root, self.run.ledger.steps)
        checkpoint.save(place, groups, note, self.workers, shared=exchange is None)
        if self.workers.rank == 0 or exchange:
            checkpoint.prune(root, NUM_STORED)
            checkpoint.prune(root / selection.FOLDER, NUM_STORED)  # those that the checkpoints refer to
        if exchange:
            exchange.upload()

    def restore(self) -> bool:
        """Continue from the newest intact checkpoint whose best weights are intact; False if there is none."""
        for place, saved, note in checkpoint.intact(self.run.checkpoint, NOTED):
            self.best.metric, self.best.step = note["best"], note["best_step"]
            try:
                self.best.check()
            except DamagedFolder as damage:
                checkpoint.discard(place, damage)
                continue
            self.steps.method.load_tensors(saved[0])
            self.steps.optimizers.load(saved)
            self.steps.sampler.load_state(saved[0].get("sampler", {}))
            self.position.epoch, self.position.index = note["epoch"], note["index"]
            self.run.log.restore(note)
            self._stored_step = self.run.ledger.steps
            return True
        self.best.metric, self.best.step = None, 0
        return False
