"""Reading sparse text, the format of the Extreme Classification Repository, and TF-IDF neighbours of short titles.

Sparse text: random labels, five per row, read by both sides in turns; the matrices have to be equal. Titles have 5 to
12 words, drawn independently by Zipf's law from 100,000 words: the most frequent word is in a quarter of the titles, as
in real text. Each training title has three random labels; labels have titles of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import sklearn.feature_extraction.text  # noqa: F401 (imports are no part of the time)
import sparse_dot_topn  # noqa: F401
from peers import Places, Result
from report import in_turns, seconds_of

from xmcbench.data import DatasetCard, TrainingData
from xmcbench.data.formats import write_targets
from xmcbench.data.pairs import binary
from xmcbench.data.text_files import no_pairs, read_targets
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import Run
from xmcbench_tfidf import NearestNeighbours

WORDS, RANK_SHIFT = 100_000, 2.7  # the probability of the word of rank 0, 1, ... is proportional to 1 / (rank + shift)
FEWEST, MOST = 5, 12  # words of a title
STORED = 100  # labels per query
REPEATS = 3


def targets(rows: int, labels: int, each: int) -> sp.csr_array:
    """[rows, labels] of ones, `each` a row at random; a label that a row draws twice counts once."""
    drawn = np.random.default_rng(0).integers(labels, size=rows * each)
    starts = np.arange(0, len(drawn) + 1, each)
    return binary(sp.csr_array((np.ones(len(drawn), np.float32), drawn, starts), (rows, labels)))


def pyxclib(path: Path) -> sp.csr_array:
    """The matrix as pyxclib reads it."""
    from xclib.data.data_utils import read_sparse_file

    return read_sparse_file(str(path))


def sparse_text(places: Places) -> Result:
    written, path = targets(*((2000, 1000) if places.quick else (2_150_000, 1_300_000)), 5), places.out / "targets.txt"
    write_targets(written, path)
    sides: dict[str, Callable[[Path], sp.csr_array]] = {"xmcbench": read_targets}
    sides |= {"pyxclib": pyxclib} if find_spec("xclib") else {}
    for name, read in sides.items():
        assert (sp.csr_array(read(path)) != written).nnz == 0, f"{name} read another matrix"
    seconds = in_turns({name: partial(read, path) for name, read in sides.items()}, REPEATS, time.process_time)
    speeds = {name: path.stat().st_size / 1e6 / least for name, least in seconds.items()}
    peer = "pyxclib" if "pyxclib" in speeds else ""
    return Result("sparse text, read, 119 MB", speeds["xmcbench"], "MB/s", "100 MB/s", peer, speeds.get("pyxclib"))


def titles(number: int, rng: np.random.Generator) -> list[str]:
    """`number` titles of words drawn by Zipf's law."""
    cumulated = np.cumsum(1 / (np.arange(WORDS) + RANK_SHIFT))
    lengths = rng.integers(FEWEST, MOST + 1, number)
    words = [f"w{rank}" for rank in np.searchsorted(cumulated, rng.random(lengths.sum()) * cumulated[-1])]
    ends = np.cumsum(lengths)
    return [" ".join(words[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def neighbours(places: Places) -> Result:
    queries, texts, labels = (500, 2000, 1000) if places.quick else (55_000, 275_000, 130_000)
    rng, true = np.random.default_rng(0), targets(texts, labels, 3)
    card = DatasetCard(name="made", num_train=texts, num_test=1, num_labels=labels)
    train = TrainingData(card, titles(texts, rng), true, titles(labels, rng), no_pairs(true.shape))
    asked, method = titles(queries, rng), NearestNeighbours(NearestNeighbours.Config())

    def work() -> None:
        method.fit(train, Run(seed=0, budget=Budget(epochs=1), checkpoint=places.out, cache=places.out))
        method.predict(asked, STORED)

    what = "TF-IDF neighbours, 55k queries x 275k texts"
    return Result(what, seconds_of(work, time.process_time), "CPU s", "under a minute")


def results(places: Places) -> Iterator[Result]:
    yield sparse_text(places)
    yield neighbours(places)
