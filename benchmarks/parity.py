"""Trained results of DEXML's public code and of ours: the same data, initial weights and settings, several seeds.

The code is a clone of github.com/nilesh2797/DEXML, which stays where it is. Data are exported in its layout. Both start
from the same small DistilBERT with random weights, and both are scored by xmcbench. The interval of the difference is
that of `xmcbench compare`, over test queries and seeds. What ended is kept in `--out`: a run that was interrupted goes
on.

    pip install accelerate matplotlib pandas
    python benchmarks/parity.py --code DIR                 # an hour on two cores
    python benchmarks/parity.py --code DIR --seeds 2 --only in-batch
    python benchmarks/parity.py --code DIR --markdown docs/measurements.md    # also the table there
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import yaml
from report import options, report, write_table

from xmcbench.data import load
from xmcbench.data.dataset import Dataset
from xmcbench.data.exporting import write_texts
from xmcbench.data.texts import take
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.evaluation.evaluator import find_evaluators
from xmcbench.evaluation.imported.record import import_predictions
from xmcbench.evaluation.scoring import Scores
from xmcbench.evaluation.significance import Sample, difference
from xmcbench.evaluation.stored import stored_samples
from xmcbench.runs.plan import Display
from xmcbench.runs.progress import display
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.store import Store

NAME, MADE = "parity", "catalog-1k-test-4k"
WIDTH, LENGTH, EPOCHS, BATCH, RATE = 128, 32, 8, 128, 1e-3
METRICS = ["P@1", "P@5", "R@100"]
# The settings of either side by case. In the public code, shortlists that are made after epochs 2, 4 and 6 serve the
# epochs after them.
OURS: dict[str, dict[str, Any]] = {
    "in-batch": {"negatives": "in-batch"},
    "hard": {"negatives": "hard", "refresh_start": 3, "refresh_every": 2, "shortlist": 100},
    "all": {"negatives": "all"},
}
THEIRS = {
    "in-batch": {"net": "dist-de-hnm", "neg_type": "in-batch", "eval_interval": EPOCHS},
    "hard": {"net": "dist-de-hnm", "neg_type": "shorty", "hard_neg_start": 2, "hard_neg_topk": 100, "eval_interval": 2},
    "all": {"net": "dist-de-all", "neg_type": "none", "eval_interval": EPOCHS},
}


def make_encoder(texts: Sequence[str], place: Path) -> None:
    """Save a DistilBERT of two layers with random weights, and the tokenizer of `nano`, unless that is done."""
    if place.exists():
        return
    import torch
    from transformers import DistilBertConfig, DistilBertModel

    tokenizer = trained_tokenizer(texts, place.parent / "cache")
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=4 * WIDTH, dropout=0.0,
        max_position_embeddings=LENGTH, attention_dropout=0.0, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    DistilBertModel(config).save_pretrained(place)
    tokenizer.save_pretrained(place)


def export(dataset: Dataset, place: Path, train: int | None = None, test: int | None = None) -> None:
    """Write a dataset in the layout of the public code, which is one of ours, without queries that have no labels.

    `train` and `test` are the most queries that are written; all by default.
    """
    (place / "raw").mkdir(parents=True, exist_ok=True)
    write_texts(dataset.label_texts, place / "raw" / "Y.txt")
    for name, split, most in (("trn", dataset.train, train), ("tst", dataset.test, test)):
        labelled = np.flatnonzero(np.diff(split.targets.indptr))[:most]
        write_texts(take(split.texts, labelled), place / "raw" / f"{name}_X.txt")
        sp.save_npz(place / f"Y.{name}.npz", sp.csr_matrix(split.targets[labelled]))


def their_command(settings: dict[str, Any], name: str, seed: int, out: Path) -> list[str]:
    """The command that trains with the public code, from within its folder, and writes `<out>/<name>.npz`."""
    settings = settings | {
        "tf": str(out / "encoder"), "tf_pooler": "mean", "tf_max_len": LENGTH, "gc_bsz": 1000, "lr": RATE,
        "amp_encode": False, "data_tokenization": "online", "expname": name, "save": False,
    }  # fmt: skip
    config = out / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"__dependency__": "configs/dual-encoder.yaml"} | settings))
    driver = Path(__file__).with_name("parity_dexml.py").absolute()
    return [sys.executable, str(driver), str(seed), str(WIDTH), str(out / f"{name}.npz"), str(config)]


def theirs(case: str, seed: int, dataset: Dataset, code: Path, out: Path) -> Scores:
    """The scores of the public code's last epoch."""
    target = out / f"{case}-{seed}.npz"
    if not target.exists():
        settings = THEIRS[case] | {"dataset": NAME, "bsz": BATCH, "num_epochs": EPOCHS}
        command = their_command(settings, f"{case}-{seed}", seed, out)
        ended = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{case} with seed {seed}: {ended.stderr.strip().splitlines()[-1]}")
    return import_predictions(target, dataset, METRICS, find_evaluators(METRICS)).scores


