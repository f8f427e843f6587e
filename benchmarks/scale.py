"""How time and memory of the stages around training grow with the number of labels, on made catalogues.

Each stage runs in a process of its own, so that its peak memory is its own. The exponent of a stage is the slope of log
seconds over log labels between the smallest and the largest catalogue. Stages use prepared data of the stages before.

    python benchmarks/scale.py                                  # 13k and 130k labels: minutes
    python benchmarks/scale.py --labels 13k 130k 1300k          # the largest: about half an hour on two cores
    python benchmarks/scale.py --stages score --labels 130k     # one stage
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import report

SCORED = 100  # labels per query


def prepare(name: str, cache: Path) -> None:
    """Make the data and write the prepared copy."""
    from xmcbench.data import load

    load(name, cache_dir=cache)


def open_copy(name: str, cache: Path) -> None:
    """Check and open the prepared copy."""
    from xmcbench.data import load

    load(name, cache_dir=cache)


def show(name: str, cache: Path) -> None:
    """What `datasets show` does."""
    from xmcbench.data.prepared import default_data_dir, find_source, load, prepared_directory
    from xmcbench.data.prepared_copy import read_statistics

    load(name, cache_dir=cache)
    read_statistics(prepared_directory(find_source(name), default_data_dir(), cache))


def tokenizer(name: str, cache: Path) -> None:
    """Train the tokenizer of `tiny`."""
    from xmcbench.data import load
    from xmcbench.engine.encoders.tokenizer import tiny_tokenizer

    tiny_tokenizer(load(name, cache_dir=cache).train.texts, cache)


def tokenise(name: str, cache: Path) -> None:
    """Tokenise training queries and labels."""
    from xmcbench.data import load
    from xmcbench.engine.encoders.prepared_tokens import prepare_tokens

    prepare_tokens(load(name, cache_dir=cache), "tiny", cache, lambda *_: None)


def open_tokens(name: str, cache: Path) -> None:
    """Find the tokenizer and the tokens in the cache."""
    tokenise(name, cache)


def score(name: str, cache: Path) -> float:
    """Check made predictions of the test split, and compute all metrics with their intervals."""
    import numpy as np

    from xmcbench.data import load
    from xmcbench.evaluation import DEFAULT_METRICS, check_predictions
    from xmcbench.evaluation.builtin import EVALUATORS
    from xmcbench.evaluation.scoring import score_predictions
    from xmcbench.trial.predictions import Predictions

    dataset = load(name, cache_dir=cache)
    queries, labels = dataset.test.targets.shape
    rng = np.random.default_rng(0)
    first, step = rng.integers(labels, size=(2, queries, 1))
    indices = ((first + (step % (labels // SCORED) + 1) * np.arange(SCORED)) % labels).astype(np.int32)
    predictions = Predictions(indices, np.tile(np.linspace(1, 0, SCORED, dtype=np.float32), (queries, 1)))
    started = time.perf_counter()
    check_predictions(predictions, queries, labels, dataset.ignore_test)
    score_predictions(predictions, dataset, DEFAULT_METRICS, {each.name: each for each in EVALUATORS})
    return time.perf_counter() - started


STAGES: dict[str, Callable[[str, Path], float | None]] = {
    stage.__name__: stage for stage in (prepare, open_copy, show, tokenizer, tokenise, open_tokens, score)
}


def measure(stage: str, name: str, cache: Path) -> dict[str, Any]:
    """Run a stage in a process of its own: seconds, CPU seconds and peak memory."""
    command = [sys.executable, __file__, "--run", stage, "--labels", name, "--cache", str(cache)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{stage} of {name} failed: {ended.stderr.strip().splitlines()[-1]}")
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def run_stage(stage: str, name: str, cache: Path) -> None:
    """In the process of a stage: run it and print what it took. A stage may return its seconds without set-up."""
    import xmcbench.data
    import xmcbench.engine.encoders.prepared_tokens  # noqa: F401 (imports are no part of a stage)

    started, cpu = time.perf_counter(), time.process_time()
    seconds = STAGES[stage](name, cache)
    seconds = time.perf_counter() - started if seconds is None else seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "cpu seconds": time.process_time() - cpu, "peak GiB": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", nargs="+", default=["13k", "130k"])
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--cache", type=Path, help="keep prepared data here [default: a folder that is removed]")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--run", choices=list(STAGES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_stage(args.run, args.labels[0], args.cache)
        return
    with tempfile.TemporaryDirectory() as scratch:
        cache = args.cache or Path(scratch)
        rows = [
            {"stage": stage, "labels": labels} | measure(stage, f"catalog-{labels}", cache)
            for labels in args.labels
            for stage in STAGES
            if stage in args.stages
        ]
    for row in rows:
        same = [other for other in rows if other["stage"] == row["stage"]]
        if row is same[-1] and len(same) > 1:
            row["exponent"] = _exponent(same[0], row)
    report("scale", rows, args.out)


def _exponent(first: dict[str, Any], last: dict[str, Any]) -> float:
    return math.log(last["seconds"] / first["seconds"]) / math.log(_size(last["labels"]) / _size(first["labels"]))


def _size(labels: str) -> float:
    return float(labels.rstrip("km")) * {"k": 1e3, "m": 1e6}.get(labels[-1], 1)


if __name__ == "__main__":
    main()
