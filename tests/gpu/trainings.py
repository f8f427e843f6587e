"""Short trainings of every bundled method that computes on a GPU, and what they have to wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from corridors import Annotations, with_encoder
from toy import make_run, save_small_encoder, toy_data

from xmcbench.plugins.registry import registry
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.run import Progress, Run

from .places import waits

DATA = toy_data(ignored=1)
STEPS = 5  # of two epochs: the first has three
COUNTED = 4  # the step whose waits are counted: not the first one of an epoch


@dataclass(frozen=True)
class Training:
    """A method, its settings, and what a step of it waits for beside its loss and gradient norm, with the reason.

    One that `chooses` trains on labels or clusters that scores choose: rounding decides between equal ones.
    """

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=lambda: {"steps": STEPS})

    @property
    def chooses(self) -> bool:
        return not self.settings.keys().isdisjoint(CHOOSING)


CHOOSING = ("shortlist", "cluster_size", "cached_negatives")
MINED = {"shortlist": 8, "refresh_start": 1, "refresh_every": 1}
CLUSTERED = {"cluster_size": 4, "cluster_start": 1, "cluster_every": 1}
TAUGHT = {"teacher": "annotated", "cycles": 1, "epochs": 2, "shortlist": 12, "development": 10}
FIRST = {"method": "dexml", "encoder": {"name": "small"}, "batch_size": 20, "negatives": "in-batch"}
CROSS = {"first": FIRST, "model": "small", "max_length": 16}
STATIC = {"name": "static", "words": "random", "dimension": 24}
# The update reads and writes the rows of the words that occur: how many, a count of the pieces tells.
OCCURRING = {"_Means.backward, aten::unique_consecutive": 1}
FOLDED = {"_Means.forward, aten::_unique2": 1}  # weights and vectors are multiplied for those words alone
# The CPU has to know which labels it embeds next.
CHOSEN = {"Cached._gradient_norms, to the CPU": 1}
# Newton's method ends when all queries have converged, which the CPU asks every eighth iteration.
CONVERGED = {"_Balance.root, aten::_local_scalar_dense": 1}
# transformers asks whether the mask of a cross-encoder's batch hides anything.
PADDED = {"CrossEncoderRanker._logits, aten::_local_scalar_dense": 1}

TRAININGS: dict[str, Training] = {
    "dexml, in-batch": Training("dexml", {"negatives": "in-batch"}),
    "dexml, one positive": Training("dexml", {"negatives": "in-batch", "positives": "one", "loss": "softmax"}),
    "dexml, other queries": Training("dexml", {"negatives": "in-batch", "query_negatives": True}),
    "dexml, hard": Training("dexml", {"negatives": "hard", **MINED}),
    "dexml, embedding-cache": Training("dexml", {"negatives": "embedding-cache", "cached_negatives": 5}, CHOSEN),
    "dexml, all": Training("dexml", {"negatives": "all", "clip_norm": 0.01}),
    "dexml, static": Training("dexml", {"negatives": "in-batch", "encoder": STATIC}, OCCURRING),
    "dexml, weighted words": Training(
        "dexml", {"negatives": "in-batch", "encoder": STATIC | {"word_weights": True, "linear": 16}}, OCCURRING | FOLDED
    ),
    "dexml, soft top-k": Training("dexml", {"negatives": "all", "loss": "soft-top-k", "k": 2}, CONVERGED),
    "ngame": Training("ngame", {**CLUSTERED, "first_hardest": 20, "hardest": 3}),
    "colbert": Training("colbert", {"tokens": 6, "dimensions": 8}),
    "dexa": Training("dexa", {**CLUSTERED, "auxiliary_vectors": 16}),
    "prime": Training("prime", {**CLUSTERED, "free_vectors": 16, "queries_per_centroid": 2}),
    "unidec": Training("unidec", {**MINED, "dimension": 16, "extra_positives": 1}),
    "ova": Training("ova"),
    "ova, bf16 rows": Training("ova", {"table": {"dtype": "bf16"}, "label_texts_as_queries": True}),
    "ova, e4m3 rows": Training("ova", {"table": {"dtype": "e4m3", "optimizer": "sgd"}}),
    "ova, as Renee": Training("ova", {"table": {"optimizer": "sgd", "momentum": 0.9}, "rows": "label-embeddings"}),
    "ict": Training("ict"),
    "rts": Training("rts"),
    "maclr": Training("maclr", {"cluster_size": 8, "cluster_every": 1}, {}, {"steps": 12}),
    "infer-retrieve-rank": Training("infer-retrieve-rank", {"teacher": "annotated", "shortlist": 20}),
    "lmtx": Training("lmtx", TAUGHT, {}, {"epochs": 9}),
    "classifier": Training("classifier", {"first": FIRST, "epochs": 9, "shortlist": 8, "share": 0.5}, {}, {"steps": 8}),
    "memory": Training("memory", {"first": FIRST}),
    "sparse-ranker": Training("sparse-ranker", {"first": FIRST}),
    "cross-encoder": Training("cross-encoder", {**CROSS, "shortlist": 8}, PADDED),
    "fuse": Training("fuse", {"parts": [FIRST, {"method": "tfidf-nn"}], "held_out": 12}),
    "untrained": Training("untrained"),
}  # fmt: skip
UNANNOTATED = {"ict", "rts", "maclr", "lmtx", "infer-retrieve-rank"}


def build(name: str, root: Path) -> Method:
    """The method `name` over a small encoder, which lies under `root`."""
    training = TRAININGS[name]
    kind = registry().method(training.method).thing
    own = {"encoder": {"name": "small"}} if "encoder" in kind.Config.model_fields else {}
    sized = {"batch_size": 20} if "batch_size" in kind.Config.model_fields else {}
    return kind(kind.Config.model_validate(with_encoder({**own, **sized, **training.settings}, str(root / "encoder"))))


def run_of(name: str, root: Path, **settings: Any) -> Run:
    return make_run(root, TRAININGS[name].budget, judge=lambda _: Annotations(DATA), **settings)


def data_of(name: str) -> Any:
    method = TRAININGS[name].method
    return DATA.unannotated(method) if method in UNANNOTATED else DATA


@dataclass
class Outcome:
    """A training that ended: the fitted method, its losses and gradient norms, predictions, and waits by step."""

    name: str
    root: Path
    method: Method
    metrics: list[tuple[float, ...]]
    predictions: Predictions
    waits: list[Counter[str]]
    operations: dict[str, int]  # charged, by kind


def train(name: str, root: Path) -> Outcome:
    """Train on the device that models live on now."""
    save_small_encoder(root / "encoder", DATA)
    method, metrics, ends = build(name, root), [], []
    with waits() as so_far:

        def note(progress: Progress) -> None:
            if "loss" in progress.metrics:
                metrics.append(tuple(progress.metrics.get(key, 0.0) for key in ("loss", "gradient")))
                ends.append(so_far())

        method.fit(data_of(name), run := run_of(name, root, report=note))
    of_steps = [after - before for before, after in pairwise(ends)]
    operations = {kind: getattr(run.ledger, f"{kind}_flops") for kind in ("encoder", "module", "scoring", "solver")}
    return Outcome(name, root, method, metrics, method.predict(DATA.texts, 10), of_steps, operations)
