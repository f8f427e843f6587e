"""A training step with all labels as negatives: seconds and memory of DEXML's public code and of ours.

Both train the same small DistilBERT from the same weights on the same queries and labels, in float32, and with the
encoder's products in bf16 where the processor has these (scores stay float32 on both sides). Each side runs
for two numbers of steps; the seconds of a step are the difference of the runs over the difference of the steps, so that
neither start nor evaluation counts. Ours runs for each limit on the activations that are kept: what fits is embedded
once per step, the rest twice. All sides take turns, and the least seconds of each run count. Let nothing run beside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml
from cases.commands import xmcbench
from parity import LENGTH, dexml_settings, export, make_encoder, their_command
from peers import Places, Result

from xmcbench.data import load
from xmcbench.engine.encoders.settings import Precision
from xmcbench.engine.search.exact import bf16_multiplies_faster
from xmcbench.trial.store import Store

BATCH, TEST_QUERIES = 512, 64
PUBLIC = "DEXML's code"
# By dataset: GiB of activations that ours keeps, the steps of the two runs, and how often each is repeated.
SIZES = {"catalog-16k": ((0, 0.5, 2, 4), (2, 4), 3), "catalog-131k": ((0.5,), (1, 2), 1)}
QUICK = {"catalog-500": ((0.5,), (1, 2), 1)}


def theirs(name: str, precision: Precision, code: Path, out: Path) -> tuple[float, float]:
    """Seconds of the public code's whole process, and the GiB of its peak."""
    settings = {"net": "dist-de-all", "neg_type": "none", "dataset": name, "bsz": BATCH, "num_epochs": 1}
    run = f"theirs-{name}-{precision}"
    settings |= dexml_settings(run, out) | {"amp_encode": precision == "bf16"}
    command = their_command("dexml", settings, run, 0, out)
    log, start = out / f"{run}.log", time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=code, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the public code failed: {log.read_text().strip().splitlines()[-1]}")
    return time.perf_counter() - start, used.ru_maxrss / 2**20


def ours(name: str, steps: int, limit: float, precision: Precision, data: Path, out: Path) -> tuple[float, float]:
    """Device seconds of our training, and the GiB of the worker's peak."""
    suite = out / f"ours-{name}-{limit:g}-{precision}.yaml"
    content = {
        "name": "all-labels", "datasets": [name], "budget": {"steps": steps}, "metrics": ["P@1"],
        "encoder": {"name": str(out / "encoder"), "pooling": "mean"},
        "methods": {"all": {"method": "dexml", "positives": "one", "negatives": "all"}},
        "settings": {"batch_size": BATCH, "activation_gib": limit, "max_query_length": LENGTH,
                     "max_label_length": LENGTH, "precision": precision},
    }  # fmt: skip
    suite.write_text(yaml.safe_dump(content))
    store = out / suite.stem
    shutil.rmtree(store, ignore_errors=True)
    xmcbench("run", str(suite), "--data", str(data), "--store", str(store))
    (record,) = Store(store).records()
    return float(record.spent["device_seconds"]), float(record.spent["peak_bytes"]) / 2**30


def results(places: Places) -> Iterator[Result]:
    if places.dexml is None:
        raise RuntimeError("its peer is DEXML's public code: --dexml DIR")
    code, out = places.dexml.absolute(), places.out
    data = code / "Datasets"
    for made, (limits, steps, repeats) in (QUICK if places.quick else SIZES).items():
        dataset, names = load(made, data, out / "cache"), {f"{made}-{count}": count for count in steps}
        for name, count in names.items():
            export(dataset, data / name, train=count * BATCH, test=TEST_QUERIES)
        make_encoder(dataset.label_texts, out / "encoder")
        sides: list[tuple[float, Precision]] = [(limit, "float32") for limit in limits]
        if bf16_multiplies_faster():
            sides.append((0.4, "bf16"))
        runs: dict[tuple[float | str, Precision, str], Callable[[], tuple[float, float]]] = {}
        for name, count in names.items():
            for limit, precision in sides:
                runs[PUBLIC, precision, name] = partial(theirs, name, precision, code, out)
                runs[limit, precision, name] = partial(ours, name, count, limit, precision, data, out)
        found = {key: [run() for _ in range(1)] for key, run in runs.items()}
        for _ in range(repeats - 1):
            for key, run in runs.items():
                found[key].append(run())

        def step(side: float | str, precision: Precision, found=found, names=names, steps=steps) -> tuple[float, float]:  # type: ignore[no-untyped-def]
            few, many = (min(seconds for seconds, _ in found[side, precision, name]) for name in names)
            most = max(gib for name in names for _, gib in found[side, precision, name])
            return (many - few) / (steps[1] - steps[0]), most

        labels = made.removeprefix("catalog-").replace("k", ",000")
        for limit, precision in sides:
            what = f"step with {labels} labels, {limit:g} GiB of activations"
            what += ", bf16" if precision == "bf16" else ""
            (mine, held), (seconds, gib) = step(limit, precision), step(PUBLIC, precision)
            yield Result(f"{what}: time", mine, "s", "half", PUBLIC, seconds)
            yield Result(f"{what}: memory", held, "GiB", "no more", PUBLIC, gib)
