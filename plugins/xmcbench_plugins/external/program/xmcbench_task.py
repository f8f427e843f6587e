"""The interface of a Python program that is a method: `Task` reads the folder and writes the answers.

This file needs numpy and scipy and nothing of xmcbench. Programs find it on their path. Legend: T queries, L labels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import scipy

_loaded = {}  # what `Task.loaded` returned, by function and path: a resident program predicts many times


class Task:
    """The task that the command line names: `program.py fit FOLDER` or `program.py predict FOLDER`."""

    def __init__(self, arguments=None):
        arguments = sys.argv[1:] if arguments is None else arguments
        self.stage, self.folder = arguments[0], Path(arguments[1])
        self.facts = json.loads((self.folder / "task.json").read_bytes())
        self.settings = self.facts["settings"]
        self.num_labels = self.facts["num_labels"]
        self.model = self.folder / "model"  # fit writes it, predict reads it

    def loaded(self, load, path):
        """What `load(path)` returns: of a resident program the same object each time."""
        place = Path(path).resolve()  # `folder` is gone after the task, what `model` leads to stays
        key = f"{load.__module__}.{load.__qualname__}", place
        if key not in _loaded:
            _loaded[key] = load(type(path)(place))
        return _loaded[key]

    @property
    def seed(self):
        """The trial's seed as 32 bits, which most libraries take."""
        return self.facts["seed"] % (1 << 31)

    @property
    def budget(self):
        """Limits by name, as in {"device_seconds": 600}."""
        return self.facts["budget"]

    @property
    def k(self):
        """The number of labels to predict per query."""
        return self.facts["k"]

    def texts(self, name):
        """The texts of train.txt, labels.txt or queries.txt."""
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]

    def matrix(self, name="targets"):
        """The CSR matrix [training queries, L] of targets.npz or ignore.npz."""
        return scipy.sparse.csr_matrix(scipy.sparse.load_npz(self.folder / f"{name}.npz"))

    def progress(self, fraction, **metrics):
        """Report that `fraction` of the training is done."""
        with (self.folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"fraction": fraction, "metrics": metrics}) + "\n")

    def spend(self, **amounts):
        """Say what training spent, as in epochs=3, num_parameters=1000; seconds and memory are measured outside."""
        (self.folder / "spent.json").write_text(json.dumps(amounts), encoding="utf-8")

    def predict(self, scores):
        """Hand in the CSR matrix [T, L] of scores."""
        scipy.sparse.save_npz(self.folder / "predictions.npz", scipy.sparse.csr_matrix(scores))

    def predict_rows(self, rows):
        """Hand in a list of (label, score) pairs for each query."""
        counts = np.array([len(row) for row in rows])
        labels = np.array([label for row in rows for label, _ in row], dtype=np.int64)
        scores = np.array([score for row in rows for _, score in row], dtype=np.float32)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        self.predict(scipy.sparse.csr_matrix((scores, labels, indptr), shape=(len(rows), self.num_labels)))
