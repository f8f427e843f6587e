"""Trained results of public code and of ours: the same data, initial weights and settings, several seeds.

The code is a clone that stays where it is: of github.com/nilesh2797/DEXML, of Extreme-classification/ngame, or of
kunaldahiya/prime with kunaldahiya/deepxml-base. Data are exported in its layout. Both sides start from the same small
DistilBERT with random weights, and both are scored by xmcbench. The interval of the difference is that of `xmcbench
compare`, over test queries and seeds. What ended is kept in `--out`: a run that was interrupted goes on.

    pip install accelerate matplotlib pandas               # DEXML
    pip install numba hnswlib nmslib six tqdm PYXCLIB      # NGAME and PRIME; a clone of kunaldahiya/pyxclib
    python benchmarks/parity.py --dexml DIR                # an hour on two cores
    python benchmarks/parity.py --dexml DIR --seeds 2 --only in-batch
    python benchmarks/parity.py --dexml DIR --ngame DIR --prime DIR --deepxml DIR --markdown docs/measurements.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from report import options, report, run

from xmcbench.data import load
from xmcbench.data.dataset import Dataset
from xmcbench.data.formats import write_targets, write_texts
from xmcbench.data.texts import take
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.evaluator import Scores, find_evaluators
from xmcbench.evaluation.significance import Sample, difference
from xmcbench.trial.store import Store
from xmcbench_plugins.scoring.imported import import_predictions

NAME, MADE = "parity", "catalog-1k-test-4k"
WIDTH, LENGTH, EPOCHS, BATCH, RATE = 128, 32, 8, 128, 1e-3
FREE, HARDEST = 256, 50  # free vectors and hardest negatives of PRIME, fewer than an epoch's last batch has
METRICS = ["P@1", "P@5", "R@100"]
CLONES = ("dexml", "ngame", "prime", "deepxml")
CLUSTERED = {"cluster_start": 3, "cluster_every": 1, "cluster_growth": [3, 4, 6], "weight_decay": 0.0}
SHORTLISTS = {"refresh_start": 3, "refresh_every": 2, "shortlist": 100}


@dataclass(frozen=True)
class Case:
    """The settings of either side: `ours` of a method, `theirs` of the clone `code`."""

    code: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


CASES = {
    "in-batch": Case(
        "dexml",
        {"method": "dexml", "positives": "one", "negatives": "in-batch"},
        {"neg_type": "in-batch", "eval_interval": EPOCHS},
    ),
    "hard": Case(  # in DEXML's code shortlists that are made after epochs 2, 4 and 6 serve the epochs after them
        "dexml",
        {"method": "dexml", "positives": "one", "negatives": "hard", **SHORTLISTS},
        {"neg_type": "shorty", "hard_neg_start": 2, "hard_neg_topk": 100, "eval_interval": 2},
    ),
    "ngame": Case(
        "ngame",
        {"method": "ngame", "first_hardest": None, "cluster_size": 1, **CLUSTERED},
        {
            "arch": "run_scripts/STransformer.json", "share_weights": True, "metric": "cosine",
            "loss": "triplet_margin_ohnm", "margin": 0.3, "loss_num_positives": 1,
            "loss_num_negatives": 10, "loss_agressive": True, "sampling_curr_epochs": [3, 4, 6],
            "sampling_refresh_interval": 1, "sampling_init_cluster_size": 1,
        },
    ),
    "prime": Case(
        "prime",
        # plugins/xmcbench_plugins/prime/README.md tells what the public code does otherwise than the paper. The public
        # code does not scale the vectors of texts; a score is a cosine in either case.
        {
            "method": "prime", "positives_per_query": 1, "positives": "one-by-draws", "centroids": "frozen",
            "regulariser_mean": "violators", "cluster_size": 4, "free_vectors": FREE, "free_vector_length": None,
            "hardest": HARDEST, **CLUSTERED,
        },
        {
            "use_amp": False, "loss_margin": 0.3, "loss_margin_min": 0.1, "loss_inter": 1.0, "loss_dual": 1.0,
            "loss_reg": 0.1, "loss_num_negatives": HARDEST, "loss_reduction": "custom",
            "sampling_curr_steps": [3, 4, 6], "sampling_update_steps": list(range(3, EPOCHS)),
            "sampling_A": 0.55, "sampling_B": 1.5, "sampling_init_cluster_size": 4,
        },
    ),
}  # fmt: skip


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


def export(dataset: Dataset, place: Path) -> None:
    """Write a dataset in the layout of DEXML's code, which is one of ours, without queries that have no labels."""
    (place / "raw").mkdir(parents=True, exist_ok=True)
    write_texts(dataset.label_texts, place / "raw" / "Y.txt")
    for name, split in (("trn", dataset.train), ("tst", dataset.test)):
        labelled = np.flatnonzero(np.diff(split.targets.indptr))
        write_texts(take(split.texts, labelled), place / "raw" / f"{name}_X.txt")
        sp.save_npz(place / f"Y.{name}.npz", sp.csr_matrix(split.targets[labelled]))


