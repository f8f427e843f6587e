"""`xmcbench predict`, `serve` and `hub push`: what the model of a finished trial is good for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from typer import Argument, Option, Typer

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing

if TYPE_CHECKING:
    from xmcbench.data import Texts
    from xmcbench.runs.serving import Rank
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
    _, known, method = _trained(run, seed, store, data)
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


def _trained(run: str, seed: int | None, store: Path, data: Path) -> tuple[Record, Texts, Method]:
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


def serve(
    run: RunName,
    port: Annotated[int, Option(min=0, max=65_535, help="Port of this machine; 0 takes a free one.")] = 8080,
    uris: Annotated[
        Path | None, Option(metavar="FILE", help="The URIs of the labels, one per line in the order of their ids.")
    ] = None,
    annif: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write a project and its vocabulary for Annif here.")
    ] = None,
    k: Annotated[int, Option("-k", min=1, help="Labels per text, unless a request has `limit`.")] = 10,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Answer requests for labels over HTTP with the model of a trial, on this machine alone, until interrupted.

    POST a form with `text` to /suggest; the answer has uri, label and score of the best labels, as the backend `http`
    of Annif expects. Scores are passed through the logistic function: between 0 and 1, in the same order.
    """
    from xmcbench.runs.serving import server, write_project

    record, labels, method = _trained(run, seed, store, data)
    names = _uris(uris, record, len(labels))
    method.predict(["a text"], 1)  # a model that cannot predict says so before it serves
    with server(port, ranking(method, names, labels), k) as served:
        address = "http://{}:{}".format(*served.server_address[:2])
        if annif is not None:
            for path in write_project(annif, record, names, labels, f"{address}/suggest", k):
                echo(str(path))
        echo(f"{record.trial.dataset}/{record.trial.label}: {address}/suggest; Ctrl+C ends it", err=True)
        try:
            served.serve_forever()
        except KeyboardInterrupt:
            echo("ended", err=True)


def ranking(method: Method, uris: Sequence[str], labels: Texts) -> Rank:
    """What ranks the labels of one text: uri, label, and score between 0 and 1 of each."""
    import numpy as np

    def rank(text: str, k: int) -> list[dict[str, Any]]:
        (found,) = labels_of(method.predict([text], min(k, len(uris))), labels)
        return [
            {
                "uri": uris[one["id"]],
                "label": " ".join(one["label"].split()),
                "score": float(1 / (1 + np.exp(-np.clip(one["score"], -30, 30)))),
            }
            for one in found
        ]

    return rank


def _uris(file: Path | None, record: Record, num_labels: int) -> list[str]:
    """The URI of each label; without a file, names that tell the dataset and the id."""
    if file is None:
        return [f"urn:xmcbench:{quote(record.trial.dataset)}:{label}" for label in range(num_labels)]
    found = [line.strip() for line in lines(file)]
    if len(found) != num_labels:
        raise XMCBenchError(f"{file}: found {len(found):,} URIs, expected one for each of {num_labels:,} labels")
    if bad := next((n for n, uri in enumerate(found, start=1) if not uri or any(c.isspace() for c in uri)), None):
        raise XMCBenchError(f"{file}:{bad}: found {found[bad - 1]!r}, expected a URI")
    return found


hub = Typer(no_args_is_help=True, help="Publish trained models on the Hugging Face hub.")

LAYOUT = "modules.json"  # in a model that sentence-transformers opens


@hub.callback()
def _hub() -> None:
    pass


@hub.command("push")
def push(
    run: RunName,
    repository: Annotated[str, Argument(metavar="REPO", help="A model repository, as in user/name.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the files and the card; upload nothing.")] = False,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Upload the model of a finished trial with its record and a model card.

    A model that sentence-transformers opens has the texts of its labels beside it.
    """
    from xmcbench.cli.find import find_trial
    from xmcbench.files.hub import upload
    from xmcbench.reporting.describe import model_card
    from xmcbench.runs.saved_model import checked_model
    from xmcbench.trial.record import encode
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_trial(place, run, seed)
    model = checked_model(record, place)
    files: dict[str, Path | bytes] = {
        path.relative_to(model).as_posix(): path for path in sorted(model.rglob("*")) if path.is_file()
    }
    if LAYOUT in files:
        files["labels.json"] = json.dumps(list(label_texts(record, data)), ensure_ascii=False).encode()
    files["record.json"] = encode(record.without_paths().without_secrets())
    card = model_card(record, repository, LAYOUT in files)
    files["README.md"] = card.encode()
    if dry_run:
        echo("\n".join((*files, "", card)))
        return
    echo(upload(repository, files, f"{record.trial.dataset}/{record.trial.label}, {record.key}", private))
