"""What 100 million labels would take on a cluster, by the arithmetic of `xmcbench plan`; nothing is trained.

    python benchmarks/on_paper.py --markdown docs/performance.md

Plans are made of two datasets that nobody has, with 1 and 2 million labels. Every part of a plan is linear in the
labels and queries, so that the two give the plan of any number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import options, put
from tabulate import tabulate

from xmcbench.data.source import Draft, FolderSource, Source
from xmcbench.engine.planning.memory import Memory
from xmcbench.engine.planning.trials import MACHINES, Planner, TrialPlan, fits, labels_that_fit
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.plugins.registry import add_files, registry
from xmcbench.trial.budget import Budget
from xmcbench.trial.trial import Trial

MARK = "<!-- table of on_paper.py -->"
MILLION = 10**6
PLANNED = (1, 2)  # millions of labels
QUERIES = 2.4  # that train, for each label
ENCODERS: dict[str, dict[str, Any]] = {
    "static, 64 dimensions": {"name": "static", "words": "random", "dimension": 64},
    "DistilBERT, 768": {"name": "hub:distilbert-base-uncased"},
}
METHODS: dict[str, dict[str, Any]] = {
    "dexml, in-batch": {"method": "dexml", "negatives": "in-batch"},
    "dexml, hard": {"method": "dexml", "negatives": "hard", "refresh_start": 0},
    "ova, rows in e4m3": {"method": "ova", "table": {"dtype": "e4m3", "optimizer": "sgd", "learning_rate": 0.1}},
}


def dataset(millions: int) -> Draft:
    """The card of a dataset that is on no disk, with titles as texts."""
    sizes = {"num_labels": millions * MILLION, "num_train": round(QUERIES * millions * MILLION), "num_test": 10_000}
    return Draft(name=f"paper-{millions}m", **sizes, query_words=7, label_words=7, labels_per_query=3)


@hookimpl
def register_datasets(register: Callable[[Source], None]) -> None:
    for millions in PLANNED:
        register(FolderSource(dataset(millions)))


def planned(settings: dict[str, Any], encoder: dict[str, Any], batch: int, workers: int, millions: int) -> TrialPlan:
    """The plan of one step on the dataset with so many labels."""
    config = {key: value for key, value in settings.items() if key != "method"}
    method = registry().method(settings["method"]).thing
    made = method.Config.model_validate({**config, "encoder": encoder, "batch_size": batch})
    trial = Trial(
        label="paper", method=method.name, distribution="xmcbench", version="0", config=made.model_dump(mode="json"),
        dataset=dataset(millions).name, dataset_hash="", seed=0, budget=Budget(steps=1),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as nothing:
        return Planner(Path(nothing), Path(nothing), MACHINES["h100"]).plan(trial, workers)


def of_labels(plans: tuple[TrialPlan, TrialPlan], millions: float) -> TrialPlan:
    """The plan of so many millions of labels: the line through two plans."""
    first, second = plans
    share = (millions - PLANNED[0]) / (PLANNED[1] - PLANNED[0])

    def at(one: float, other: float) -> float:
        return one + share * (other - one)

    ends = first.memory.parts(), second.memory.parts()
    memory = Memory(**{name: at(ends[0][name], ends[1][name]) for name in ends[0]})
    labels, disk = round(millions * MILLION), at(first.disk, second.disk)
    return replace(first, memory=memory, labels=labels, disk=disk, network=at(first.network, second.network))


def row(name: str, encoder: str, plan: TrialPlan) -> dict[str, Any]:
    held, giga = plan.memory, 1e9
    labels = labels_that_fit(plan, MACHINES["h100"])
    return {
        "method": name, "encoder": encoder,
        "rows, GB": f"{held.tables / giga:.3g}", "step, GB": f"{held.step / giga:.3g}",
        "mining, GB": f"{held.refresh / giga:.3g}", "index, GB": f"{held.search / giga:.3g}",
        "peak, GB": f"{held.total / giga:.3g}", "fits": fits(plan, MACHINES["h100"]),
        "labels that fit": "" if labels is None else f"{labels:,}",
        "sent a step, MB": f"{plan.network / 1e6:.3g}", "disk, GB": f"{plan.disk / giga:.3g}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--labels", type=float, default=100, metavar="MILLIONS")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8192)
    asked = parser.parse_args()
    add_files([Path(__file__).absolute()])
    rows = []
    for encoder, settings in ENCODERS.items():
        for name, method in METHODS.items():
            one, two = (planned(method, settings, asked.batch, asked.workers, millions) for millions in PLANNED)
            rows.append(row(name, encoder, of_labels((one, two), asked.labels)))
    text = tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
    print(text)
    if asked.markdown:
        put(text, asked.markdown, MARK)


if __name__ == "__main__":
    main()
