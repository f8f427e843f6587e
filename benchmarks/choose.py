"""What `xmcbench tune` recommends, beside what a practitioner would run alone: a row for each dataset.

python benchmarks/choose.py lf-tate-titles-16k debian-packages --data DIRECTORY --rows 4000 --minutes 20 --work FOLDER
    --markdown docs/tuning.md

The training part of each dataset is split afresh, a fifth for testing; `--rows` takes evenly spaced rows of a large
one. Alone run scikit-learn's LinearSVC for each label (which `linear-ovr` is with all negatives), BM25 neighbours, and
Parabel (Omikuji, where its environment is there), with their own settings and the same split, and fastText if
`--fasttext` names a Python that has it. Differences are paired over test rows, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import yaml
from report import options, put

from xmcbench.data import Dataset, load
from xmcbench.data.dataset import Split
from xmcbench.data.source import Draft
from xmcbench.data.texts import take
from xmcbench.evaluation.significance import Sample, difference, samples
from xmcbench.reporting.words import number
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.datasets.exporting import export

METRICS = ("nDCG@5", "P@1")
ALONE: dict[str, dict[str, Any]] = {
    "LinearSVC": {"method": "linear-ovr", "negatives": 0},
    "BM25 neighbours": {"method": "tfidf-nn", "weighting": "bm25"},
    "Parabel": {"method": "omikuji-plt"},
}
FASTTEXT = Path(__file__).parent / "fasttext_program.py"
TEST = 5  # every fifth row
MINUTES = "minutes"  # the column of what `tune` took
MARK = "<!-- table of choose.py -->"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--rows", type=int, default=10_000, help="training rows that are taken, at most")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--fasttext", metavar="PYTHON", help="a Python with fastText (benchmarks/fasttext_program.py)")
    parser.add_argument("--work", type=Path, default=Path("choose"), help="folder for data, store and suites")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.fasttext:
        ALONE["fastText"] = {"method": "external", "command": [given.fasttext, str(FASTTEXT)]}
    text = written(ALONE, [row(name, given) for name in given.datasets], given.rows, given.minutes)
    print(text, flush=True)
    if given.markdown:
        put(text, given.markdown, MARK)


def written(alone: Iterable[str], rows: Sequence[Sequence[str]], most: int, minutes: float) -> str:
    """The table of the datasets' `rows`, and what time they had and took.

    `alone` names the methods that ran alone; each dataset had at most `most` rows, and `minutes` for the tuning.
    """
    header = ["dataset", "rows, labels", "`tune` recommends", MINUTES, *METRICS]
    header += [*(f"{name} alone" for name in alone), "best?"]
    table = [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]
    longer = [over for row in rows if (over := float(row[header.index(MINUTES)]) - minutes) > 0]
    took = (
        f"{number(len(longer), 'dataset')} took up to {max(longer):.1f} minutes longer"
        if longer
        else "none took longer"
    )
    return "\n".join([*table, "", f"Each dataset had {minutes:g} minutes for at most {most:,} rows; {took}."])


def row(name: str, given: argparse.Namespace) -> list[str]:
    """The row of a dataset."""
    dataset, data, store = f"{name}-fresh", given.work / "data", given.work / "results"
    if not (data / dataset).exists():
        fresh = fresh_split(load(name, given.data), given.rows)
        export(fresh, data / dataset, Draft(name=dataset), layout="json")
    places = ["--data", str(data), "--store", str(store)]
    started, suite = time.monotonic(), given.work / f"tuned-{name}.yaml"
    xmcbench("tune", dataset, "--minutes", f"{given.minutes:g}", "--out", str(suite), *places)
    minutes = (time.monotonic() - started) / 60
    xmcbench("run", str(suite_alone(dataset, given.work)), *places)
    chosen, *others = records(Store(store), dataset, [*yaml.safe_load(suite.read_text())["methods"], *ALONE])
    assert chosen is not None
    own = of_test(Store(store), chosen)
    differences, best = [], "best"
    for other in others:
        if other is None or not other.metrics:
            differences.append("-")
            continue
        apart = difference(of_test(Store(store), other)[METRICS[0]], own[METRICS[0]])
        low, high = (100 * bound for bound in apart.interval)
        differences.append(f"{100 * apart.value:+.1f} ({low:+.1f} to {high:+.1f})")
        if apart.value > 0:
            best = "no" if apart.significant else "within its interval" if best == "best" else best
    card = load(dataset, data).card
    sizes = f"{card.num_train:,} + {card.num_test:,}, {card.num_labels:,}"
    scores = [f"{100 * chosen.metrics[metric]:.1f}" for metric in METRICS]
    return [name, sizes, f"`{chosen.trial.label}`", f"{minutes:.1f}", *scores, *differences, best]


def xmcbench(*arguments: str) -> None:
    """Run a command of xmcbench; its output goes to standard error."""
    subprocess.run([sys.executable, "-m", "xmcbench", *arguments], check=True, stdout=sys.stderr)


def suite_alone(dataset: str, work: Path) -> Path:
    """The suite of the methods that run alone."""
    path = work / f"alone-{dataset}.yaml"
    suite = {"name": f"alone-{dataset}", "datasets": [dataset], "budget": {"device_seconds": 7200}, "methods": ALONE}
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    return path


def records(store: Store, dataset: str, labels: Sequence[str]) -> list[Record | None]:
    """The newest record with test metrics of each label, None where there is none."""
    known = [record for record in store.records() if record.trial.dataset == dataset and record.metrics]
    newest = {record.trial.label: record for record in sorted(known, key=lambda record: record.ended)}
    return [newest.get(label) for label in labels]


def of_test(store: Store, record: Record) -> dict[str, Sample]:
    """The metrics of a trial with their values on resamples of the test rows."""
    return samples([record], [store.resampled(record, METRICS)])


def fresh_split(dataset: Dataset, most: int) -> Dataset:
    """A new split of at most so many evenly spaced training rows, and the labels that they have."""
    texts, targets = dataset.train.texts, dataset.train.targets
    step = -(-len(texts) // most)
    chosen = np.arange(0, len(texts), step)
    labels = np.flatnonzero(np.bincount(targets[chosen].indices, minlength=targets.shape[1]))
    is_test = np.arange(len(chosen)) % TEST == 0
    splits = []
    for places in (chosen[~is_test], chosen[is_test]):
        own = sp.csr_array(sp.csc_array(targets[places])[:, labels])
        splits.append(Split(list(take(texts, places)), own))
    train, test = splits
    sizes = {"num_train": len(train.texts), "num_test": len(test.texts), "num_labels": len(labels)}
    card = dataset.card.model_copy(update={**sizes, "content_hash": ""})
    empty = [sp.csr_array(split.targets.shape, dtype=np.float32) for split in splits]
    return Dataset(card, train, test, list(take(dataset.label_texts, labels)), *empty)


if __name__ == "__main__":
    main()
