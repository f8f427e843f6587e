"""`xmcbench serve`: answer requests for labels over HTTP, as Annif's backend `http` asks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench.data import Texts
    from xmcbench.runs.serving import Rank
    from xmcbench.trial.method import Method
    from xmcbench.trial.record import Record


def serve(
    run: RunName,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of this machine; 0 takes a free one.")] = 8080,
    uris: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The URIs of the labels, one per line in the order of their ids."),
    ] = None,
    annif: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a project and its vocabulary for Annif here.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Labels per text, unless a request has `limit`.")] = 10,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Answer requests for labels over HTTP with the model of a trial, on this machine alone, until interrupted.

    POST a form with `text` to /suggest; the answer has uri, label and score of the best labels, as the backend `http`
    of Annif expects. Scores are passed through the logistic function: between 0 and 1, in the same order.
    """
    from xmcbench.cli.find import find_trial
    from xmcbench.cli.predict import label_texts
    from xmcbench.runs.saved_model import load_saved_model
    from xmcbench.runs.serving import server, write_project
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_trial(place, run, seed)
    labels = label_texts(record, data)
    names = _uris(uris, record, len(labels))
    method = load_saved_model(place, record)
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

    from xmcbench.cli.predict import labels_of

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
    from urllib.parse import quote

    from xmcbench.cli.predict import lines
    from xmcbench.errors import XMCBenchError

    if file is None:
        return [f"urn:xmcbench:{quote(record.trial.dataset)}:{label}" for label in range(num_labels)]
    found = [line.strip() for line in lines(file)]
    if len(found) != num_labels:
        raise XMCBenchError(f"{file}: found {len(found):,} URIs, expected one for each of {num_labels:,} labels")
    if bad := next((n for n, uri in enumerate(found, start=1) if not uri or any(c.isspace() for c in uri)), None):
        raise XMCBenchError(f"{file}:{bad}: found {found[bad - 1]!r}, expected a URI")
    return found
