"""The model of a finished trial, and the labels that it ranks for new texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmcbench.errors import XMCBenchError, shown

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.data import Dataset, Texts
    from xmcbench.evaluation.calibration import Calibration, Cut
    from xmcbench.trial.budget import Budget
    from xmcbench.trial.method import Method
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store
    from xmcbench_plugins.serving.words import Vocabulary


@dataclass(frozen=True)
class Trained:
    """The model of a trial, and what its dataset tells of the labels that it ranks."""

    record: Record
    method: Method
    dataset: Dataset
    labels: Texts  # texts, by label id
    keys: Sequence[str]  # such as URIs, by label id; empty where the dataset has none
    language: str  # of the label texts; empty where the dataset does not say it
    calibration: Calibration | None  # of the scores; None where the trial held out no queries

    @cached_property
    def _known(self) -> Vocabulary:
        from xmcbench_plugins.serving.words import Vocabulary

        return Vocabulary(chain(self.dataset.train.texts, self.labels))

    def knows(self, text: str) -> bool:
        """Whether the text has a word of the training queries or of the label texts."""
        return self._known.knows(text)

    def with_labels(self, added: Sequence[str], where: str) -> Trained:
        """The same, ranking `added` too; they have no keys.

        Raises XMCBenchError where the method cannot, for a label without text, and for one that is there already,
        whatever its blanks.
        """
        if not added:
            raise XMCBenchError(f"{where}: found no label, expected one per line")
        first = {_one_blank(text): f"the dataset has it as label {label}" for label, text in enumerate(self.labels)}
        for number, text in enumerate(map(_one_blank, added), start=1):
            if not text:
                raise XMCBenchError(f"{where}:{number}: found no text, expected a label")
            if text in first:
                raise XMCBenchError(f"{where}:{number}: found {shown(text)}, expected a new label: {first[text]}")
            first[text] = f"it is in line {number}"
        self.method.add_labels(added)
        return replace(self, labels=[*self.labels, *added])

    def cut(self, threshold: str) -> Cut:
        """The labels that are shown from a probability in 0..1 on, or with `auto`. Raises XMCBenchError."""
        from xmcbench.evaluation.calibration import Cut

        if self.calibration is None:
            raise XMCBenchError(
                f"--threshold: the scores of {self.record.trial.label} are no probabilities: expected a trial that "
                "held out training queries (`selection` in its suite)"
            )
        if threshold == "auto":
            return self.calibration.cut
        try:
            least = float(threshold)
        except ValueError:
            least = -1.0
        if not 0 <= least <= 1:
            raise XMCBenchError(f"--threshold: found {threshold!r}, expected auto or a number from 0 to 1")
        return Cut(least)

    def _ask(self, config: Any, texts: Texts, budget: Budget | None) -> np.ndarray:
        """Ask a service for the embeddings of texts, and say before what that costs."""
        from xmcbench.plugins.registry import registry
        from xmcbench.runs.terminal import echo
        from xmcbench.teachers.costs import cost_of_texts
        from xmcbench.trial.embedder import ask_directly

        teacher = registry().thing("teacher", config.name)(config)
        try:
            echo(f"{self.record.trial.label} {cost_of_texts(teacher, list(texts))}", err=True)
        finally:
            teacher.close()
        return ask_directly(config, texts, budget)

    def rank(self, texts: Sequence[str], k: int, cut: Cut | None = None) -> list[list[dict[str, Any]]]:
        """The best `k` labels of each text, best first: id, text, score, and key and probability where it has them.

        Labels that `cut` does not show are left out. A text without a known word has none, and a method may
        return fewer than `k`; a score of -inf is no prediction.
        """
        import numpy as np

        from xmcbench.trial.embedder import asked_through

        with asked_through(self._ask):
            found = self.method.predict(texts, min(k, len(self.labels)))
        shown = (
            (found.indices >= 0) & (found.scores > -np.inf) & np.array([self.knows(text) for text in texts])[:, None]
        )
        probabilities = None if self.calibration is None else self.calibration.probability(found.scores)
        if probabilities is not None and cut is not None:
            shown &= cut.shows(probabilities, np.arange(found.k))
        return [
            [
                {
                    "id": int(label),
                    **({"key": self.keys[label]} if label < len(self.keys) else {}),
                    "label": self.labels[int(label)],
                    "score": float(found.scores[row, place]),
                    **({} if probabilities is None else {"probability": float(probabilities[row, place])}),
                }
                for place, label in enumerate(found.indices[row])
                if shown[row, place]
            ]
            for row in range(len(texts))
        ]

    def why_none(self, text: str, cut: Cut | None) -> str:
        """Why a text has no label."""
        if not self.knows(text):
            return "no word of the text is in the training data"
        return "no label found" if cut is None else f"no label has a probability of {cut.least:.2f}"


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def trained_model(store: Store, record: Record, data: Path) -> Trained:
    """The model of a trial, with the labels of its dataset."""
    from xmcbench.data.prepared import find_source
    from xmcbench.data.source import label_keys
    from xmcbench.runs.saved_model import load_calibration, load_saved_model

    source = find_source(record.trial.dataset, data)
    dataset = same_dataset(record, data)
    method = load_saved_model(store, record)
    keys, calibration = label_keys(source, data), load_calibration(store, record)
    return Trained(record, method, dataset, dataset.label_texts, keys, source.draft.language, calibration)


def same_dataset(record: Record, data: Path) -> Dataset:
    """The trial's dataset. Raises XMCBenchError where it is another one now."""
    from xmcbench.data import load

    trial = record.trial
    dataset = load(trial.dataset, data)
    if dataset.card.content_hash != trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {trial.dataset!r} has the content hash {dataset.card.content_hash[:12]}, "
            f"the trial ran on {trial.dataset_hash[:12]}: its labels may differ"
        )
    return dataset
