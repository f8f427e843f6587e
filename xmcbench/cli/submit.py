"""`xmcbench submit`: a result for others to rely on, checked before it is handed in and by whoever reviews it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.options import RUN, DataDir, StoreDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from xmcbench.data import Dataset
    from xmcbench.trial.record import Record


def submit(
    run: Annotated[str | None, RUN] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify all that was handed in, and hand in nothing.")] = False,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where accepted results lie.")] = Path("leaderboard/measured"),
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Check a trial and write it to the accepted results; with --check, verify those that are there.

    Exit code: 0 nothing was found wrong, 1 something was.
    """
    from functools import cache

    from xmcbench.data import load
    from xmcbench.errors import XMCBenchError

    if check == (run is not None):
        raise XMCBenchError("submit: expected a RUN to hand in, or --check and no RUN")
    dataset = cache(partial(load, data_dir=data))
    found = _hand_in(run, to, store, dataset) if run is not None else _check(to, dataset)
    for problem in found:
        typer.echo(problem, err=True)
    raise typer.Exit(1 if found else 0)


def _hand_in(run: str, to: Path, place: Path, dataset: Callable[[str], Dataset]) -> list[str]:
    """Write the trial to the accepted results, unless something is wrong with it."""
    from xmcbench.cli.find import find_trial
    from xmcbench.reporting import submission
    from xmcbench.trial.store import Store

    store = Store(place)
    record = find_trial(store, run)
    found = [*submission.problems(record)]
    found += submission.differences(store, record, dataset(record.trial.dataset))
    if found:
        return [f"not submitted: {record.key}: {problem}" for problem in found]
    directory = submission.accept(store, record, to)
    typer.echo(f"{directory}: written, {len(record.metrics)} figures recomputed; commit it and open a pull request")
    return []


def _check(folder: Path, dataset: Callable[[str], Dataset]) -> list[str]:
    """Every problem of every accepted trial, a line each."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.trial.store import Store, StoreError

    if not folder.is_dir():
        raise XMCBenchError(f"{folder}: no such folder, expected the accepted results (--to DIR)")
    store = Store(folder)
    found, recomputed, trials = [], 0, sorted(folder.glob("trials/*"))
    for directory in trials:
        try:
            record = store.record(directory.name)
            if record is None:
                found.append(f"{directory}: holds no record.json")
                continue
        except StoreError as problem:
            found.append(str(problem))
            continue
        own, complete = _check_one(store.root, record, dataset)
        recomputed += complete
        found += [f"{directory}: {problem}" for problem in own]
    typer.echo(f"{folder}: {len(trials)} trials, figures of {recomputed} recomputed, {len(found)} problems")
    return found


def _check_one(folder: Path, record: Record, dataset: Callable[[str], Dataset]) -> tuple[list[str], bool]:
    """The problems of an accepted trial, and whether its figures could be computed again."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting import submission
    from xmcbench.trial.store import Store

    store = Store(folder)
    directory = store.directory(record.key)
    found = [*submission.problems(record), *submission.stray_files(directory)]
    if not (directory / "predictions.npz").exists():
        if not (directory / "predictions.sha256").exists():
            found.append("neither predictions.npz nor predictions.sha256 is there")
        return found, False
    try:
        own = dataset(record.trial.dataset)
    except XMCBenchError as problem:
        typer.echo(f"{directory}: figures not recomputed: {problem}")
        return found, False
    return found + list(submission.differences(store, record, own)), True
