"""TF-IDF neighbours (`tfidf-nn`) of short titles: CPU seconds of fitting and of predicting, and the peak memory.

Titles have 5 to 12 words, drawn independently by Zipf's law from 100,000 words: the most frequent word is in a quarter
of the titles, as in real text. Each training title has three random labels; labels have titles of the same kind.

    OMP_NUM_THREADS=1 python benchmarks/neighbours.py                                        # the time of one thread
    OMP_NUM_THREADS=1 python benchmarks/neighbours.py --queries 2000 --texts 20000 --labels 5000  # a quick look
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy
import sklearn.feature_extraction.text  # noqa: F401 (imports are no part of the time)
import sparse_dot_topn  # noqa: F401
from report import options, report

from xmcbench.data import DatasetCard, TrainingData
from xmcbench.data.pairs import binary
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import Run
from xmcbench_tfidf import NearestNeighbours

WORDS, RANK_SHIFT = 100_000, 2.7  # the probability of the word of rank 0, 1, ... is proportional to 1 / (rank + shift)
FEWEST, MOST = 5, 12  # words of a title
LABELS_PER_TITLE = 3
STORED = 100  # labels per query


def titles(number: int, rng: np.random.Generator) -> list[str]:
    """`number` titles of words drawn by Zipf's law."""
    cumulated = np.cumsum(1 / (np.arange(WORDS) + RANK_SHIFT))
    lengths = rng.integers(FEWEST, MOST + 1, number)
    drawn = np.searchsorted(cumulated, rng.random(lengths.sum()) * cumulated[-1])
    words = [f"w{rank}" for rank in drawn]
    ends = np.cumsum(lengths)
    return [" ".join(words[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def training_data(num_texts: int, num_labels: int, rng: np.random.Generator) -> TrainingData:
    """Titles with random labels."""
    shape = num_texts, num_labels
    labels = rng.integers(num_labels, size=num_texts * LABELS_PER_TITLE)
    rows = np.repeat(np.arange(num_texts), LABELS_PER_TITLE)
    targets = binary(scipy.sparse.csr_array((np.ones(len(labels), np.float32), (rows, labels)), shape))
    card = DatasetCard(name="made", num_train=num_texts, num_test=1, num_labels=num_labels)
    nothing = scipy.sparse.csr_array(shape, dtype=np.float32)
    return TrainingData(card, titles(num_texts, rng), targets, titles(num_labels, rng), nothing)


def main() -> None:
    asked = options(__doc__, queries=55_000, texts=(275_000, "training queries"), labels=130_000).parse_args()
    rng = np.random.default_rng(0)
    train, queries = training_data(asked.texts, asked.labels, rng), titles(asked.queries, rng)
    method = NearestNeighbours(NearestNeighbours.Config())
    started = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        method.fit(train, Run(seed=0, budget=Budget(epochs=1), checkpoint=Path(scratch), cache=Path(scratch)))
    fitted = time.process_time()
    method.predict(queries, STORED)
    predicted = time.process_time()
    row = {
        "queries": asked.queries, "texts": asked.texts, "labels": asked.labels,
        "fit CPU s": fitted - started, "predict CPU s": predicted - fitted,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip
    report("neighbours", [row], asked.out)


if __name__ == "__main__":
    main()
