"""`xmcbench submit`: add a trial to the accepted results, and check the accepted results."""

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
    check: Annotated[bool, typer.Option("--check", help="Check all accepted trials; submit nothing.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify accepted RUN by the store's runs of it.")] = False,
    comment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --check: write the review as Markdown.")
    ] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The accepted results.")] = Path("leaderboard/measured"),
    base: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --comment: accepted results before; only new trials are compared."),
    ] = None,
    verified: Annotated[Path, typer.Option(metavar="FILE", help="The maintainers' list of verified trials.")] = Path(
        "leaderboard/verified.yaml"
    ),
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Check a trial and add it to the accepted results; with --check, check the accepted results.

    Exit code: 0 if nothing is wrong, 1 otherwise.
    """
    from functools import cache

    from xmcbench.data import load
    from xmcbench.errors import XMCBenchError

    if check == (run is not None):
        raise XMCBenchError("submit: expected a RUN to hand in, or --check and no RUN")
    if comment is not None and not check:
        raise XMCBenchError("submit: --comment needs --check")
    dataset = cache(partial(load, data_dir=data))
    if run is None:
        problems = _check(to, dataset, comment, verified, base)
    else:
        problems = _verify(run, to, store, verified) if verify else _hand_in(run, to, store, dataset)
    for problem in problems:
        typer.echo(problem, err=True)
    raise typer.Exit(1 if problems else 0)


def _verify(run: str, to: Path, place: Path, verified: Path) -> list[str]:
    """Add the accepted trial to the verified ones if it lies within the corridor of the runs in the store."""
    from xmcbench.cli.find import find_trial
    from xmcbench.reporting import verification
    from xmcbench.trial.store import Store

    accepted = Store(to)
    record = find_trial(accepted, run)
    outcome = verification.verify(accepted, record, Store(place).records())
    known = verification.read_verifications(verified)
    verification.write_verifications({**known, record.key: outcome}, verified)
    typer.echo(f"{verified}: {record.key} verified by {len(outcome.seeds)} runs, {len(outcome.corridor)} metrics")
    return []


def _hand_in(run: str, to: Path, place: Path, dataset: Callable[[str], Dataset]) -> list[str]:
    """Add the trial to the accepted results, unless something is wrong with it."""
    from xmcbench.cli.find import find_trial
    from xmcbench.reporting import submission
    from xmcbench.trial.store import Store

    store = Store(place)
    record = find_trial(store, run)
    problems = [*submission.outdated(record), *submission.problems(record)]
    problems += submission.differences(store, record, dataset(record.trial.dataset))
    if problems:
        return [f"not submitted: {record.key}: {problem}" for problem in problems]
    directory = submission.accept(store, record, to)
    typer.echo(f"{directory}: written, {len(record.metrics)} metrics recomputed; commit it and open a pull request")
    return []


def _check(
    folder: Path, dataset: Callable[[str], Dataset], comment: Path | None, verified: Path, base: Path | None
) -> list[str]:
    """Every problem of every accepted trial, a line each; the review goes to `comment`."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.files.atomic import atomic_write
    from xmcbench.reporting import review, verification
    from xmcbench.trial.store import Store, StoreError

    if not folder.is_dir():
        raise XMCBenchError(f"{folder}: no such folder, expected the accepted results (--to DIR)")
    store, verifications = Store(folder), verification.read_verifications(verified)
    problems, checked, trials = [], [], sorted(folder.glob("trials/*"))
    for directory in trials:
        try:
            record = store.record(directory.name)
            if record is None:
                problems.append(f"{directory}: holds no record.json")
                continue
        except StoreError as problem:
            problems.append(str(problem))
            continue
        try:
            own, complete = _check_one(store.root, record, dataset)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:  # of a forged record
            own, complete = [f"cannot be checked: {type(problem).__name__}: {problem}".splitlines()[0]], False
        again = not own and verification.is_verified(store, record, verifications)
        checked.append(review.Checked(record, tuple(own), complete, again))
        problems += [f"{directory}: {problem}" for problem in own]
    recomputed = sum(one.recomputed for one in checked)
    typer.echo(f"{folder}: {len(trials)} trials, metrics of {recomputed} recomputed, {len(problems)} problems")
    if comment is not None:
        unread = "".join(
            f"- {problem}\n" for problem in problems if not any(p in problem for o in checked for p in o.problems)
        )
        with atomic_write(comment) as file:
            file.write((review.comment(store, checked, Store(base) if base else None) + unread).encode())
    return problems


def _check_one(folder: Path, record: Record, dataset: Callable[[str], Dataset]) -> tuple[list[str], bool]:
    """The problems of an accepted trial, and whether its metrics were recomputed."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting import submission
    from xmcbench.trial.store import Store

    store = Store(folder)
    directory = store.directory(record.key)
    problems = [*submission.problems(record), *submission.stray_files(directory)]
    if not (directory / "predictions.npz").exists():
        if not (directory / "predictions.sha256").exists():
            problems.append("neither predictions.npz nor predictions.sha256 is there")
        return problems, False
    try:
        own = dataset(record.trial.dataset)
    except XMCBenchError as problem:
        typer.echo(f"{directory}: metrics not recomputed: {problem}")
        return problems, False
    return problems + list(submission.differences(store, record, own)), True
