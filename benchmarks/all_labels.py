"""A training step with all labels as negatives: seconds and memory of DEXML's public code and of ours.

Both train the same small DistilBERT from the same weights on the same queries and labels, the public code in float32.
Each side runs for two numbers of steps; the seconds of a step are the difference of the runs over the difference of the
steps, so that neither start nor evaluation counts. Ours runs for each limit on the activations that are kept: what fits
is embedded once per step, the rest twice. All sides take turns, and the least seconds of each run count: a disturbance
of one run would be taken for the time of a step. Let nothing run beside them.

    pip install accelerate matplotlib pandas
    GOMP_SPINCOUNT=3000 python benchmarks/all_labels.py --code DIR      # a clone of github.com/nilesh2797/DEXML
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml
from parity import LENGTH, export, make_encoder, their_command
from report import options, report

from xmcbench.data import load
from xmcbench.trial.store import Store

TEST_QUERIES = 64
XMCBENCH = str(Path(sysconfig.get_path("scripts")) / "xmcbench")


def theirs(name: str, batch: int, code: Path, out: Path) -> tuple[float, float]:
    """Seconds of the public code's whole process, and the GiB of its peak."""
    settings = {"net": "dist-de-all", "neg_type": "none", "dataset": name, "bsz": batch, "num_epochs": 1}
    command = their_command(settings, f"theirs-{name}", 0, out)
    log, start = out / f"theirs-{name}.log", time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=code, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the public code failed: {log}")
    return time.perf_counter() - start, used.ru_maxrss / 2**20


def ours(name: str, steps: int, batch: int, limit: float, precision: str, data: Path, out: Path) -> tuple[float, float]:
    """Device seconds of our training, and the GiB of the worker's peak."""
    suite = out / f"ours-{name}-{limit:g}.yaml"
    content = {
        "name": "all-labels", "datasets": [name], "budget": {"steps": steps}, "metrics": ["P@1"],
        "encoder": {"name": str(out / "encoder"), "pooling": "mean"},
        "methods": {"all": {"method": "dexml", "positives": "one", "negatives": "all"}},
        "settings": {"batch_size": batch, "activation_gib": limit, "max_query_length": LENGTH,
                     "max_label_length": LENGTH, "precision": precision},
    }  # fmt: skip
    suite.write_text(yaml.safe_dump(content))
    store = out / suite.stem
    shutil.rmtree(store, ignore_errors=True)
    run = [XMCBENCH, "run", str(suite), "--data", str(data), "--store", str(store)]
    subprocess.run(run, capture_output=True, check=True)
    (record,) = Store(store).records()
    return float(record.spent["device_seconds"]), float(record.spent["peak_bytes"]) / 2**30


def main() -> None:
    parser = options(
        __doc__, dataset=("catalog-16k", "made data"), batch=512, repeats=3,
        out=Path("benchmarks/results/all_labels"),
    )  # fmt: skip
    parser.add_argument("--code", type=Path, required=True, help="a clone of github.com/nilesh2797/DEXML")
    parser.add_argument("--steps", nargs=2, type=int, default=[2, 4], help="of the two runs of each side")
    parser.add_argument(
        "--limits",
        nargs="+",
        type=float,
        default=[0.0, 0.5, 2.0, 4.0],
        metavar="GIB",
        help="activations that ours keeps",
    )
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="of ours")
    asked = parser.parse_args()
    out, data = asked.out.absolute(), asked.code.absolute() / "Datasets"
    dataset, names = load(asked.dataset, data, out / "cache"), [f"all-labels-{steps}" for steps in asked.steps]
    for name, steps in zip(names, asked.steps, strict=True):
        export(dataset, data / name, train=steps * asked.batch, test=TEST_QUERIES)
    labels = dataset.label_texts
    if not (out / "encoder").exists():
        make_encoder(labels, out / "encoder")
    runs: dict[tuple[str, str], Callable[[], tuple[float, float]]] = {}
    for name, steps in zip(names, asked.steps, strict=True):
        runs["DEXML's public code", name] = partial(theirs, name, asked.batch, asked.code, out)
        for limit in asked.limits:
            key = f"xmcbench, {limit:g} GiB of activations"
            runs[key, name] = partial(ours, name, steps, asked.batch, limit, asked.precision, data, out)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in runs}
    for _ in range(asked.repeats):
        for key, run in runs.items():
            found[key].append(run())
    rows = []
    for side in dict.fromkeys(side for side, _ in runs):
        few, many = (min(seconds for seconds, _ in found[side, name]) for name in names)
        peak = max(gib for name in names for _, gib in found[side, name])
        rows.append(
            {"side": side, "labels": len(labels), "batch": asked.batch,
             "s/step": (many - few) / (asked.steps[1] - asked.steps[0]), "peak GiB": peak}
        )  # fmt: skip
    report("all_labels", rows, asked.out)


if __name__ == "__main__":
    main()
