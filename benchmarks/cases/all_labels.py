"""A training step with all labels as negatives: CPU seconds and memory of DEXML's public code and of ours.

Both train the small DistilBERT of `parity.py` from the same weights on the same queries and labels, in one thread. Each
side runs for two numbers of steps; the seconds of a step are the difference of the runs over the difference of the
steps, so that neither start nor evaluation counts. Ours runs for each limit on the activations that are kept: what fits
is embedded once per step, the rest twice. All sides take turns, and the least seconds of each run count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from parity import LENGTH, export, make_encoder, their_settings
from peers import Places, Result
from report import run

from xmcbench.data import load

BATCH, TEST_QUERIES = 512, 64
DRIVER = Path(__file__).parents[1] / "parity_drivers.py"
PUBLIC = "DEXML's code"
# By number of labels: GiB of activations that ours keeps, the steps of the two runs, and how often each is repeated.
SIZES: dict[str, tuple[tuple[float, ...], tuple[int, int], int]] = {"16k": ((0.5,), (1, 3), 2)}
QUICK: dict[str, tuple[tuple[float, ...], tuple[int, int], int]] = {"500": ((0.5,), (1, 2), 1)}
Taken = list[tuple[float, float]]  # seconds and GiB of runs
Run = Callable[[], tuple[float, float]]


def theirs(name: str, code: Path, out: Path) -> tuple[float, float]:
    """CPU seconds of the public code's whole process, and the GiB of its peak."""
    expname = f"theirs-{name}"
    settings = their_settings("dexml", expname, {"dexml": code}, out, load(name, out, out / "cache"))
    settings |= {"net": "dist-de-all", "neg_type": "none", "dataset": name, "bsz": BATCH, "num_epochs": 1}
    config, log = out / f"{expname}.yaml", out / f"{expname}.log"  # JSON is a part of YAML
    config.write_text(json.dumps(settings))
    command: list[str | Path] = [sys.executable, DRIVER, "dexml", "0", config, out / f"{expname}.npz"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=code, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the public code failed: {log.read_text().strip().splitlines()[-1]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def ours(name: str, steps: int, limit: float, out: Path) -> tuple[float, float]:
    """CPU seconds of our training, and the GiB of the worker's peak."""
    store = out / f"ours-{name}-{limit:g}"
    shutil.rmtree(store, ignore_errors=True)
    suite = {
        "name": "all-labels", "datasets": [name], "budget": {"steps": steps}, "metrics": ["P@1"],
        "encoder": {"name": str(out / "encoder"), "pooling": "mean"},
        "methods": {"all": {"method": "dexml", "positives": "one", "negatives": "all"}},
        "settings": {"batch_size": BATCH, "activation_gib": limit, "max_query_length": LENGTH,
                     "max_label_length": LENGTH},
    }  # fmt: skip
    (record,) = run(suite, store, out)
    return float(record.spent["device_seconds"]), float(record.spent["peak_bytes"]) / 2**30


def _of_step(few: Taken, many: Taken, more: int) -> tuple[float, float]:
    """Seconds of a step, and the GiB of the peak, of runs of which the second ones take so many steps more."""
    least = (min(seconds for seconds, _ in taken) for taken in (many, few))
    return (next(least) - next(least)) / more, max(gib for _, gib in many)


def results(places: Places) -> Iterator[Result]:
    if places.dexml is None:
        raise RuntimeError("its peer is DEXML's public code: --dexml DIR")
    os.environ["OMP_NUM_THREADS"] = "1"  # of both sides
    code, out = places.dexml.absolute(), places.out / "all-labels"
    out.mkdir()
    for size, (limits, steps, repeats) in (QUICK if places.quick else SIZES).items():
        names = {f"{size}-{count}": count for count in steps}
        for name, count in names.items():
            made = load(f"catalog-{size}-train-{count * BATCH}-test-{TEST_QUERIES}", out, out / "cache")
            export(made, out / name)
            make_encoder(made.label_texts, out / "encoder")
            link = code / "Datasets" / name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)  # of an earlier run
            link.symlink_to(out / name)
        runs: dict[tuple[float | str, str], Run] = {}
        for name, count in names.items():
            runs[PUBLIC, name] = partial(theirs, name, code, out)
            runs |= {(limit, name): partial(ours, name, count, limit, out) for limit in limits}
        taken: dict[tuple[float | str, str], Taken] = {key: [] for key in runs}
        for _ in range(repeats):
            for key, one in runs.items():
                taken[key].append(one())
        few, many = names
        sides: tuple[float | str, ...] = (PUBLIC, *limits)
        of_step = {side: _of_step(taken[side, few], taken[side, many], steps[1] - steps[0]) for side in sides}
        seconds_of_peer, gib_of_peer = of_step[PUBLIC]
        for limit in limits:
            what, (seconds, gib) = f"step, {size.replace('k', ',000')} labels, {limit:g} GiB", of_step[limit]
            yield Result(f"{what}: time", seconds, "CPU s", "half", PUBLIC, seconds_of_peer)
            yield Result(f"{what}: memory", gib, "GiB", "no more", PUBLIC, gib_of_peer)
