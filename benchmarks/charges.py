"""What each built-in method is charged over what an outside counter counts, by encoder and stage.

    python benchmarks/charges.py --markdown docs/budgets.md

Each method takes three steps on the tiny dataset of `xmcbench check`. No text is padded: transformers read three tokens
of each, and a method that pools them itself reads one text at a time. A cell has operations, then tokens. Of a training
step two passes over word vectors are computed and three charged, which is left out of the cell.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from report import options, put
from tabulate import tabulate

from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import OPERATIONS, Ledger
from xmcbench_plugins.conformance import outside_count
from xmcbench_plugins.conformance.tiny_trial import ORDINARY, TinyTrial
from xmcbench_plugins.second_stage.stage import SecondStage

COUNTS = ("encoder_tokens", *OPERATIONS)
TRAIN, MARK = "train", "<!-- table of charges.py -->"
TOKENS = 3  # of each text at most
NAMED = 6  # methods of a line at most that are named
OFTEN = {"refresh_start": 0, "refresh_every": 1}
CLUSTERS = {"cluster_size": 4, "cluster_start": 0, "cluster_every": 1, "cluster_vectors": "fresh"}
TEACHER = {"name": "annotated"}
PLAIN = {"method": "dexml", "negatives": "in-batch"}
METHODS: dict[str, dict[str, Any]] = {
    "dexml in-batch": {"negatives": "in-batch"},
    "dexml hard": {"negatives": "hard", "shortlist": 8, **OFTEN},
    "dexml all": {"negatives": "all"},
    "dexml soft-top-k": {"negatives": "all", "loss": "soft-top-k", "k": 2},
    "dexml cache": {"negatives": "embedding-cache", "cached_negatives": 4},
    "ngame": CLUSTERS,
    "dexa": {"auxiliary_vectors": 4, **CLUSTERS},
    "prime": {"free_vectors": 8, "feedforward": 64, **CLUSTERS},
    "prime shuffled": {"free_vectors": 8, "feedforward": 64, "batches": "shuffled"},
    "unidec": {"negatives_per_query": 2, "dimension": 24},
    "ova": {},
    "ova label-embeddings": {"rows": "label-embeddings"},
    "ova e4m3": {"table": {"optimizer": "sgd", "dtype": "e4m3"}, "reduction": "sum"},
    "ict": {},
    "rts": {},
    "maclr-pretraining": {"cluster_size": 8, "cluster_every": 1},
    "maclr": {"cluster_size": 8, "cluster_every": 1},
    "lmtx": {"teacher": TEACHER, "cycles": 2},
    "infer-retrieve-rank": {"teacher": TEACHER},
    "colbert": {"tokens": 6, "dimensions": 8, "micro_batch_tokens": TOKENS},
    "untrained": {},
    "memory": {"first": PLAIN},
    "classifier": {"first": PLAIN},
    "sparse-ranker": {"shortlist": 6, "first": PLAIN},
    "cross-encoder": {"model": "minilm", "shortlist": 6, "negatives": 2, "batch_size": 8, "first": PLAIN},
    "fuse": {"held_out": 8, "parts": [PLAIN, {"method": "ova"}]},
}
ENCODERS: dict[str, Any] = {
    "static": {"name": "static", "words": "random", "dimension": 32},
    "nano": "nano",
    "minilm": "minilm",
    "LoRA": {"name": "minilm", "lora": {"rank": 4}},
}
NAMES = {"cluster": "mine", "judge": "mine", "": "prepare"}  # of stages that are one here


@dataclass
class Stages:
    """What was charged in each stage: the outermost that is open, else the last that was."""

    open: list[str] = field(default_factory=list)
    last: str = ""
    part: str = ""  # "second " within a second stage
    charged: Counter[tuple[str, str]] = field(default_factory=Counter)  # by stage and count

    def now(self) -> str:
        return self.part + NAMES.get(name := self.open[0] if self.open else self.last, name)


@contextmanager
def by_stage() -> Iterator[Stages]:
    """Note in which stage each count of any ledger grows in the block."""
    stages, adding = Stages(), [False]
    opened, added, embedded = Ledger.stage, Ledger._add, SecondStage._embed

    @contextmanager
    def stage(ledger: Ledger, name: str) -> Iterator[None]:
        stages.open.append(name)
        try:
            with opened(ledger, name):
                yield
        finally:
            stages.last = stages.open.pop()

    def set_count(ledger: Ledger, name: str, value: Any) -> None:
        if name in COUNTS and name in vars(ledger) and not adding[0]:
            stages.charged[stages.now(), name] += value - getattr(ledger, name)
        object.__setattr__(ledger, name, value)

    def add(ledger: Ledger, part: Ledger) -> None:  # what the part was charged is noted already
        adding[0] = True
        added(ledger, part)
        adding[0] = False

    def embed(method: SecondStage, *arguments: Any) -> Any:
        stages.part = "second "
        return embedded(method, *arguments)

    with (
        patch.object(Ledger, "stage", stage),
        patch.object(Ledger, "__setattr__", set_count),
        patch.object(Ledger, "_add", add),
        patch.object(SecondStage, "_embed", embed),
        patch.object(outside_count, "current_stage", stages.now),
    ):
        yield stages


def settings_with(settings: dict[str, Any], name: str, encoder: Any) -> dict[str, Any]:
    """The settings of a method with this encoder, in a first method and in parts too."""
    own = dict(settings)
    if first := own.get("first"):
        own["first"] = settings_with(first, first["method"], encoder)
    if parts := own.get("parts"):
        own["parts"] = [settings_with(part, part["method"], encoder) for part in parts]
    fields = registry().method(name).thing.Config.model_fields
    small = {"encoder": encoder, "batch_size": 16, "max_query_length": TOKENS, "max_label_length": TOKENS}
    return {key: value for key, value in small.items() if key in fields} | own


def cells(label: str, encoder: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The stages of a training, and of each the operations and the tokens charged over those counted."""
    name = label.split()[0]
    trial = TinyTrial(name, settings_with(METHODS[label], name, ENCODERS[encoder]), folder, ORDINARY)
    with by_stage() as stages, outside_count.counting_from_outside() as counted:
        trial.fit()
    products, bags = counted.flops, counted.bag_flops
    products[f"second {TRAIN}"] += counted.solver_flops
    for stage in sorted({*products, *bags, *(stage for stage, _ in stages.charged)}):
        if stage.endswith(("index", "uncharged", "judge")) or not (computed := products[stage] + bags[stage]):
            continue
        charged = sum(stages.charged[stage, count] for count in OPERATIONS)
        third_pass = bags[stage] / 2 if stage.endswith(TRAIN) else 0.0
        own = f"{(charged - third_pass) / computed:.2f}"
        tokens, read = stages.charged[stage, "encoder_tokens"], counted.tokens[stage]
        yield stage, own + (f", {tokens / read:.2f}" if read else "")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=METHODS, metavar="METHOD")
    parser.add_argument("--encoders", nargs="*", default=[*ENCODERS], choices=ENCODERS, metavar="ENCODER")
    given = parser.parse_args()
    found: dict[tuple[str, str], dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for encoder in given.encoders:
            for label in given.methods:
                for stage, cell in cells(label, encoder, Path(folder) / f"{label} {encoder}".replace(" ", "-")):
                    found.setdefault((stage, label), {})[encoder] = cell
                    print(f"{label}, {encoder}, {stage}: {cell}", file=sys.stderr, flush=True)
    rows = table(found, given.encoders)
    print(tabulate(rows, headers="keys"))
    if given.markdown:
        put(tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True), given.markdown, MARK)


def table(found: Mapping[tuple[str, str], Mapping[str, str]], encoders: Sequence[str]) -> list[dict[str, str]]:
    """A line for each stage and the methods whose cells are alike; `found` has cells by stage and method."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for (stage, label), by_encoder in sorted(found.items()):
        key = stage, *(by_encoder.get(encoder, "-") for encoder in encoders)
        alike.setdefault(key, []).append(label)
    most = {
        stage: max(map(len, (labels for (own, *_), labels in alike.items() if own == stage))) for stage, *_ in alike
    }
    return [
        {
            "stage": stage,
            "methods": "all others" if len(labels) == most[stage] > NAMED else ", ".join(labels),
            **dict(zip(encoders, shares, strict=True)),
        }
        for (stage, *shares), labels in alike.items()
    ]


if __name__ == "__main__":
    main()
