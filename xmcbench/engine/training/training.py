"""One training from its start, or its last checkpoint, to the end of its budget."""

from __future__ import annotations

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.loop import Loop, Metrics, Position
from xmcbench.engine.training.resume import BestWeights, Checkpoints
from xmcbench.engine.training.steps import TrainingSteps, check_memory, note_memory
from xmcbench.trial.run import Progress


class Training:
    """Trains the assembled `method` on `train` within the budget of its run."""

    def __init__(self, method: TrainedMethod, train: TrainingData) -> None:
        self.run, self.workers, position = method.run, method.shard.workers, Position()
        self.steps = TrainingSteps(method, train)
        self.best = BestWeights(method, self.steps.optimizers)
        settings = position, self._after_step, method.skips_refreshes, self.best.why_ended
        self.loop = Loop(self.steps, method.charging, self.run.budget, *settings)
        self.checkpoints = Checkpoints(self.steps, position, self.best)

    def train(self) -> None:
        """Spend the budget, or what of it the held-out queries ask for; leave the method with the chosen weights."""
        if not self.checkpoints.restore():
            self.steps.begin()
        self.loop.run()
        if self.loop.spent() < 1:
            self.run.log.ended = self.best.why_ended()
            if not self.run.log.ended:  # a pass over the data did not fit: these are the weights of the whole budget
                self.best.evaluate_if_due(1.0)
        note_memory(self.run.ledger, self.workers)
        self.checkpoints.save()  # a kill while it indexes or predicts must not cost the last minute of training
        self.best.restore()

    def _after_step(self, metrics: Metrics) -> None:
        run, ledger = self.run, self.run.ledger
        fraction = min(1.0, ledger.fraction(run.budget))
        run.report(Progress("train", fraction, {**metrics, "step": ledger.steps}))
        check_memory(ledger, run.budget, self.workers)
        if self.best.evaluate_if_due(self.loop.spent()):
            self.checkpoints.save()
        self.checkpoints.save_if_due()