def of_scores(scores: Sequence[Scores], metric: str) -> Sample:
    """A metric of the public code; its seeds are none of ours."""
    values = np.array([own.metrics[metric] for own in scores])
    return Sample(
        tuple(-1 - seed for seed in range(len(scores))), values, np.stack([s.resampled[metric] for s in scores])
    )


def ours(cases: list[str], seeds: int, data: Path, out: Path, display: Display) -> dict[str, dict[str, Sample]]:
    """Our trials, by case and metric."""
    suite = out / "suite.yaml"
    methods = {case: {"method": "dexml", "positives": "one", **OURS[case]} for case in cases}
    settings = {"batch_size": BATCH, "learning_rate": RATE, "max_query_length": LENGTH, "max_label_length": LENGTH}
    content = {
        "name": "parity", "datasets": [NAME], "seeds": list(range(seeds)), "budget": {"epochs": EPOCHS},
        "encoder": {"name": str(out / "encoder"), "pooling": "mean"}, "methods": methods, "settings": settings,
        "metrics": METRICS,
    }  # fmt: skip
    suite.write_text(yaml.safe_dump(content))
    runner = Runner(Settings(suite=suite, data=data, store=out / "store"))
    records = list(runner.run(runner.plan(), display))
    store = Store(out / "store")
    return {
        case: stored_samples(store, [record for record in records if record.trial.label == case], METRICS)
        for case in cases
    }


def compared(case: str, metric: str, mine: Sample, its: Sample) -> dict[str, Any]:
    """A row of the table, in per cent. The seeds of either side have nothing in common."""
    found = difference(mine, its)
    low, high = found.interval
    return {
        "case": case, "metric": metric, "seeds": len(mine.seeds),
        "ours": 100 * mine.mean, "sd": 100 * np.std(mine.values_S, ddof=1),
        "theirs": 100 * its.mean, "their sd": 100 * np.std(its.values_S, ddof=1),
        "difference": 100 * found.value, "from": 100 * low, "to": 100 * high,
        "equal within": 100 * found.equivalence_margin,
    }  # fmt: skip


def printed(row: dict[str, Any]) -> dict[str, str]:
    """A row as the document shows it."""
    return {
        "negatives": row["case"], "metric": row["metric"], "seeds": str(row["seeds"]),
        "ours": f"{row['ours']:.2f} ± {row['sd']:.2f}", "theirs": f"{row['theirs']:.2f} ± {row['their sd']:.2f}",
        "difference": f"{row['difference']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})",
        "equal within": f"{row['equal within']:.2f}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__, seeds=10, out=Path("benchmarks/results/parity"))
    parser.add_argument("--code", type=Path, required=True, help="a clone of github.com/nilesh2797/DEXML")
    parser.add_argument("--only", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into a Markdown file")
    asked = parser.parse_args()
    out = asked.out.absolute()
    data = asked.code / "Datasets"
    export(load(MADE, data, out / "cache"), data / NAME)
    dataset = load(NAME, data, out / "cache")
    make_encoder(dataset.train.texts, out / "encoder")
    with display() as shown:
        mine = ours(asked.only, asked.seeds, data, out, shown)
    rows = []
    for case in asked.only:
        its = []
        for seed in range(asked.seeds):
            its.append(theirs(case, seed, dataset, asked.code, out))
            print(f"{case}, their seed {seed}: {its[-1].metrics}", flush=True)
        rows += [compared(case, name, mine[case][name], of_scores(its, name)) for name in METRICS]
    if asked.markdown:
        write_table("parity", [printed(row) for row in rows], asked.markdown)
    report("parity", rows, asked.out)


if __name__ == "__main__":
    main()
