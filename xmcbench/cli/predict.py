"""`xmcbench predict`: the labels that the model of a finished trial ranks for new texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing

if TYPE_CHECKING:
    from xmcbench.data import Texts
    from xmcbench.trial.method import Method
    from xmcbench.trial.predictions import Predictions
    from xmcbench.trial.record import Record


def predict(
    run: RunName,
    text: Annotated[list[str] | None, Option(help="A text; may be given several times.")] = None,
    file: Annotated[
        Path | None, Option(allow_dash=True, help="A file with one text per line; - is standard input.")
    ] = None,
    labels: Annotated[
        Path | None, Option(help="A file with one label per line, which are ranked beside those of training.")
    ] = None,
    k: Annotated[int, Option("-k", min=1, help="Labels per text.")] = 10,
    format: Annotated[Literal["table", "json"], Option(help="json has full precision.")] = "table",
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank the labels of a trial's dataset for new texts, best first. Added labels have the ids after the others."""
    texts = [*(text or []), *(lines(file) if file else [])]
    if not texts:
        raise XMCBenchError("predict: no texts: expected --text TEXT or --file FILE")
    _, known, method = trained(run, seed, store, data)
    added = lines(labels) if labels else []
    if added:
        method.add_labels(added)
    elif labels:
        raise XMCBenchError(f"{labels}: found no label, expected one per line")
    predictions = method.predict(texts, min(k, len(known) + len(added)))
    rankings = zip(texts, labels_of(predictions, [*known, *added] if added else known), strict=True)
    answers = [{"text": text, "labels": ranked} for text, ranked in rankings]
    if format == "json":
        echo(json.dumps(answers, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        echo("\n\n".join(map(_table, answers)))


LARGEST = 1_000_000_000  # bytes of a file of texts


def lines(file: Path) -> list[str]:
    """The lines of a UTF-8 file or of standard input, which only a newline ends, as in a dataset."""
    from xmcbench.files.regular import read_regular

    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else read_regular(file, LARGEST)
        found = [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
        return found if found[-1] else found[:-1]
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"{file}: not UTF-8 (byte {problem.start})") from problem


def trained(run: str, seed: int | None, store: Path, data: Path) -> tuple[Record, Texts, Method]:
    """The trial, the label texts of its dataset and its model."""
    from xmcbench.cli.find import find_trial
    from xmcbench.runs.saved_model import load_saved_model
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_trial(place, run, seed)
    return record, label_texts(record, data), load_saved_model(place, record)


def label_texts(record: Record, data: Path) -> Texts:
    """The label texts of the trial's dataset, by label id."""
    from xmcbench.data import load

    trial = record.trial
    dataset = load(trial.dataset, data)
    if dataset.card.content_hash != trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {trial.dataset!r} has the content hash {dataset.card.content_hash[:12]}, "
            f"the trial ran on {trial.dataset_hash[:12]}: its labels may differ"
        )
    return dataset.label_texts


def labels_of(predictions: Predictions, labels: Texts) -> list[list[dict[str, Any]]]:
    """The labels of each text, best first; a method may return fewer than `k`."""
    return [
        [
            {"id": int(label), "label": labels[int(label)], "score": float(score)}
            for label, score in zip(row, scores, strict=True)
            if label >= 0
        ]
        for row, scores in zip(predictions.indices, predictions.scores, strict=True)
    ]


def _table(answer: dict[str, Any]) -> str:
    rows = [
        (rank, f"{label['score']:.4f}", " ".join(label["label"].split()))
        for rank, label in enumerate(answer["labels"], start=1)
    ]
    table = listing(rows, tablefmt="plain", colalign=("right", "right", "left")) if rows else ""
    return f"{answer['text']}\n{table or '  no label found'}"
