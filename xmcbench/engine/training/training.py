"""One training from its start, or its last checkpoint, to the end of its budget, and what it keeps on disk.

These are the best weights by held-out queries, evaluated along the budget; and checkpoints, written every minute and
after each evaluation, read when a killed trial is resumed.
"""

from __future__ import annotations

import time
from pathlib import Path

from xmcbench.data.dataset import TrainingData
from xmcbench.engine import checkpoint
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.steps import Metrics, TrainingSteps, check_memory, note_memory
from xmcbench.engine.training.update import Update
from xmcbench.engine.workers import from_worker_0
from xmcbench.files.manifest import DamagedFolder
from xmcbench.trial.run import Progress, why_flat

FOLDER = "best"  # beside the checkpoints
SECONDS = 60.0  # between checkpoints: a kill costs at most that much training, and the step in flight
QUICK = 3.0  # seconds: where writing takes n times as long, n times as many seconds pass between checkpoints
NOTED = ("epoch", "index", "best", "best_step", "ledger", "curve")  # keys of a checkpoint's note
NUM_STORED = 2  # checkpoints: the newest, and the one before


class BestWeights:
    """Evaluates `method` where an evaluation is due and stores its weights when they are the best so far.

    Without held-out queries nothing is evaluated, and the last weights stay.
    """

    def __init__(self, method: TrainedMethod, optimizers: Update) -> None:
        self.method, self.optimizers = method, optimizers
        self.metric: float | None = None  # of the best weights
        self.step = 0  # after which they were stored

    def evaluate_if_due(self, fraction: float) -> bool:
        """Evaluate after `fraction` of the budget if that is due, at no charge; whether it was."""
        run, held_out = self.method.run, self.method.run.held_out
        if held_out is None or fraction < (len(run.log.curve) + 1) / held_out.evaluations:
            return False
        run.report(Progress("select", min(1.0, fraction)))
        with run.ledger.uncharged():
            self.method.index(self.method.labels)
            metrics = held_out.evaluate(self.method.predict, len(self.method.index_LD))
        run.log.add_point(fraction, metrics)
        if self.metric is None or metrics[held_out.metric] > self.metric:
            self.metric, self.step = metrics[held_out.metric], run.ledger.steps
            groups = {**self.method.tensors(), **self.optimizers.table_tensors()}
            checkpoint.save(self._directory, groups, {}, self.method.shard.workers, shared=run.exchange is None)
        return True

    def why_ended(self) -> str:
        """That the metric has not risen for as many evaluations as patience allows; empty while training goes on."""
        held_out, curve = self.method.run.held_out, self.method.run.log.curve
        return why_flat(curve, held_out.metric, held_out.patience) if held_out else ""

    def check(self) -> None:
        """Raise `DamagedFolder` where the best weights that a checkpoint refers to are not as they were written."""
        if self.metric is not None:
            checkpoint.check(self._directory)

    def restore(self) -> None:
        """Load the best weights, where there was an evaluation."""
        if self.metric is None:
            return
        if exchange := self.method.run.exchange:
            self.method.shard.workers.barrier()  # all have uploaded
            exchange.download()
        saved, _ = checkpoint.load(self._directory)
        self.method.load_tensors(saved[0])
        self.optimizers.load_tables(saved)

    @property
    def _directory(self) -> Path:
        return checkpoint.step_directory(self.method.run.checkpoint / FOLDER, self.step)


class Checkpoints:
    """Writes and reads what training needs to continue as if it had not stopped."""

    def __init__(self, steps: TrainingSteps, best: BestWeights) -> None:
        self.steps, self.best = steps, best
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
        best = {"best": self.best.metric, "best_step": self.best.step}
        note = {"epoch": steps.epoch, "index": steps.index, **best, **self.run.log.state()}
        place = checkpoint.step_directory(root, self.run.ledger.steps)
        checkpoint.save(place, groups, note, self.workers, shared=exchange is None)
        if self.workers.rank == 0 or exchange:
            checkpoint.prune(root, NUM_STORED)
            checkpoint.prune(root / FOLDER, NUM_STORED)  # those that the checkpoints refer to
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
            self.steps.epoch, self.steps.index = note["epoch"], note["index"]
            self.run.log.restore(note)
            self._stored_step = self.run.ledger.steps
            return True
        self.best.metric, self.best.step = None, 0
        return False


class Training:
    """Trains the assembled `method` on `train` within the budget of its run."""

    def __init__(self, method: TrainedMethod, train: TrainingData) -> None:
        self.method, self.run = method, method.run
        self.steps = TrainingSteps(method, train)
        self.best = BestWeights(method, self.steps.optimizers)
        self.checkpoints = Checkpoints(self.steps, self.best)

    def train(self) -> None:
        """Spend the budget, or what of it the held-out queries ask for; leave the method with the chosen weights."""
        if not self.checkpoints.restore():
            self.steps.begin()
        # Only a step may exceed the budget.
        while (before := self.steps.spent()) < 1 and not self.best.why_ended():
            if self.steps.index == 0 and not self._refreshed():
                break
            self._after_step(self.steps.step(before))
        if self.steps.spent() < 1:
            self.run.log.ended = self.best.why_ended()
            if not self.run.log.ended:  # a pass over the data did not fit: these are the weights of the whole budget
                self.best.evaluate_if_due(1.0)
        note_memory(self.run.ledger, self.steps.workers)
        self.checkpoints.save()  # a kill while it indexes or predicts must not cost the last minute of training
        self.best.restore()

    def _refreshed(self) -> bool:
        """Refresh the sampler; whether training continues."""
        goes_on = self.method.charging.refreshed(self.steps.refresh, self.method.skips_refreshes)
        return goes_on and (self.steps.spent() < 1 or not self.run.ledger.steps)

    def _after_step(self, metrics: Metrics) -> None:
        run, ledger = self.run, self.run.ledger
        fraction = min(1.0, ledger.fraction(run.budget))
        run.report(Progress("train", fraction, {**metrics, "step": ledger.steps}))
        check_memory(ledger, run.budget, self.steps.workers)
        if self.best.evaluate_if_due(self.steps.spent()):
            self.checkpoints.save()
        self.checkpoints.save_if_due()
