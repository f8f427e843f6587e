"""Evaluation on held-out training queries along the budget; the best weights are kept for prediction."""

from __future__ import annotations

from pathlib import Path

from xmcbench.engine import checkpoint
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.update import Update
from xmcbench.trial.run import HeldOut, Progress

FOLDER = "best"  # beside the checkpoints


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
            metrics = self._metrics(held_out)
        run.log.add_point(fraction, metrics)
        if self.metric is None or metrics[held_out.metric] > self.metric:
            self.metric, self.step = metrics[held_out.metric], run.ledger.steps
            groups = {**self.method.tensors(), **self.optimizers.table_tensors()}
            checkpoint.save(self._directory, groups, {}, self.method.shard.workers, shared=run.exchange is None)
        return True

    def why_ended(self) -> str:
        """That the metric has not risen for as many evaluations as patience allows; empty while training goes on."""
        held_out, curve = self.method.run.held_out, self.method.run.log.curve
        if held_out is None or held_out.patience is None:
            return ""
        values = [point[held_out.metric] for point in curve]
        flat = bool(values) and len(values) - 1 - values.index(max(values)) >= held_out.patience
        return f"{held_out.metric} had not risen for {held_out.patience} evaluations" if flat else ""

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

    def _metrics(self, held_out: HeldOut) -> dict[str, float]:
        self.method.index(self.method.labels)
        return held_out.evaluate(self.method.predict, len(self.method.index_LD))

    @property
    def _directory(self) -> Path:
        return checkpoint.step_directory(self.method.run.checkpoint / FOLDER, self.step)
