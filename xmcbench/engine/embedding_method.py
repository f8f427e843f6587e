"""Dual encoders that the engine trains."""

from __future__ import annotations

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.trial.run import Progress, Run


class EmbeddingMethod(TrainedMethod):
    """A dual encoder trained on batches of a sampler by a loss over embeddings.

    A method supplies `loss`, and a `sampler` unless the default one suits it. One that has modules over the embeddings
    (projection heads, a classifier table) makes them in `build_modules`, and computes in `query_vectors` and
    `label_vectors` what is scored.
    """

    def fit(self, train: TrainingData, run: Run) -> None:
        from xmcbench.engine.training.training import Training

        with run.ledger.stage("prepare"):
            train = self.training_data(train)
            self.prepare(train, run)
            training = Training(self, train)
        training.train()
        run.report(Progress("index", 0.0))
        with run.ledger.stage("index"):
            self.index(self.labels)
