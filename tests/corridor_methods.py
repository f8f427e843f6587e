"""The trainings of `corridors.py`: for each built-in method its settings, its budget, and a deliberate mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    """What a change of the code might get wrong: settings that amount to it, or what it does to the fitted method."""

    text: str
    settings: Settings = field(default_factory=dict)
    after_fit: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Training:
    """How a method is trained, and the mistake that its corridor has to notice."""

    settings: Settings
    mistake: Mistake
    budget: dict[str, float] = field(default_factory=lambda: {"steps": 40})
    unannotated: bool = False  # the zero-shot track: no training annotation


def halved(settings: Settings) -> Mistake:
    rates = {name: value / 2 for name, value in settings.items() if name.endswith("learning_rate")}
    return Mistake("learning rate halved", rates)


def negate_counts(method: Any) -> None:
    method.counts_L = -method.counts_L


def square_labels(method: Any) -> None:
    method.matrices = {name: matrix.power(2) for name, matrix in method.matrices.items()}


DUAL: Settings = {"encoder": {"name": "small"}, "batch_size": 64, "learning_rate": 1e-3}
MINED: Settings = {"shortlist": 20, "refresh_start": 2, "refresh_every": 2}
CLUSTERED: Settings = {"cluster_size": 4, "cluster_start": 1, "cluster_every": 1, "cluster_growth": [2]}
RAW: Settings = {"name": "small", "normalize": False}
DEXML = {**DUAL, **MINED}
NGAME = {**DUAL, **CLUSTERED, "hardest": 100}
PRIME = {**DUAL, **CLUSTERED, "free_vectors": 128}
DEXA = {**NGAME, "auxiliary_vectors": 64}
UNIDEC = {**DUAL, **MINED, "encoder": RAW, "cluster_size": 4, "dimension": 64}
UNIDEC |= {"head_learning_rate": 2e-3, "classifier_learning_rate": 1e-2}
OVA = {**DUAL, "encoder": RAW, "learning_rate": 3e-4, "table": {"learning_rate": 0.3}}
LMTX = {**DUAL, "teacher": "annotated", "cycles": 2, "documents": 400, "development": 100}
PROMPTED = {**DUAL, "teacher": "annotated", "documents": 400}
PAIRS = {**DUAL, "learning_rate": 4e-3}
SPANS = {**DUAL, "pairs_per_document": 2}
TITLES = {**PAIRS, "cluster_size": 8, "cluster_every": 1}
FIRST = {"method": "dexml", **DUAL, "negatives": "in-batch"}
CROSS = {"first": FIRST, "model": "small", "max_length": 32, "learning_rate": 1e-3, "negatives": 3}
CLASSIFIER = {
    "first": FIRST,
    "share": 0.5,
    "epochs": 2,
    "batch_size": 128,
    "shortlist": 20,
    "table": {"learning_rate": 1e-2},
}

METHODS: dict[str, Training] = {
    "popular": Training({}, Mistake("sign of the counts", after_fit=negate_counts)),
    "tfidf-nn": Training({}, Mistake("votes are not raised to a power", {"power": 1.0})),
    "tfidf-label": Training({}, Mistake("weights squared", after_fit=square_labels)),
    "bm25-label": Training({}, Mistake("length is not normalised", {"b": 0.0})),
    "untrained": Training(
        {"encoder": {"name": "small"}}, Mistake("cls pooling", {"encoder": {"name": "small", "pooling": "cls"}})
    ),
    "dexml": Training(DEXML, halved(DEXML)),
    "ngame": Training(NGAME, halved(NGAME)),
    "prime": Training(PRIME, halved(PRIME)),
    "unidec": Training(UNIDEC, halved(UNIDEC)),
    "ova": Training(OVA, Mistake("learning rate of the table halved", {"table": {"learning_rate": 0.15}})),
    "ict": Training(PAIRS, halved(PAIRS)),
    "rts": Training(SPANS, Mistake("temperature doubled", {"temperature": 0.1}), {"steps": 80}),
    "maclr-pretraining": Training(TITLES, Mistake("no labels as negatives, no views", {"regularisation": 0.0})),
    "maclr": Training(TITLES, Mistake("unsure labels count as well", {"confident": 1.0}), {"steps": 80}),
    "lmtx": Training(LMTX, Mistake("no margin", {"margin": 0.0}), budget={"epochs": 100}, unannotated=True),
    "infer-retrieve-rank": Training(PROMPTED, halved(PROMPTED), budget={"steps": 60}, unannotated=True),
    "memory": Training({"first": FIRST, "share": 0.5}, Mistake("no training queries", {"query_weight": 0.0})),
    "classifier": Training(CLASSIFIER, Mistake("no dropout on the query's vector", {"dropout": 0.0}), {"epochs": 4}),
    "dexa": Training(DEXA, halved(DEXA)),
    "colbert": Training(DUAL, halved(DUAL)),
    "fuse": Training({"parts": [FIRST, {"method": "tfidf-nn"}]}, Mistake("one part twice", {"parts": [FIRST, FIRST]})),
    "cross-encoder": Training(CROSS, Mistake("the cross-encoder does not train", {"epochs": 0.0})),
    "sparse-ranker": Training({"first": FIRST}, Mistake("the ranker's score is left out", {"weight": 0.0})),
}
