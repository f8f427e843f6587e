"""A small store and cache with results of every kind, and everything that a user can read from them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench, Heard

from xmcbench.cli import main
from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

LIGHT: dict[str, dict[str, Any]] = {"ok": {"method": "fake-ok"}, "words": {"method": "tfidf-nn"}}
ASKER = {"method": "fake-asker", "teacher": {"name": "annotated"}}
TRAINED = {"method": "dexml", "encoder": "tiny", "batch_size": 4}


class Killed(BaseException):
    """Ends a trial on its way, as a signal does."""


def run_suite(root: Path, methods: dict[str, dict[str, Any]]) -> list[Record]:
    """Run the methods in this process; the results are in `root`/results, the cache in `root`/cache.

    Those that ask a teacher run on the zero-shot track.
    """
    bench = Bench(root)
    records: list[Record] = []
    for track in ("supervised", "zero-shot"):
        chosen = {name: method for name, method in methods.items() if ("teacher" in method) == (track == "zero-shot")}
        runner = bench.runner(bench.suite(chosen, track=track), debug=True)
        records += runner.run(runner.plan(), Heard())
    return records


def kill_after_checkpoints(root: Path, methods: dict[str, dict[str, Any]], count: int) -> None:
    """Run the methods with a checkpoint after each step, and end the run after `count` checkpoints."""
    from xmcbench.engine import checkpoint
    from xmcbench.engine.training import checkpoints

    save, saved = checkpoint.save, iter(range(1, count + 1))

    def save_and_die(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        if next(saved) == count:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SECONDS", -1.0)
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(Killed):
            run_suite(root, methods)


def reading(methods: dict[str, dict[str, Any]]) -> dict[str, Callable[[Path], Any]]:
    """The ways to read a store, by name. Each returns JSON types by trial, or raises XMCBenchError."""
    return {
        "run": lambda root: {record.key: [record.status, record.metrics] for record in run_suite(root, methods)},
        "records": lambda root: {record.key: record.metrics for record in Store(root / "results").records()},
        "resampled": _resampled,
        "rescore": _rescored,
        "predict": _predicted,
        "export": _exported,
    }


def _resampled(root: Path) -> dict[str, Any]:
    store = Store(root / "results")
    found = {record.key: store.resampled(record, list(record.metrics)) for record in store.records()}
    return {
        key: {name: values.tobytes().hex() for name, values in metrics.items()}
        for key, metrics in found.items()
        if metrics
    }


def _rescored(root: Path) -> dict[str, Any]:
    command("rescore", "--store", str(root / "results"), "--data", str(root / "data"))
    return {record.key: record.metrics for record in Store(root / "results").records()}


def _predicted(root: Path) -> dict[str, Any]:
    found = {}
    for record in Store(root / "results").records():
        places = ("--store", str(root / "results"), "--data", str(root / "data"))
        found[record.key] = command("predict", record.key, "--text", "train 3", "--format", "json", *places)
    return found


def _exported(root: Path) -> dict[str, Any]:
    table = root / "table.json"
    command("teachers", "export", "--store", str(root / "results"), "--format", "json", "--output", str(table))
    return {as_json([row["document"], row["label"]]): row for row in json.loads(table.read_text())}


def command(*arguments: str) -> str:
    """The output of a command. Raises XMCBenchError with what it prints as an error."""
    output = io.StringIO()
    with redirect_stdout(output):
        try:
            main([*arguments, "--debug"] if "--debug" in arguments else list(arguments))
        except SystemExit as ended:
            if ended.code:
                raise XMCBenchError(output.getvalue() or "ended with an error on the screen") from None
    return output.getvalue()


@contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """The warnings that the package logs in the block."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    ear, log = Ear(logging.WARNING), logging.getLogger("xmcbench")
    log.addHandler(ear)
    try:
        yield heard
    finally:
        log.removeHandler(ear)


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
