"""`xmcbench predict`: the labels that the model of a finished trial ranks for new texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing

if TYPE_CHECKING:
    from xmcbench.data import Texts
    from xmcbench.trial.method import Method
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
    model = trained(run, seed, store, data)
    if labels:
        model = model.with_labels(lines(labels), labels)
    rankings = zip(texts, model.rank(texts, k), strict=True)
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


@dataclass(frozen=True)
class Trained:
    """The model of a trial, and what its dataset tells of the labels that it ranks."""

    record: Record
    method: Method
    labels: Texts  # texts, by label id
    keys: Sequence[str]  # such as URIs, by label id; empty where the dataset has none
    language: str  # of the label texts; empty where the dataset does not say it

    def with_labels(self, added: Sequence[str], where: Path) -> Trained:
        """The same, ranking `added` too; they have no keys. Raises XMCBenchError where the method cannot."""
        if not added:
            raise XMCBenchError(f"{where}: found no label, expected one per line")
        self.method.add_labels(added)
        return replace(self, labels=[*self.labels, *added])

    def rank(self, texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        """The best `k` labels of each text, best first: id, text, score, and key where it has one.

        A method may return fewer than `k`.
        """
        found = self.method.predict(texts, min(k, len(self.labels)))
        return [
            [
                {
                    "id": int(label),
                    **({"key": self.keys[label]} if label < len(self.keys) else {}),
                    "label": self.labels[int(label)],
                    "score": float(score),
                }
                for label, score in zip(row, scores, strict=True)
                if label >= 0
            ]
            for row, scores in zip(found.indices, found.scores, strict=True)
        ]


def trained(run: str, seed: int | None, store: Path, data: Path) -> Trained:
    """The model of a trial, with the labels of its dataset."""
    from xmcbench.cli.find import find_trial
    from xmcbench.data.exporting import label_keys
    from xmcbench.data.prepared import find_source
    from xmcbench.runs.saved_model import load_saved_model
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_trial(place, run, seed)
    source = find_source(record.trial.dataset, data)
    labels = label_texts(record, data)
    method = load_saved_model(place, record)
    return Trained(record, method, labels, label_keys(source, data), source.draft.language)


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


def _table(answer: dict[str, Any]) -> str:
    rows = [
        (rank, f"{label['score']:.4f}", " ".join(label["label"].split()))
        for rank, label in enumerate(answer["labels"], start=1)
    ]
    table = listing(rows, tablefmt="plain", colalign=("right", "right", "left")) if rows else ""
    return f"{answer['text']}\n{table or '  no label found'}"
