"""Dual encoders that the engine trains."""

from __future__ import annotations

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.training.contract import TrainedMethod
from xmcbench.engine.training.trainer import Trainer
from xmcbench.trial.run import Run


class EmbeddingMethod(TrainedMethod):
    """A dual encoder trained on batches of a sampler by a loss over embeddings.

    A method supplies `sampler` and `loss`. One that has modules over the embeddings (projection heads, a classifier
    table) makes them in `build_modules`, and says in `query_vectors` and `label_vectors` what it multiplies.

    With several workers `loss` sees all queries of the batch and the labels that its worker holds, and returns its part
    of the loss; the losses of `xmcbench.losses` do so by themselves.
    """

    def fit(self, train: TrainingData, run: Run) -> None:
        with run.ledger.stage("prepare"):
            train = self.training_data(train)
            queries, labels = self.prepare(train, run)
            trainer = Trainer(self, train, queries, labels, run)
        trainer.train()
        with run.ledger.stage("index"):
            self.index(labels)
