"""`xmcbench predict`, `serve` and `hub push`: the model of a trial for texts, behind an address, or on the hub."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from typer import Argument, Option, Typer, confirm

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.errors import XMCBenchError, import_extra
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience
from xmcbench_plugins.serving.cost import answer_cost
from xmcbench_plugins.serving.predict import answers, lines, predict, trained
from xmcbench_plugins.serving.trained import Trained, same_dataset

if TYPE_CHECKING:
    from xmcbench_plugins.serving.server import Rank

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"]+")


def serve(
    run: RunName,
    port: Annotated[int, Option(min=0, max=65_535, help="Port of this machine; 0 takes a free one.")] = 8080,
    uris: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The URIs of the labels, one per line in the order of their ids. [default: the keys of the dataset]",
        ),
    ] = None,
    annif: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Write a project and its vocabulary for Annif into FOLDER/projects.d."),
    ] = None,
    language: Annotated[
        str | None,
        Option(metavar="CODE", help="Language of the label texts, for Annif. [default: that of the dataset]"),
    ] = None,
    k: Annotated[int, Option("-k", min=1, help="Labels per text, unless a request has `limit`.")] = 10,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Answer requests for labels over HTTP with the model of a trial, on this machine alone, until interrupted.

    POST a form with `text` to /suggest; the answer has uri, label and score of the best labels, as the backend `http`
    of Annif expects. A score is the probability of the label where the trial held out queries to fit it on, else the
    logistic function of the model's score, in the same order. A text without a word of the training data has no label.
    """
    for package in ("starlette", "uvicorn"):
        import_extra(package, "serve", "xmcbench serve")
    from xmcbench_plugins.serving.annif import write_project
    from xmcbench_plugins.serving.server import listen, server

    model = trained(run, seed, store, data)
    trial, names = model.record.trial, uris_of(uris, model)
    spoken = _language(language, model) if annif is not None else ""
    with listen(port) as taken, model.method.resident():
        model.rank(["a text"], 1)  # reads the known words; a model that cannot predict says so before it serves
        address = "http://{}:{}/suggest".format(*taken.getsockname()[:2])
        if annif is not None:
            commands = write_project(annif, model.record, names, model.labels, spoken, address, k)
            echo("\n".join([f"cd {annif}", *commands]))
        if model.calibration is None:
            echo("scores are no probabilities: none were fitted on held-out training queries (`selection`)", err=True)
        echo(f"{trial.dataset}/{trial.label}: {address}; Ctrl+C ends it", err=True)
        with suppress(KeyboardInterrupt):
            server(ranking(model, names), k, about(model)).run(sockets=[taken])
        echo("ended", err=True)


def ranking(model: Trained, uris: Sequence[str]) -> Rank:
    """What ranks the labels of texts: uri, label, and score between 0 and 1 of each."""
    from xmcbench.evaluation.calibration import logistic

    def rank(texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        return [
            [
                {
                    "uri": uris[one["id"]],
                    "label": " ".join(one["label"].split()),
                    "score": one["probability"] if "probability" in one else float(logistic(one["score"])),
                }
                for one in found
            ]
            for found in model.rank(texts, k)
        ]

    return rank


def about(model: Trained) -> dict[str, Any]:
    """What the server says of its model; Annif reads `is_trained` and `modification_time`."""
    trial = model.record.trial
    return {
        "name": f"{trial.dataset}/{trial.label}",
        "key": model.record.key,
        "labels": len(model.labels),
        "language": model.language,
        "threshold": None if model.calibration is None else model.calibration.cut.least,
        "most_labels": None if model.calibration is None else model.calibration.cut.most,
        "calibration_error": None if model.calibration is None else model.calibration.error,
        "is_trained": True,
        "modification_time": model.record.ended,
    }


def _language(given: str | None, model: Trained) -> str:
    if code := given or model.language:
        return code
    raise XMCBenchError(
        f"--annif: the dataset {model.record.trial.dataset} does not say the language of its label texts, "
        "expected --language CODE, as in en"
    )


def uris_of(file: Path | None, model: Trained) -> list[str]:
    """The URI of each label: of the file, or the dataset's keys; a key that is no URI, or an id, follows a prefix."""
    prefix, num_labels = f"urn:xmcbench:{quote(model.record.trial.dataset)}:", len(model.labels)
    if file is None and len(set(model.keys)) == num_labels:
        return [key if URI.fullmatch(key) else prefix + quote(key, safe="") for key in model.keys]
    if file is None:
        return [f"{prefix}{label}" for label in range(num_labels)]
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
    private: Annotated[bool, Option("--private", help="Make a new repository private; else it is public.")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask before a model with training texts is uploaded.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the files and the card; upload nothing.")] = False,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Upload the model of a finished trial with its record and a model card.

    A model that sentence-transformers opens has the texts of its labels beside it. Of a model that holds something of
    the training texts, as that of tfidf-nn holds their words and vectors, the command says so and asks.
    """
    from xmcbench.reporting.find import find_trial
    from xmcbench.runs.saved_model import checked_model
    from xmcbench.trial.method import build_method
    from xmcbench.trial.record import encode
    from xmcbench.trial.store import Store
    from xmcbench_plugins.serving.card import model_card
    from xmcbench_plugins.serving.hub import check_repository, upload

    check_repository(repository)
    place = Store(store)
    record = find_trial(place, run, seed)
    if record.parts:
        names = ", ".join(part.key for part in record.parts)
        raise XMCBenchError(f"{record.trial.label}: a fusion uses the models of its parts: push those: {names}")
    model = checked_model(record, place)
    files: dict[str, Path | bytes] = {
        path.relative_to(model).as_posix(): path for path in sorted(model.rglob("*")) if path.is_file()
    }
    if LAYOUT in files:
        files["labels.json"] = json.dumps(list(same_dataset(record, data).label_texts), ensure_ascii=False).encode()
    files["record.json"] = encode(record.without_paths().without_secrets())
    card = model_card(record, repository, LAYOUT in files)
    files["README.md"] = card.encode()
    if dry_run:
        echo("\n".join((*files, "", card)))
        return
    if (held := build_method(record.trial).saved_texts) and not yes:
        seen = "private" if private else "public (--private makes it private)"
        echo(f"the model contains parts of the training texts: {held}. If {repository} is new, it is {seen}", err=True)
        if not sys.stdin.isatty():
            raise XMCBenchError("nothing was uploaded: expected --yes, as there is nobody to ask")
        confirm("Upload it?", abort=True, err=True)
    echo(upload(repository, files, f"{record.trial.dataset}/{record.trial.label}, {record.key}", private))


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench predict`, `xmcbench serve`, `xmcbench answer-cost` and `xmcbench hub`."""
    register(Command("predict", patience("predict")(predict), answers))
    register(Command("serve", serve))
    register(Command("answer-cost", answer_cost))
    register(Command("hub", hub))