def export_tokens(dataset: Dataset, encoder: Path, place: Path) -> None:
    """Write token ids, masks and training labels as NGAME's and PRIME's code read them."""
    from transformers import AutoTokenizer

    place.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    texts = {"trn": dataset.train.texts, "tst": dataset.test.texts, "lbl": dataset.label_texts}
    for part, own in texts.items():
        made = tokenizer(list(own), padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
        for name in ("input_ids", "attention_mask"):
            np.save(place / f"{part}_{name}.npy", made[name])
    write_targets(dataset.train.targets, place / "trn_X_Y.txt")


def their_settings(code: str, name: str, clones: dict[str, Path], out: Path, dataset: Dataset) -> dict[str, Any]:
    """The settings of the clone `code` that are no case's own; `name` is that of the training."""
    encoder, folder = str(out / "encoder"), out / name
    folder.mkdir(exist_ok=True)
    if code == "dexml":
        return {
            "__dependency__": "configs/dual-encoder.yaml", "net": "dist-de-hnm", "dataset": NAME, "bsz": BATCH,
            "num_epochs": EPOCHS, "tf": encoder, "tf_pooler": "mean", "tf_max_len": LENGTH, "gc_bsz": 1000,
            "lr": RATE, "amp_encode": False, "data_tokenization": "online", "expname": name, "save": False,
        }  # fmt: skip
    queries, labels = len(dataset.train.texts), len(dataset.label_texts)
    both = {
        "optim": "AdamW", "learning_rate": RATE, "weight_decay": 0.0, "batch_size": BATCH, "num_epochs": EPOCHS,
        "num_points": queries, "warmup_steps": round(0.1 * EPOCHS * queries / BATCH),
        "data_dir": str(out / "tokens"), "model_dir": str(folder), "result_dir": str(folder),
        "sampling_type": "implicit", "sampling_threads": 1, "sampling_asynchronous": True,
    }  # fmt: skip
    if code == "ngame":
        return both | {"encoder_name": encoder, "embedding_dims": WIDTH, "max_length": LENGTH}
    texts = {"transformer": encoder, "embedding_dims": str(WIDTH), "dropout": 0}
    prototypes = {"embedding_dim": WIDTH, "num_aux_embeddings": FREE, "num_labels": labels, "device": "cpu"}
    parts = {"repr_dims": str(WIDTH), "encoder": {"stransformer": texts}, "transform_lbl": {"prime": prototypes}}
    network = folder / "network.json"
    network.write_text(json.dumps(parts))
    return both | {"arch": str(network), "deepxml": str(clones["deepxml"])}


def theirs(case: str, seed: int, clones: dict[str, Path], out: Path, dataset: Dataset) -> Scores:
    """The scores of the public code after its last epoch; it trains unless it did."""
    name, code = f"{case}-{seed}", CASES[case].code
    target, config = out / f"{name}.npz", out / f"{name}.yaml"  # JSON is a part of YAML
    if not target.exists():
        config.write_text(json.dumps(CASES[case].theirs | their_settings(code, name, clones, out, dataset)))
        driver = Path(__file__).with_name("parity_drivers.py").absolute()
        command: list[str | Path] = [sys.executable, driver, code, str(seed), config, target]
        place = clones[code] / {"dexml": ".", "ngame": "ngame", "prime": "prime"}[code]
        ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{case} with seed {seed}: {ended.stderr.strip().splitlines()[-1]}")
    found = import_predictions(target, dataset, METRICS, find_evaluators(METRICS)).scores
    print(f"{case}, their seed {seed}: {found.metrics}", flush=True)
    return found


def ours(cases: list[str], seeds: int, data: Path, out: Path) -> dict[str, dict[str, Sample]]:
    """Our trials, by case and metric."""
    encoder = {"name": str(out / "encoder"), "pooling": "mean"}
    methods = {name: CASES[name].ours | {"encoder": encoder | {"normalize": name != "prime"}} for name in cases}
    settings = {"batch_size": BATCH, "learning_rate": RATE, "max_query_length": LENGTH, "max_label_length": LENGTH}
    suite = {
        "name": "parity", "datasets": [NAME], "seeds": list(range(seeds)), "budget": {"epochs": EPOCHS},
        "methods": methods, "settings": settings, "metrics": METRICS,
    }  # fmt: skip
    records, store = run(suite, out / "store", data), Store(out / "store")
    return {name: stored_samples(store, [own for own in records if own.trial.label == name], METRICS) for name in cases}


def row(case: str, metric: str, mine: Sample, scores: Sequence[Scores]) -> dict[str, str]:
    """A row of the table, in per cent: the seeds of either side have nothing in common."""
    values_S = np.array([own.metrics[metric] for own in scores])
    resampled = np.stack([own.resampled[metric] for own in scores])
    its = Sample(tuple(-1 - seed for seed in range(len(scores))), values_S, resampled)
    found = difference(mine, its)
    low, high = found.interval
    own, other = (f"{100 * side.mean:.2f} ± {100 * np.std(side.values_S, ddof=1):.2f}" for side in (mine, its))
    return {
        "training": case, "metric": metric, "seeds": str(len(scores)), "ours": own, "theirs": other,
        "difference": f"{100 * found.value:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})",
        "equal within": f"{100 * found.equivalence_margin:.2f}",
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/parity"), help="data and what ended")
    for name in CLONES:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="a clone of that code")
    asked = parser.parse_args()
    clones = {name: vars(asked)[name].absolute() for name in CLONES if vars(asked)[name]}
    cases = [case for case in asked.only if CASES[case].code in clones]
    out = asked.out.absolute()
    data = clones["dexml"] / "Datasets" if "dexml" in clones else out / "data"
    export(load(MADE, data, out / "cache"), data / NAME)
    dataset = load(NAME, data, out / "cache")
    make_encoder(dataset.train.texts, out / "encoder")
    export_tokens(dataset, out / "encoder", out / "tokens")
    mine, rows = ours(cases, asked.seeds, data, out), []
    for case in cases:
        scores = [theirs(case, seed, clones, out, dataset) for seed in range(asked.seeds)]
        rows += [row(case, metric, mine[case][metric], scores) for metric in METRICS]
    report("parity", rows, asked.markdown, by=("training", "metric"))


if __name__ == "__main__":
    main()
