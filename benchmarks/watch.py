"""What watching torch's matrix products adds to a training step: processor seconds with it over those without.

    python benchmarks/watch.py --markdown docs/budgets.md

Steps of one training take turns: one is watched as always, the next is not. The ratio is the median over such pairs,
so that single steps which other processes disturb do not count; a bootstrap over pairs gives its interval of 95 %.

Legend: P pairs of steps, R draws of the bootstrap.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from report import options, put
from tabulate import tabulate

from xmcbench.data import Dataset, load
from xmcbench.engine import matrix_products
from xmcbench.engine.embedding_method import Training
from xmcbench.trial.budget import Budget
from xmcbench_plugins.conformance.tiny_trial import TinyTrial

MARK, DATASET = "<!-- table of watch.py -->", "catalog-1k"
FIRST = 10  # steps that warm up
BATCH = {"batch_size": 512}
STATIC: dict[str, Any] = {"encoder": "static", **BATCH}
CASES: dict[str, tuple[dict[str, Any], int]] = {  # settings, steps
    "dexml in-batch, static": ({"negatives": "in-batch", **STATIC}, 600),
    "dexml all, static": ({"negatives": "all", **STATIC}, 400),
    "ova, static": (STATIC, 400),
    "prime, static, batches of 128": ({"free_vectors": 512, **STATIC, "batch_size": 128}, 300),
    "prime, static": ({"free_vectors": 512, **STATIC}, 100),
    "unidec, static": ({"encoder": {"name": "static", "normalize": False}, **BATCH}, 300),
    "dexml in-batch, nano": ({"negatives": "in-batch", "encoder": "nano", **BATCH}, 60),
    "dexml in-batch, minilm": ({"negatives": "in-batch", "encoder": "minilm", "batch_size": 64}, 30),
}


class Timed(TinyTrial):
    """A training on a dataset of ordinary size."""

    @cached_property
    def dataset(self) -> Dataset:
        return load(self.dataset_name, self.folder, self.folder / "cache")


@contextmanager
def in_turns() -> Iterator[tuple[list[float], list[float]]]:
    """The processor seconds of every second training step of the block, not watched, and of the others, watched."""
    seconds: tuple[list[float], list[float]] = ([], [])
    step = Training.step

    def timed(training: Training, before: float) -> dict[str, float]:
        watched = training.run.ledger.steps % 2
        with nullcontext() if watched else unwatched():
            start = time.process_time()
            measured = step(training, before)
            seconds[watched].append(time.process_time() - start)
        return measured

    with patch.object(Training, "step", timed):
        yield seconds


@contextmanager
def unwatched() -> Iterator[None]:
    """Neither a block around this one watches the products in it, nor does one within it."""
    with matrix_products.unwatched(), patch.object(matrix_products, "watched", lambda _: nullcontext()):
        yield


def ratio(without: list[float], watched: list[float]) -> tuple[float, float, float]:
    """The median of watched over unwatched steps, and its interval."""
    pairs = len(without) - FIRST // 2
    ratios_P = np.array(watched[-pairs:]) / np.array(without[-pairs:])
    draws_RP = np.random.default_rng(0).integers(pairs, size=(2000, pairs))
    low, high = np.quantile(np.median(ratios_P[draws_RP], axis=1), [0.025, 0.975])
    return float(np.median(ratios_P)), float(low), float(high)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, metavar="CASE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases:
            settings, steps = CASES[name]
            with in_turns() as (without, watched):
                Timed(name.split()[0].rstrip(","), settings, Path(folder), DATASET, budget=Budget(steps=steps)).fit()
            middle, low, high = ratio(without, watched)
            interval, milliseconds = f"{low:.3f} to {high:.3f}", 1000 * median(without)
            rows.append(
                {"training": name, "steps": steps, "ms a step": milliseconds, "ratio": middle, "95 %": interval}
            )
            print(rows[-1], file=sys.stderr, flush=True)
    print(tabulate(rows, headers="keys", floatfmt=("", "", ".1f", ".3f", "")))
    if given.markdown:
        put(tabulate(rows, headers="keys", tablefmt="pipe", floatfmt=("", "", ".1f", ".3f", "")), given.markdown, MARK)


if __name__ == "__main__":
    main()
