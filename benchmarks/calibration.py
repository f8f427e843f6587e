"""Scores as probabilities on the test split: their error before and after the map that held-out queries gave.

    python benchmarks/calibration.py --data DATA --datasets lf-tate-titles-16k lf-tibkat-15k --markdown docs/serving.md

Each method is trained once on each dataset, with held-out queries. Before: the logistic function of the scores, as
`serve` sends it for a model without calibration. The error is the expected calibration error of the best five labels of
the test queries. F1 is that of the best number of labels that is the same for all queries, chosen on the test split
itself, beside that of the labels from the threshold on, which was chosen on held-out queries.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import options, report, run

from xmcbench.data import Dataset, load
from xmcbench.data.pairs import binary, contains
from xmcbench.evaluation.calibration import NO_LIMIT, TOP, logistic, reliability
from xmcbench.evaluation.evaluator import stored_predictions
from xmcbench.runs.saved_model import load_calibration
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

DEXML = {"method": "dexml", "negatives": "in-batch"}
METHODS: dict[str, dict[str, Any]] = {
    "popular": {"method": "popular"},
    "tfidf-nn": {"method": "tfidf-nn"},
    "omikuji-plt": {"method": "omikuji-plt"},
    "dexml": DEXML,
    "sparse-ranker": {"method": "sparse-ranker", "first": DEXML},
}


def f1(labels: np.ndarray, true: np.ndarray, shown: np.ndarray, true_L: np.ndarray) -> tuple[float, float]:
    """micro-F1 and macro-F1 of the `shown` pairs, of which some are `true`: arrays of one shape."""
    size = len(true_L)
    hit_L, shown_L = (np.bincount(labels[pairs], minlength=size) for pairs in (shown & true, shown))
    tested = true_L > 0
    micro = 2 * hit_L.sum() / (shown_L.sum() + true_L.sum())
    return float(micro), float(np.mean(2 * hit_L[tested] / (shown_L + true_L)[tested]))


def row(record: Record, store: Store, dataset: Dataset) -> dict[str, Any]:
    """What the stored predictions of a trial show."""
    calibration = load_calibration(store, record)
    assert calibration is not None
    found, truth = stored_predictions(store, record, dataset), binary(dataset.test.targets)
    stored, true = found.indices >= 0, contains(truth, found.indices)
    probabilities, top = calibration.probability(found.scores), stored.copy()
    top[:, TOP:] = False
    before, after = (reliability(values[top], true[top]).error for values in (logistic(found.scores), probabilities))
    true_L = np.bincount(truth.indices, minlength=truth.shape[1])
    places = np.arange(found.k)
    fixed = {k: f1(found.indices, true, stored & (places < k), true_L) for k in range(1, 21)}
    best = max(fixed, key=lambda k: fixed[k][0])
    cut = calibration.cut
    shown = stored & cut.shows(probabilities, places)
    at_cut = f1(found.indices, true, shown, true_L)
    return {
        "dataset": record.trial.dataset, "method": record.trial.label, "P@1": record.metrics["P@1"],
        "error before": before, "after": after, "as held-out queries say": calibration.error,
        "best fixed k": best, "micro-F1 at it": fixed[best][0], "macro-F1 at it": fixed[best][1],
        "threshold": cut.least, "of the best": "all" if cut.most == NO_LIMIT else str(cut.most),
        "micro-F1 of the cut": at_cut[0], "macro-F1 of the cut": at_cut[1], "labels a text": shown.sum() / len(found),
    }  # fmt: skip


def shown(found: dict[str, Any]) -> dict[str, str]:
    """A row as the document shows it."""
    forms = {"P@1": "{:.1%}", "best fixed k": "{}", "labels a text": "{:.1f}"}
    return {
        name: value if isinstance(value, str) else forms.get(name, "{:.3f}").format(value).removesuffix("%")
        for name, value in found.items()
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--datasets", nargs="+", default=["catalog-5k"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--data", type=Path, default=Path("data"))
    given = parser.parse_args()
    suite = {
        "name": "calibration", "datasets": given.datasets, "budget": {"epochs": given.epochs},
        "selection": {"queries": 1000}, "methods": {label: METHODS[label] for label in given.methods},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        records = run(suite, store, given.data)
        datasets = {name: load(name, given.data) for name in given.datasets}
        order = {name: number for number, name in enumerate([*given.datasets, *given.methods])}
        records.sort(key=lambda record: (order[record.trial.dataset], order[record.trial.label]))
        rows = [row(record, Store(store), datasets[record.trial.dataset]) for record in records]
    report("calibration", rows, given.markdown, shown, by=("dataset", "method"))


if __name__ == "__main__":
    main()
