"""fastText as a program of the method `external`: a classifier for each label on averaged word and bigram vectors.

Settings are those of fastText's tutorial for texts with many labels (https://fasttext.cc/docs/en/supervised-tutorial.html)
but for the learning rate: with the tutorial's 0.5 training ended in NaN on thousands of labels, so it has the default.
Needs fastText (`pip install fasttext-wheel 'numpy<2'`) and nothing of xmcbench.
"""

import json
import sys
from pathlib import Path

import fasttext

TUTORIAL = {"lr": 0.1, "epoch": 25, "wordNgrams": 2, "bucket": 200_000, "dim": 50, "loss": "ova", "thread": 1}
PREFIX = "__label__"


def fit(folder: Path) -> None:
    texts = (folder / "train.txt").read_text(encoding="utf-8").split("\n")
    targets = (folder / "targets.txt").read_text(encoding="utf-8").split("\n")
    rows = folder / "fasttext.txt"
    with rows.open("w", encoding="utf-8") as file:
        for text, labels in zip(texts, targets, strict=False):
            if labels:
                file.write(" ".join([*(f"{PREFIX}{label}" for label in labels.split()), text.lower()]) + "\n")
    model = fasttext.train_supervised(str(rows), verbose=0, **TUTORIAL)
    (folder / "model").mkdir(exist_ok=True)
    model.save_model(str(folder / "model" / "fasttext.bin"))


def predict(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    model = fasttext.load_model(str(folder / "model" / "fasttext.bin"))
    queries = (folder / "queries.txt").read_text(encoding="utf-8").split("\n")[: task["num_queries"]]
    with (folder / "predictions.txt").open("w", encoding="utf-8") as file:
        for query in queries:
            labels, scores = model.predict(query.lower(), k=task["k"])
            pairs = zip(labels, scores, strict=True)
            file.write(" ".join(f"{label.removeprefix(PREFIX)}:{score:.6f}" for label, score in pairs) + "\n")


if __name__ == "__main__":
    {"fit": fit, "predict": predict}[sys.argv[1]](Path(sys.argv[2]))
