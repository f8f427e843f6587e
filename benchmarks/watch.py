"""What watching torch's matrix products adds to a training step: processor seconds with it over those without.

    python benchmarks/watch.py --markdown docs/budgets.md

Watching costs something for each block of code that is watched and for each product in it. Both are measured alone,
with products that are so small that nothing else takes time, after large ones, which drive the code of the watch out
of the processor's caches as in a training. Their numbers in a step are counted, so that what they add to it is known
more exactly than steps can be timed. As a check steps of the training take turns: of each two steps one, by lot the
first or the second, is watched as always. The ratio is the median over such pairs, so that single steps which other
processes disturb do not count; a bootstrap over pairs gives its interval of 95 %.

Legend: D vector dimensions, P pairs of steps, R draws of the bootstrap.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
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
FIRST = 10  # steps that warm up, in which blocks and products are counted
TURNS = 300  # that time blocks and products alone
LARGE = 1024  # rows and columns of a large product
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


@dataclass
class Steps:
    """What `in_turns` measures: processor seconds of the steps of each kind, and what was watched in a step."""

    without: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)


@contextmanager
def in_turns() -> Iterator[Steps]:
    """Measure one of each two training steps of the block without the watch, and the other one with it."""
    steps, lots = Steps(), np.random.default_rng(0)
    first = False
    step, watch = Training.step, matrix_products.watched

    def counted(charge: matrix_products.Charge) -> AbstractContextManager[None]:
        def each(operations: int) -> None:
            steps.products[-1] += 1
            charge(operations)

        steps.blocks[-1] += 1
        return watch(each)

    def timed(training: Training, before: float) -> dict[str, float]:
        nonlocal first
        second = training.run.ledger.steps % 2
        if not second:
            first = bool(lots.integers(2))
        counts = training.run.ledger.steps < FIRST  # the others are watched as always, without counting
        if counts:
            steps.blocks.append(0)
            steps.products.append(0)
        watched = first != second
        how = patch.object(matrix_products, "watched", counted) if counts else nullcontext() if watched else unwatched()
        with how:
            start = time.process_time()
            measured = step(training, before)
            if not counts:
                (steps.watched if watched else steps.without).append(time.process_time() - start)
        return measured

    with patch.object(Training, "step", timed):
        yield steps


@contextmanager
def unwatched() -> Iterator[None]:
    """Neither a block around this one watches the products in it, nor does one within it."""
    with matrix_products.unwatched(), patch.object(matrix_products, "watched", lambda _: nullcontext()):
        yield


def microseconds() -> tuple[float, float]:
    """What a watched block adds, and what each product in it does, forward or backward, after other work.

    Of each turn large products before it leave nothing of the watch in the processor's caches, as in a training.
    """
    weights_DD, large_DD = torch.zeros(8, 8, requires_grad=True), torch.ones(LARGE, LARGE)

    def products() -> None:  # one forward, two backward
        (weights_DD @ weights_DD).sum().backward()  # type: ignore[no-untyped-call]

    def taken(watch: Callable[[], AbstractContextManager[None]], work: Callable[[], None]) -> float:
        torch.mm(large_DD, large_DD)
        start = time.process_time()
        with watch():
            work()
        return time.process_time() - start

    cases = {
        "nothing": partial(taken, nullcontext, lambda: None),
        "block": partial(taken, partial(matrix_products.watched, lambda _: None), lambda: None),
        "products": partial(taken, nullcontext, products),
        "both": partial(taken, partial(matrix_products.watched, lambda _: None), products),
    }
    turns: dict[str, list[float]] = {name: [] for name in cases}
    for order in np.random.default_rng(0).permuted([list(cases)] * TURNS, axis=1):
        for name in order:
            turns[name].append(cases[name]())
    of = {name: median(values[FIRST:]) for name, values in turns.items()}
    block = of["block"] - of["nothing"]
    return 1e6 * block, 1e6 * (of["both"] - of["products"] - block) / 3


def ratio(without: list[float], watched: list[float]) -> tuple[float, float, float]:
    """The median of watched over unwatched steps, and its interval."""
    pairs = len(without)
    ratios_P = np.array(watched) / np.array(without)
    draws_RP = np.random.default_rng(0).integers(pairs, size=(2000, pairs))
    low, high = np.quantile(np.median(ratios_P[draws_RP], axis=1), [0.025, 0.975])
    return float(np.median(ratios_P)), float(low), float(high)


def words(rows: list[dict[str, Any]], block: float, product: float) -> str:
    """What the table says."""
    largest = max(rows, key=lambda row: row["share %"])
    above = [f"`{row['training']}`" for row in rows if float(row["95 %"].split()[0]) > 1]
    slower = f"significantly above 1 for {', '.join(above)}" if above else "not significantly above 1 for any of them"
    return (
        f"A block takes {block:.0f} and a product {product:.0f} microseconds more, measured after large products, "
        f"which leave nothing of the watch in the processor's caches. Together they add at most "
        f"{largest['share %']:.2f} % to a step, in `{largest['training']}`. The ratio of timed steps is {slower}."
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, metavar="CASE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    block, product = microseconds()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases:
            settings, count = CASES[name]
            with in_turns() as steps:
                Timed(name.split()[0].rstrip(","), settings, Path(folder), DATASET, budget=Budget(steps=count)).fit()
            middle, low, high = ratio(steps.without, steps.watched)
            blocks, products, milliseconds = median(steps.blocks), median(steps.products), 1e3 * median(steps.without)
            rows.append(
                {
                    "training": name,
                    "steps": count,
                    "ms a step": milliseconds,
                    "blocks": blocks,
                    "products": products,
                    "share %": (block * blocks + product * products) / milliseconds / 10,
                    "ratio": middle,
                    "95 %": f"{low:.3f} to {high:.3f}",
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    formats = ("", "", ".1f", ".0f", ".0f", ".2f", ".3f", "")
    said = words(rows, block, product)
    print(tabulate(rows, headers="keys", floatfmt=formats), said, sep="\n\n")
    if given.markdown:
        table = tabulate(rows, headers="keys", tablefmt="pipe", floatfmt=formats)
        put(f"{table}\n\n{said}", given.markdown, MARK)


if __name__ == "__main__":
    main()
