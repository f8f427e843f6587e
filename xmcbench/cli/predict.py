"""`xmcbench predict`: a finished trial's model answers for texts of one's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from xmcbench.data import Texts
    from xmcbench.method import Method
    from xmcbench.predictions import Predictions
    from xmcbench.record import Record
    from xmcbench.store import Store


def predict(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A trial: its key or the beginning of it, or dataset/label.")
    ],
    text: Annotated[list[str] | None, typer.Option(help="A text to answer; may be given several times.")] = None,
    file: Annotated[
        Path | None, typer.Option(allow_dash=True, help="Texts to answer, one a line; - is standard input.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Labels a text.")] = 10,
    format: Annotated[Literal["table", "json"], typer.Option(help="json carries every digit.")] = "table",
    store: Annotated[Path, typer.Option(envvar="XMCBENCH_STORE", help="Where records are kept.")] = Path("results"),
    data: Annotated[Path, typer.Option(envvar="XMCBENCH_DATA", help="Where datasets are.")] = Path("data"),
) -> None:
    """Rank the labels of a finished trial's dataset for texts, best first."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.store import Store

    texts = [*(text or []), *(_lines(file) if file else [])]
    if not texts:
        raise XMCBenchError("predict: no texts; --text TEXT or --file FILE gives some")
    place = Store(store)
    record = find_trial(place, run)
    labels = _label_texts(record, data)
    predictions = _model(place, record).predict(texts, min(k, len(labels)))
    found = zip(texts, _answers(predictions, labels), strict=True)
    answers = [{"text": asked, "labels": ranked} for asked, ranked in found]
    typer.echo(_json(answers) if format == "json" else "\n\n".join(map(_table, answers)))


def find_trial(store: Store, name: str) -> Record:
    """The one finished trial with predictions that `name` means.

    A name is a key or its beginning, a label as suite or leaderboard have it, or `dataset/label`. Raises XMCBenchError
    where none or several are meant, and names them.
    """
    from xmcbench.errors import XMCBenchError, suggest
    from xmcbench.reporting.standings import SCORED

    records = {record.key: record for record in store.records()}
    if not records:
        raise XMCBenchError(f"{store.root}: no records yet; `xmcbench run SUITE` makes some")
    names = _names(records)
    meant = [key for key in records if name == key] or [
        key for key in records if name in names[key] or (name and key.startswith(name))
    ]
    found = [records[key] for key in meant if records[key].status in SCORED]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "\n".join(f"  {_described(record)}" for record in found)
        raise XMCBenchError(f"{name!r} is {len(found)} trials, a key means one:\n{listed}")
    if meant:
        raise XMCBenchError(f"{_described(records[meant[0]])} ended as {records[meant[0]].status}: it has no model")
    known = {f"{record.trial.dataset}/{record.trial.label}" for record in records.values() if record.status in SCORED}
    raise XMCBenchError(f"{store.root}: no trial is called {name!r}{suggest(name, known)}")


def _names(records: dict[str, Record]) -> dict[str, set[str]]:
    """What each trial is called beside its key."""
    from xmcbench.reporting import leaderboard

    names = {key: {record.trial.label} for key, record in records.items()}
    for group in leaderboard(records.values()).groups:
        for row in group.rows:  # which tells trials apart that share a label
            for key in row.keys:
                names[key].add(row.method)
    return {key: own | {f"{records[key].trial.dataset}/{name}" for name in own} for key, own in names.items()}


def _described(record: Record) -> str:
    from xmcbench.reporting.standings import budget_text

    trial = record.trial
    return f"{record.key} {trial.dataset}/{trial.label}, seed {trial.seed}, {budget_text(trial.budget.limits())}"


def _lines(file: Path) -> list[str]:
    """The lines of a file of UTF-8, or of standard input."""
    from xmcbench.errors import XMCBenchError

    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"{file}: not UTF-8 (byte {problem.start})") from problem


def _label_texts(record: Record, data: Path) -> Texts:
    """The texts of the labels that the trial's model knows by number."""
    from xmcbench.data import load
    from xmcbench.errors import XMCBenchError

    trial = record.trial
    dataset = load(trial.dataset, data)
    if dataset.card.content_hash != trial.dataset_hash:
        raise XMCBenchError(
            f"dataset {trial.dataset!r} has the content hash {dataset.card.content_hash[:12]}, "
            f"the trial ran on {trial.dataset_hash[:12]}: its labels may be others"
        )
    return dataset.label_texts


def _model(store: Store, record: Record) -> Method:
    """The trial's method as it was saved. Raises XMCBenchError where it cannot be had."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.execution.stages import method_of

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a bar for weights that are there in a moment
    directory = store.directory(record.key) / "model"
    if not directory.is_dir():
        raise XMCBenchError(f"{directory}: not there, so nothing can be predicted; `xmcbench run` makes it")
    try:
        method = method_of(record.trial)
        method.load(directory)
    except XMCBenchError:
        raise
    except Exception as problem:  # whatever the method's libraries make of a file that is damaged or missing
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{directory}: cannot be loaded: {reason}") from problem
    return method


def _answers(predictions: Predictions, labels: Texts) -> list[list[dict[str, Any]]]:
    """The labels of each text, best first; a method need not find as many as were asked for."""
    return [
        [
            {"id": int(label), "label": labels[int(label)], "score": float(score)}
            for label, score in zip(row, scores, strict=True)
            if label >= 0
        ]
        for row, scores in zip(predictions.indices, predictions.scores, strict=True)
    ]


def _json(answers: Sequence[dict[str, Any]]) -> str:
    import json

    return json.dumps(answers, indent=1, ensure_ascii=False, allow_nan=False)


def _table(answer: dict[str, Any]) -> str:
    from tabulate import tabulate

    rows = [
        (rank, f"{found['score']:.4f}", " ".join(found["label"].split()))
        for rank, found in enumerate(answer["labels"], start=1)
    ]
    table = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("right", "right", "left")) if rows else ""
    return f"{answer['text']}\n{table or '  no label found'}"
