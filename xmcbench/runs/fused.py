"""The model of a fused result: the models of its parts, and the rule with its fitted numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.fusion import Fusion, restore_fusion
from xmcbench.trial.method import Method, MethodInfo
from xmcbench.trial.predictions import STORED, Predictions
from xmcbench.trial.run import Run

RULE, ARRAYS = "fusion.json", "fusion.npz"  # in the folder of the model


class FusedModel(Method):
    """Asks each part for at least as many labels as a trial stores, and fuses what they list."""

    name = "fused"
    info = MethodInfo(summary="the rankings of finished trials as one")

    fusion: Fusion
    num_labels: int

    def __init__(self, parts: Sequence[Method]) -> None:
        super().__init__(Method.Config())
        self.parts = parts

    def fit(self, train: TrainingData, run: Run) -> None:  # noqa: ARG002
        raise XMCBenchError("finished trials are fused, not trained: the method `fuse` trains its parts")

    def predict(self, texts: Texts, k: int) -> Predictions:
        listed = min(self.num_labels, max(k, STORED))
        return self.fusion.fuse([part.predict(texts, listed) for part in self.parts], k)

    @property
    def inner_methods(self) -> Sequence[Method]:
        return self.parts

    def save(self, directory: Path) -> None:
        """Write the rule alone: the models of the parts stay in their trials' folders."""
        (directory / RULE).write_text(json.dumps({"rule": self.fusion.name, "labels": self.num_labels}))
        np.savez(directory / ARRAYS, **self.fusion.arrays())  # type: ignore[arg-type]

    def load(self, directory: Path) -> None:
        facts = json.loads((directory / RULE).read_bytes())
        self.num_labels = facts["labels"]
        with np.load(directory / ARRAYS, allow_pickle=False) as arrays:
            self.fusion = restore_fusion(facts["rule"], dict(arrays))
