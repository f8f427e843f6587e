"""`xmcbench submit`: add a trial to the accepted results, and check the accepted results."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from xmcbench.cli.options import DataDir, StoreDir, trial_names
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xmcbench.data import Dataset
    from xmcbench.engine.planning.trials import Planner
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store
    from xmcbench_plugins.board.recount import Recount


def submit(
    runs: Annotated[
        list[str] | None,
        Argument(
            metavar="[RUN]...",
            help="Trials: keys or starts of them, labels, or dataset/label.",
            autocompletion=trial_names,
        ),
    ] = None,
    check: Annotated[bool, Option("--check", help="Check all accepted trials; submit nothing.")] = False,
    verify: Annotated[bool, Option("--verify", help="Verify accepted RUN by the store's runs of it.")] = False,
    retrain: Annotated[bool, Option("--retrain", help="Train accepted RUN again, with its seed, and compare.")] = False,
    withdraw: Annotated[bool, Option("--withdraw", help="Remove accepted RUN from the accepted results.")] = False,
    comment: Annotated[Path | None, Option(metavar="FILE", help="With --check: write the review as Markdown.")] = None,
    to: Annotated[Path, Option(metavar="DIR", help="The accepted results.")] = Path("leaderboard/measured"),
    base: Annotated[
        Path | None,
        Option(metavar="DIR", help="With --check: accepted results before; only costs of new trials are counted."),
    ] = None,
    verified: Annotated[Path, Option(metavar="FILE", help="The maintainers' list of verified trials.")] = Path(
        "leaderboard/verified.yaml"
    ),
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Check trials and add them to the accepted results, or remove them; with --check, check the accepted results.

    Exit code: 0 if nothing is wrong, 1 otherwise.
    """
    if check == bool(runs):
        raise XMCBenchError("submit: expected a RUN to hand in, or --check and no RUN")
    if comment is not None and not check:
        raise XMCBenchError("submit: --comment needs --check")
    if verify + retrain + withdraw + check > 1:
        raise XMCBenchError("submit: expected one of --check, --verify, --retrain and --withdraw")
    if not runs:
        problems = _check(to, _Checker(data), comment, verified, base)
    elif verify:
        problems = [line for run in runs for line in _verify(run, to, store, verified)]
    elif retrain:
        problems = [line for run in runs for line in _retrain(run, to, store, data, verified)]
    elif withdraw:
        problems = _withdraw(runs, to)
    else:
        problems = _hand_in(runs, to, store, _Checker(data))
    for problem in problems:
        echo(problem, err=True)
    raise Exit(1 if problems else 0)


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench submit`."""
    register(Command("submit", patience("submit")(submit)))


class _Checker:
    """Checks records against the datasets in the folder `data`."""

    def __init__(self, data: Path) -> None:
        from xmcbench.data import load

        self.data = data
        self.dataset: Callable[[str], Dataset] = cache(lambda name: load(name, data_dir=data))

    @cached_property
    def _planner(self) -> Planner:  # imports torch, which a check without new trials does not need
        from xmcbench.data.prepared import default_cache_dir
        from xmcbench.engine.planning.trials import HERE, Planner, machine_called

        return Planner(self.data, default_cache_dir(), machine_called(HERE))

    def recount(self, record: Record) -> Recount:
        """The costs of a trial, counted again."""
        from xmcbench_plugins.board.recount import recount

        return recount(record, self._planner)


def _verify(run: str, to: Path, place: Path, verified: Path) -> list[str]:
    """Write how close the runs of the store are to an accepted result: verified if they are equivalent."""
    from xmcbench.reporting.find import find_trial
    from xmcbench.reporting.rows import MARGIN
    from xmcbench.trial.store import Store
    from xmcbench_plugins.board import review

    accepted = Store(to)
    record = find_trial(accepted, run)
    outcome = review.verify(accepted, record, Store(place))
    review.write_verification(outcome, verified)
    verdict = "verified" if outcome.agrees else f"not verified within {MARGIN:g} point"
    echo(f"{verified}: {', '.join(outcome.records)} {verdict}: {outcome}")
    return []


def _retrain(run: str, to: Path, place: Path, data: Path, verified: Path) -> list[str]:
    """Train an accepted trial again, in a folder of the store, and write how it differs; a line if it does."""
    from tempfile import TemporaryDirectory

    from xmcbench.reporting.describe import reproducing_suite
    from xmcbench.reporting.find import find_trial
    from xmcbench.runs.progress import display
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.trial.store import Store
    from xmcbench_plugins.board import review

    accepted = Store(to)
    record = find_trial(accepted, run)
    with TemporaryDirectory(prefix="xmcbench-") as folder:
        suite = Path(folder) / "again.yaml"
        suite.write_text(reproducing_suite(record), encoding="utf-8")
        runner = Runner(Settings(suite=suite, data=data, store=place / "retrained", retry=True))
        (planned,) = plan = runner.plan()
        if planned.trial.key != record.key:
            raise XMCBenchError(f"{record.key}: its settings have the key {planned.trial.key} in this code")
        with display() as shown:
            (again,) = runner.run(plan, shown)
    outcome = review.compare_retrained(accepted, record, again)
    review.write_verification(outcome, verified)
    echo(f"{verified}: {record.key} {outcome}")
    return [] if outcome.agrees else [f"{record.key}: {outcome}: not the result of its settings"]


def _withdraw(runs: Sequence[str], to: Path) -> list[str]:
    """Remove accepted trials, and say of which configurations other seeds stay."""
    from xmcbench.reporting.find import described, find_trials
    from xmcbench.trial.store import Store
    from xmcbench_plugins.board import submission

    accepted = Store(to)
    gone = {record.key: record for run in runs for record in find_trials(accepted, run)}
    submission.mend_compact(to, {record.trial.dataset for record in gone.values()}, without=gone)
    written = submission.withdraw(to, list(gone.values()))
    stay = [record for record in accepted.records() if record.key not in gone]
    for record in gone.values():
        others = sorted(own.trial.seed for own in stay if own.but_seed == record.but_seed)
        echo(f"withdrawn: {described(record)}{f'; its seeds {others} stay' if others else ''}")
    echo(f"{', '.join(written)}: commit the change; CONTRIBUTING.md says what follows when accepted records change")
    return []


def _hand_in(runs: Sequence[str], to: Path, place: Path, checker: _Checker) -> list[str]:
    """Add trials to the accepted results, but those with which something is wrong."""
    from xmcbench.reporting.find import find_trials
    from xmcbench.trial.store import Store
    from xmcbench_plugins.analysis.processor_time import processor_time
    from xmcbench_plugins.board import acceptance, submission

    store, accepted, problems, good, known = Store(place), Store(to), [], [], set()
    of_accepted = accepted.records()
    for record in {record.key: record for run in runs for record in find_trials(store, run)}.values():
        before = accepted.record(record.key)
        if before and not record.metrics.keys() > before.metrics.keys():  # with more it takes the other's place
            echo(f"{record.key}: accepted before, in {accepted.place(record.key)}")
            known.add(record.trial.dataset)
            continue
        wrong = [*acceptance.outdated(record), *acceptance.problems(record)]
        wrong += submission.differences(store, record, checker.dataset(record.trial.dataset))
        wrong += submission.resampling(store, record)
        if not wrong:
            costs = checker.recount(record)
            wrong = costs.problems
        if wrong:
            problems += [f"not submitted: {record.key}: {problem}" for problem in wrong]
        else:
            good.append(record)
            echo(f"{record.key}: {len(record.metrics)} metrics recomputed, costs {costs}")
            if seconds := processor_time(record, of_accepted):
                echo(f"{record.key}: {seconds}")
    written = submission.accept(store, good, to) if good else []
    if datasets := known | {record.trial.dataset for record in good}:
        submission.mend_compact(to, datasets)
    if written:
        echo(f"written to {', '.join(written)}; commit it and open a pull request")
    return problems


def _check(folder: Path, checker: _Checker, comment: Path | None, verified: Path, base: Path | None) -> list[str]:
    """Every problem of every accepted trial, a line each; the review goes to `comment`.

    Costs are recounted of trials that are not in `base` as they are here.
    """
    from xmcbench.files.atomic import atomic_write
    from xmcbench.trial.store import Store, StoreError
    from xmcbench_plugins.analysis.processor_time import processor_time
    from xmcbench_plugins.board import acceptance, review, submission
    from xmcbench_plugins.board.verified import read_verifications

    if not folder.is_dir():
        raise XMCBenchError(f"{folder}: no such folder, expected the accepted results (--to DIR)")
    store, verifications = Store(folder), read_verifications(verified)
    before = {record.key: record for record in Store(base).records()} if base else {}
    unread, records, trials = [*store.packed.problems, *submission.stray_files(store)], [], store.trials()
    unread += [] if unread else submission.wrong_compact(store)
    for key in trials:
        try:
            records += [record] if (record := store.record(key)) else []
        except StoreError as problem:
            unread.append(str(problem))
    contradictions = acceptance.contradictions(records, before)
    unread += [
        f"{folder}: {key} ({before[key].trial.dataset}/{before[key].trial.label}) was accepted, and is not here"
        for key in sorted(before.keys() - {r.key for r in records})
    ]
    checked = []
    for record in records:
        try:
            wrong, recomputed = _check_one(store, record, checker)
        except StoreError as problem:
            wrong, recomputed = [str(problem)], False
        wrong += contradictions.get(record.key, [])
        new = before.get(record.key) != record
        wrong += acceptance.outdated(record) if base and new else ()
        costs = checker.recount(record) if new and not wrong else None
        wrong += costs.problems if costs else []
        again = None if wrong else verifications.of(store, record)
        seconds = processor_time(record, records) if costs and not wrong else None
        shown = "; ".join(str(part) for part in (costs, seconds) if part)
        checked.append(review.Checked(record, tuple(wrong), recomputed, again, shown))
    problems = unread + [f"{store.place(one.record.key)}: {problem}" for one in checked for problem in one.problems]
    recounted = sum(one.recomputed for one in checked)
    echo(f"{folder}: {len(trials)} trials, metrics of {recounted} recomputed, {len(problems)} problems")
    if comment is not None:
        text = review.comment(checked)
        with atomic_write(comment) as file:
            file.write((text + "".join(f"- {problem}\n" for problem in unread)).encode())
    return problems


def _check_one(store: Store, record: Record, checker: _Checker) -> tuple[list[str], bool]:
    """The problems of an accepted trial, and whether its metrics were recomputed."""
    from xmcbench.data.prepared import default_cache_dir, find_source, prepared_directory, read_statistics
    from xmcbench_plugins.board import acceptance, submission

    problems = [*acceptance.problems(record), *submission.misplaced(store, record)]
    if not problems:
        problems += submission.resampling(store, record)
    predicted = store.has_predictions(record.key)
    try:
        source = find_source(record.trial.dataset, checker.data)
    except UnknownNameError as problem:
        return [*problems, str(problem)], False
    try:
        dataset = checker.dataset(record.trial.dataset)
    except XMCBenchError as problem:
        echo(f"{store.place(record.key)}: metrics not recomputed: {problem}")
        return problems, False
    if source.of_machine and dataset.card.content_hash != record.trial.dataset_hash:
        echo(f"{store.place(record.key)}: metrics not recomputed: {source.name} of this machine is other data")
        return problems, False
    shared = read_statistics(prepared_directory(source, checker.data, default_cache_dir())).test_texts_in_train
    if record.code_digest and record.test_texts_in_train != shared:
        problems.append(f"it says that {record.test_texts_in_train} test texts are in the training part, {shared} are")
    return problems + list(submission.differences(store, record, dataset)), predicted
