"""Defaults against tuned settings on datasets of one's own (`own_data.py` makes some): one row a method and dataset.

python benchmarks/defaults.py spack called iconclass --data data --store results --markdown docs/budgets.md

It runs `xmcbench tune` on each dataset, and the same methods untuned, with the same held-out queries; what is in the
store is not run again. P@1 is that of the test split, which neither sees.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from report import Rows, options, report

from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

FLOORS = ("popular", "tfidf-nn")  # without settings to search
METHODS = ("dexml", "ngame", "prime", "unidec", "ova")
COST = "encoder_tokens"


def tuned(dataset: str, asked: Any) -> dict[str, Record]:
    """By method: the trial with the settings that `xmcbench tune` found, which it runs unless it did."""
    suite = asked.store / f"tuned-{dataset}.yaml"
    suite.parent.mkdir(parents=True, exist_ok=True)
    words = {"methods": ",".join(asked.methods), "budget": asked.budget, "samples": asked.samples}
    words |= {"out": suite, "data": asked.data, "store": asked.store}
    told = [text for name, value in words.items() for text in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "xmcbench", "tune", dataset, *told], check=True)
    records = Store(asked.store).records()
    return {one.trial.method: one for one in records if one.chosen and one.trial.dataset == dataset}


def untuned(dataset: str, asked: Any) -> dict[str, Record]:
    """By method: the trial with the settings that follow from data and budget."""
    suite = yaml.safe_load((asked.store / f"tuned-{dataset}.search.yaml").read_text(encoding="utf-8"))
    del suite["tune"]
    suite["methods"] = {name: {"method": name} for name in (*FLOORS, *asked.methods)}
    path = asked.store / f"defaults-{dataset}.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    told = ["--data", str(asked.data), "--store", str(asked.store)]
    subprocess.run([sys.executable, "-m", "xmcbench", "run", str(path), *told], check=True)
    plan = Runner(Settings(path, asked.data, asked.store)).plan()
    return {one.trial.method: one.record for one in plan if one.record}


def won_again(samples: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the best sample is also the better finalist with other seeds; None without finalists of one budget."""
    finals = [sample for sample in samples if sample.get("again")]
    if len(finals) < 2 or len({str(sample["budget"]) for sample in finals}) > 1:
        return None
    first, second = sorted(finals, key=lambda sample: -sample["quality"])[:2]
    return fmean(first["again"]) >= fmean(second["again"])


def rows_of(dataset: str, asked: Any) -> Rows:
    """A row for each method: both values, what tuning spent in trainings, and what it changed."""
    found, plain = tuned(dataset, asked), untuned(dataset, asked)
    floors = {name: 100 * plain[name].metrics["P@1"] for name in FLOORS}
    rows: Rows = []
    for name in asked.methods:
        own, best = plain[name], found[name]
        before, after = (100 * record.metrics["P@1"] for record in (own, best))
        again = won_again(best.chosen["samples"])
        new = {key: value for key, value in best.chosen["settings"].items() if not _same(own.trial.config[key], value)}
        rows.append(
            {"dataset": dataset, "popular": f"{floors['popular']:.1f}", "TF-IDF": f"{floors['tfidf-nn']:.1f}",
             "method": name, "default": f"{before:.1f}", "tuned": f"{after:.1f}", "gap": f"{after - before:+.1f}",
             "tuning, trainings": f"{best.chosen['spent'][COST] / own.spent[COST]:.1f}",
             "wins again": {True: "yes", False: "no", None: "-"}[again],
             "what tuning changed": ", ".join(f"{key} {_short(value)}" for key, value in new.items()) or "nothing"}
        )  # fmt: skip
    return rows


def _same(own: Any, value: Any) -> bool:
    """Whether a setting has the value; of one with parts those that `value` has."""
    return all(own[name] == part for name, part in value.items()) if isinstance(value, dict) else bool(own == value)


def _short(value: Any) -> str:
    inner = next(iter(value.values())) if isinstance(value, dict) else value
    return f"{inner:g}" if isinstance(inner, int | float) and isfinite(inner) else str(inner)


def main() -> None:
    parser = options(
        __doc__, data=Path("data"), store=Path("results"), methods=list(METHODS), budget=("epochs=5", "of a training"),
        samples=(5, "configurations that are tried of each method"),
    )  # fmt: skip
    parser.add_argument("datasets", nargs="+")
    asked = parser.parse_args()
    rows = [row for dataset in asked.datasets for row in rows_of(dataset, asked)]
    report("defaults", rows, asked, by=("dataset", "method"))


if __name__ == "__main__":
    main()
