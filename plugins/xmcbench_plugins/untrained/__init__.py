"""The pretrained encoder without training: the baseline that every trained dual encoder has to beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import DualEncoder, MethodInfo, Run, data, hookimpl


class Untrained(DualEncoder):
    """Ranks labels by the inner product of pretrained embeddings; training queries are not used."""

    name = "untrained"
    info = MethodInfo(summary="the pretrained encoder without training", needs=("label texts",))

    def fit(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("index"):
            self.prepare(train, run)
            self.index_LD = self.all_label_vectors(self.labels)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(Untrained)
