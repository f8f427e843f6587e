"""The score of the shared tasks LLMs4Subjects, for a released run of a system or for trials of this harness.

    python benchmarks/shared_task.py CLONE --folder CLONE/evaluation/system2/output
    python benchmarks/shared_task.py CLONE --trials KEY ... --store results --data data

A record of the test part has a type (`Book`) and a language (`de`), its cell. Precision, recall and F1 at k are means
over the records of a cell, F1 that of a cell's mean precision and mean recall, and a system has the mean over the ten
cells (D'Souza et al., SemEval-2025 Task 5, and the collection's evaluation/README.md). `micro` is the mean over all
records. Average recall is the mean of recall at each k. True labels are all official ones, also those that no training
record has, which a trial of `lf-tibkat-gnd-38k` cannot name, and all official test records, also those that this
dataset leaves out.

Shapes: R test records, K cut-offs, C cells.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import options, report

from xmcbench.data import load
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.evaluator import stored_predictions
from xmcbench.reporting.find import find_trial
from xmcbench.trial.store import Store
from xmcbench_plugins.sources.llms4subjects import TEST, LibraryRecord, library_records

CUTOFFS = tuple(range(5, 55, 5))
Ranked = Mapping[str, Sequence[str]]  # of each record's number, the subjects of a system, best first


def scores(gold: Iterable[LibraryRecord], ranked: Ranked, cutoffs: Sequence[int] = CUTOFFS) -> dict[str, float]:
    """The task's metrics as fractions, by name. A record without an answer counts as an empty answer.

    Precision divides by k however short the answer is, as the task's script does.
    Raises XMCBenchError without a record.
    """
    cells, hits, true = [], [], []
    for record in gold:
        first_place: dict[str, int] = {}
        for place, subject in enumerate(ranked.get(record.uid, ())):
            first_place.setdefault(subject, place)
        places = sorted(first_place[subject] for subject in record.subjects & first_place.keys())
        hits.append(np.searchsorted(places, cutoffs))
        true.append(len(record.subjects))
        cells.append(record.cell)
    if not cells:
        raise XMCBenchError("found no test record, expected some")
    names, cell_R = np.unique(cells, return_inverse=True)
    hits_RK, true_R = np.array(hits, np.float64), np.array(true, np.float64)
    precision_RK, recall_RK = hits_RK / np.array(cutoffs), hits_RK / true_R[:, None]
    member_CR = (cell_R == np.arange(len(names))[:, None]).astype(np.float64)
    member_CR /= member_CR.sum(1, keepdims=True)
    precision_CK, recall_CK = member_CR @ precision_RK, member_CR @ recall_RK
    both_CK = precision_CK + recall_CK
    f1_CK = np.divide(2 * precision_CK * recall_CK, both_CK, out=np.zeros_like(both_CK), where=both_CK > 0)
    values: dict[str, float] = {}
    for letter, of_cells in (("P", precision_CK), ("R", recall_CK), ("F1", f1_CK)):
        values |= {f"{letter}@{k}": float(value) for k, value in zip(cutoffs, of_cells.mean(0), strict=True)}
    values["average recall"] = float(recall_CK.mean())
    values["micro average recall"] = float(recall_RK.mean())
    return values


def released(folder: Path) -> dict[str, list[str]]:
    """The answers of a run in the task's form: `<type>/<language>/<record>.json` with a list `dcterms:subject`."""
    answers: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            listed = json.loads(path.read_bytes())["dcterms:subject"]
            if not (isinstance(listed, list) and all(isinstance(subject, str) for subject in listed)):
                raise TypeError("dcterms:subject is no list of texts")
        except (ValueError, KeyError, TypeError) as error:
            raise XMCBenchError(f"{path}: {error}, expected an object with a list `dcterms:subject`") from error
        answers[path.stem] = listed
    if not answers:
        raise XMCBenchError(f"{folder}: found no .json file, expected a run in the task's form")
    return answers


def of_trial(key: str, store: Path, data: Path) -> tuple[str, dict[str, list[str]]]:
    """The label and the answers of a trial on `lf-tibkat-gnd-38k`."""
    opened = Store(store)
    record = find_trial(opened, key)
    dataset = load(record.trial.dataset, data)
    predictions = stored_predictions(opened, record, dataset)
    folder = data / record.trial.dataset
    records, subjects = (_numbers(folder / f"{part}.json.gz") for part in ("tst", "lbl"))
    if (len(records), len(subjects)) != dataset.test.targets.shape:
        raise XMCBenchError(f"{folder}: expected the collection's own layout, a line for each record and subject")
    answers = zip(records, predictions.indices, strict=True)
    name = f"{record.trial.label}, seed {record.trial.seed}"
    return name, {uid: [subjects[label] for label in row if label >= 0] for uid, row in answers}


def _numbers(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["uid"] for line in file]


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else f"{value:.4f}" for name, value in row.items()}


def main(given: argparse.Namespace) -> None:
    gold = list(library_records(given.clone, TEST))
    systems = {"/".join(folder.parts[-2:]): released(folder) for folder in given.folder}
    systems |= dict(of_trial(key, given.store, given.data) for key in given.trials)
    rows = [{"system": name, **scores(gold, ranked, given.cutoffs)} for name, ranked in systems.items()]
    kept = ("P@5", "R@5", "F1@5", "R@20", "R@50", "average recall", "micro average recall")
    rows = [{name: row[name] for name in ("system", *kept) if name in row} for row in rows]
    report("shared_task", rows, given.markdown, _shown, by=("system",))


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("clone", type=Path, help="a clone of github.com/sciknoworg/subject-indexing-dataset")
    parser.add_argument("--folder", type=Path, nargs="+", default=[], help="runs in the task's form")
    parser.add_argument("--trials", nargs="+", default=[], help="keys of trials on lf-tibkat-gnd-38k")
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--cutoffs", type=int, nargs="+", default=list(CUTOFFS))
    main(parser.parse_args())
