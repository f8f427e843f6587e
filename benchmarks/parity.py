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

The last one also writes the table there; rows of other cases stay.
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
from report import options, report
from trials import run

from xmcbench.data import load
from xmcbench.data.dataset import Dataset
from xmcbench.data.formats import write_targets, write_texts
from xmcbench.data.texts import take
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.evaluator import Scores, find_evaluators
from xmcbench.evaluation.imported import import_predictions
from xmcbench.evaluation.significance import Sample, difference
from xmcbench.trial.store import Store

NAME, MADE = "parity", "catalog-1k-test-4k"
WIDTH, LENGTH, EPOCHS, BATCH, RATE = 128, 32, 8, 128, 1e-3
FREE, HARDEST = 256, 50  # free vectors and hardest negatives of PRIME, fewer than an epoch's last batch has
METRICS = ["P@1", "P@5", "R@100"]
CLUSTERED = {"cluster_start": 3, "cluster_every": 1, "cluster_growth": [3, 4, 6], "weight_decay": 0.0}


@dataclass(frozen=True)
class Case:
    """The settings of either side: `ours` of a method, `theirs` of the clone that the option `code` names.

    In DEXML's code, shortlists that are made after epochs 2, 4 and 6 serve the epochs after them.
    """

    code: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


SHORTLISTS = {"refresh_start": 3, "refresh_every": 2, "shortlist": 100}
CASES = {
    "in-batch": Case(
        "dexml",
        {"method": "dexml", "positives": "one", "negatives": "in-batch"},
        {"net": "dist-de-hnm", "neg_type": "in-batch", "eval_interval": EPOCHS},
    ),
    "hard": Case(
        "dexml",
        {"method": "dexml", "positives": "one", "negatives": "hard", **SHORTLISTS},
        {"net": "dist-de-hnm", "neg_type": "shorty", "hard_neg_start": 2, "hard_neg_topk": 100, "eval_interval": 2},
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
        # What the public code does otherwise than the paper: plugins/xmcbench_prime/README.md.
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


def their_command(code: str, settings: dict[str, Any], name: str, seed: int, out: Path) -> list[str]:
    """The command that trains with the public code, from within its folder, and writes `<out>/<name>.npz`."""
    config = out / f"{name}.yaml"  # of which JSON is a part
    config.write_text(json.dumps(settings))
    driver = Path(__file__).with_name("parity_drivers.py").absolute()
    return [sys.executable, str(driver), code, str(seed), str(config), str(out / f"{name}.npz")]


def dexml_settings(name: str, out: Path) -> dict[str, Any]:
    """Settings of DEXML's code that all trainings with it share."""
    return {
        "__dependency__": "configs/dual-encoder.yaml", "tf": str(out / "encoder"), "tf_pooler": "mean",
        "tf_max_len": LENGTH, "gc_bsz": 1000, "lr": RATE, "amp_encode": False, "data_tokenization": "online",
        "expname": name, "save": False,
    }  # fmt: skip


@dataclass(frozen=True)
class PublicCode:
    """Clones by name, the folder of results, and the dataset: what a training with public code needs."""

    clones: dict[str, Path]
    out: Path
    dataset: Dataset

    def scores(self, case: str, seed: int) -> Scores:
        """The scores of the public code after its last epoch."""
        name, code = f"{case}-{seed}", CASES[case].code
        target = self.out / f"{name}.npz"
        if not target.exists():
            settings = {"dexml": self._of_dexml, "ngame": self._of_ngame, "prime": self._of_prime}[code](name)
            command = their_command(code, CASES[case].theirs | settings, name, seed, self.out)
            place = self.clones[code] / {"dexml": ".", "ngame": "ngame", "prime": "prime"}[code]
            ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise SystemExit(f"{case} with seed {seed}: {ended.stderr.strip().splitlines()[-1]}")
        return import_predictions(target, self.dataset, METRICS, find_evaluators(METRICS)).scores

    def _of_dexml(self, name: str) -> dict[str, Any]:
        return dexml_settings(name, self.out) | {"dataset": NAME, "bsz": BATCH, "num_epochs": EPOCHS}

    def _of_both(self, name: str) -> dict[str, Any]:
        """What NGAME's and PRIME's code name alike."""
        folder = self.out / name
        folder.mkdir(exist_ok=True)
        queries = len(self.dataset.train.texts)
        return {
            "optim": "AdamW", "learning_rate": RATE, "weight_decay": 0.0, "batch_size": BATCH, "num_epochs": EPOCHS,
            "num_points": queries, "warmup_steps": round(0.1 * EPOCHS * queries / BATCH),
            "data_dir": str(self.out / "tokens"), "model_dir": str(folder), "result_dir": str(folder),
            "sampling_type": "implicit", "sampling_threads": 1, "sampling_asynchronous": True,
        }  # fmt: skip

    def _of_ngame(self, name: str) -> dict[str, Any]:
        encoder = {"encoder_name": str(self.out / "encoder"), "embedding_dims": WIDTH, "max_length": LENGTH}
        return self._of_both(name) | encoder

    def _of_prime(self, name: str) -> dict[str, Any]:
        labels = len(self.dataset.label_texts)
        encoder = {"transformer": str(self.out / "encoder"), "embedding_dims": str(WIDTH), "dropout": 0}
        prototypes = {"embedding_dim": WIDTH, "num_aux_embeddings": FREE, "num_labels": labels, "device": "cpu"}
        network = self.out / f"{name}-network.json"
        parts = {"repr_dims": str(WIDTH), "encoder": {"stransformer": encoder}, "transform_lbl": {"prime": prototypes}}
        network.write_text(json.dumps(parts))
        return self._of_both(name) | {"arch": str(network), "deepxml": str(self.clones["deepxml"])}


def of_scores(scores: Sequence[Scores], metric: str) -> Sample:
    """A metric of the public code; its seeds are none of ours."""
    values = np.array([own.metrics[metric] for own in scores])
    return Sample(
        tuple(-1 - seed for seed in range(len(scores))), values, np.stack([s.resampled[metric] for s in scores])
    )


def ours(cases: list[str], seeds: int, data: Path, out: Path) -> dict[str, dict[str, Sample]]:
    """Our trials, by case and metric."""
    # PRIME's code does not scale the vectors of texts; a score is a cosine in either case.
    encoder = {"name": str(out / "encoder"), "pooling": "mean"}
    methods = {
        case: {**CASES[case].ours, "encoder": encoder | ({"normalize": False} if case == "prime" else {})}
        for case in cases
    }
    settings = {"batch_size": BATCH, "learning_rate": RATE, "max_query_length": LENGTH, "max_label_length": LENGTH}
    suite = {
        "name": "parity", "datasets": [NAME], "seeds": list(range(seeds)), "budget": {"epochs": EPOCHS},
        "methods": methods, "settings": settings, "metrics": METRICS,
    }  # fmt: skip
    records = run(suite, out / "store", data)
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
        "training": row["case"], "metric": row["metric"], "seeds": str(row["seeds"]),
        "ours": f"{row['ours']:.2f} ± {row['sd']:.2f}", "theirs": f"{row['theirs']:.2f} ± {row['their sd']:.2f}",
        "difference": f"{row['difference']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})",
        "equal within": f"{row['equal within']:.2f}",
    }  # fmt: skip


def main() -> None:
    known = dict.fromkeys(("dexml", "ngame", "prime", "deepxml"), (Path, "a clone of that code"))
    asked = options(__doc__, seeds=10, out=Path("benchmarks/results/parity"), only=CASES, **known).parse_args()
    clones = {name: vars(asked)[name].absolute() for name in known if vars(asked)[name]}
    asked.only = [case for case in asked.only if CASES[case].code in clones]
    out = asked.out.absolute()
    data = out / "data" if "dexml" not in clones else clones["dexml"] / "Datasets"
    export(load(MADE, data, out / "cache"), data / NAME)
    dataset = load(NAME, data, out / "cache")
    make_encoder(dataset.train.texts, out / "encoder")
    export_tokens(dataset, out / "encoder", out / "tokens")
    public = PublicCode(clones, out, dataset)
    mine = ours(asked.only, asked.seeds, data, out)
    rows = []
    for case in asked.only:
        its = []
        for seed in range(asked.seeds):
            its.append(public.scores(case, seed))
            print(f"{case}, their seed {seed}: {its[-1].metrics}", flush=True)
        rows += [compared(case, name, mine[case][name], of_scores(its, name)) for name in METRICS]
    report("parity", rows, asked, printed, by=("training", "metric"))


if __name__ == "__main__":
    main()
