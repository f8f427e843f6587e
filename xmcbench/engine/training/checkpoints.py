"""What a training keeps on disk: the best weights by held-out queries, evaluated along the budget; and checkpoints,
written every minute and after each evaluation, read when a killed trial is resumed.
"""

from __future__ import annotations

import time
from pathlib import Path

from xmcbench.engine import checkpoint
from xmcbench.engine.dual_encoder import DualEncoder
from xmcbench.engine.sampling.sampler import Sampler
from xmcbench.engine.training.update import Update
from xmcbench.files.manifest import DamagedFolder
from xmcbench.trial.facts import is_flat
from xmcbench.trial.run import Progress

FOLDER = "best"  # beside the checkpoints
SECONDS = 60.0  # between checkpoints: a kill costs at most that much training, and the step in flight
QUICK = 3.0  # seconds: where writing takes n times as long, n times as many seconds pass between checkpoints
NOTED = ("epoch", "index", "best", "best_step", "ledger", "curve")  # keys of a checkpoint's note
NUM_STORED = 2  # checkpoints: the newest, and the one before


class Checkpoints:
    """Keeps what training needs to continue as if it had not stopped, and the weights of its best evaluation.

    Without held-out queries nothing is evaluated, and the last weights stay.
    """

    def __init__(self, method: DualEncoder, update: Update, sampler: Sampler) -> None:
        self.method, self.update, self.sampler = method, update, sampler
        self.run, self.workers = method.run, method.shard.workers
        self.best: float | None = None  # the worth of the best weights: their metric, or its negative
        self.best_step = 0  # after which they were stored
        self._stored_step = -1
        self._stored_at = time.monotonic()
        self._write_seconds = 0.0  # of the last checkpoint

    def evaluate_if_due(self, fraction: float) -> bool:
        """Evaluate after `fraction` of the budget if that is due, at no charge; whether it was."""
        run, method, held_out = self.run, self.method, self.run.held_out
        if held_out is None or fraction < (len(run.log.curve) + 1) / held_out.evaluations:
            return False
        run.report(Progress("select", min(1.0, fraction)))
        with run.ledger.uncharged():
            method.index(method.labels)
            metrics = held_out.evaluate(method.predict, len(method.index_LD))
        run.log.add_point(fraction, metrics)
        if self.best is None or held_out.worth(metrics) > self.best:
            self.best, self.best_step = held_out.worth(metrics), run.ledger.steps
            groups = {**method.tensors(), **self.update.table_tensors()}
            checkpoint.save(self._best_weights, groups, {}, self.workers, shared=run.exchange is None)
        return True

    def is_flat(self) -> bool:
        """Whether the metric has not improved for as many evaluations as the suite's patience allows."""
        held_out, curve = self.run.held_out, self.run.log.curve
        return held_out is not None and is_flat(curve, held_out.metric, held_out.patience, held_out.lower_is_better)

    def save_if_due(self, epoch: int, index: int, *, evaluated: bool) -> None:
        """Write a checkpoint after an evaluation, and when the last one is as old as the run says, or `SECONDS`.

        Where writing is slow, it is older: 5 % of the time. `epoch` and `index` are those of the next batch.
        """
        asked = self.run.checkpoint_seconds
        seconds = SECONDS * max(1.0, self._write_seconds / QUICK) if asked is None else asked
        if evaluated or self.workers.of_worker_0(time.monotonic() - self._stored_at - seconds) > 0:
            self.save(epoch, index)

    def save(self, epoch: int, index: int) -> None:
        """Write a checkpoint of the current step, unless there is one."""
        if self._stored_step != self.run.ledger.steps:
            started = time.monotonic()
            with self.run.ledger.uncharged():
                self._write(epoch, index)
            self._write_seconds = time.monotonic() - started
            self._stored_step = self.run.ledger.steps
        self._stored_at = time.monotonic()

    def _write(self, epoch: int, index: int) -> None:
        root, exchange, groups = self.run.checkpoint, self.run.exchange, self.update.tensors()
        if self.workers.rank == 0:
            groups |= {**self.method.tensors(), "sampler": self.sampler.state()}
        best = {"best": self.best, "best_step": self.best_step}
        note = {"epoch": epoch, "index": index, **best, **self.run.log.state()}
        folder = checkpoint.step_directory(root, self.run.ledger.steps)
        checkpoint.save(folder, groups, note, self.workers, shared=exchange is None)
        if self.workers.rank == 0 or exchange:
            checkpoint.prune(root, NUM_STORED)
            checkpoint.prune(root / FOLDER, NUM_STORED)  # those that the checkpoints refer to
        if exchange:
            exchange.upload()

    def restore(self) -> tuple[int, int] | None:
        """Load the newest intact checkpoint whose best weights are intact: epoch and index of the next batch.

        None where there is no such checkpoint.
        """
        for folder, saved, note in checkpoint.intact(self.run.checkpoint, NOTED):
            self.best, self.best_step = note["best"], note["best_step"]
            try:
                if self.best is not None:
                    checkpoint.check(self._best_weights)
            except DamagedFolder as damage:
                checkpoint.discard(folder, damage)
                continue
            self.method.load_tensors(saved[0])
            self.update.load(saved)
            self.sampler.load_state(saved[0].get("sampler", {}))
            self.run.log.restore(note)
            self._stored_step = self.run.ledger.steps
            return note["epoch"], note["index"]
        self.best, self.best_step = None, 0
        return None

    def restore_best(self) -> None:
        """Load the best weights, where there was an evaluation."""
        if self.best is None:
            return
        if exchange := self.run.exchange:
            self.workers.barrier()  # all have uploaded
            exchange.download()
        saved, _ = checkpoint.load(self._best_weights)
        self.method.load_tensors(saved[0])
        self.update.load_tables(saved)

    @property
    def _best_weights(self) -> Path:
        return checkpoint.step_directory(self.run.checkpoint / FOLDER, self.best_step)
