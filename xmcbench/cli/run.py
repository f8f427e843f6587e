"""`xmcbench run`: plan a suite, run its trials, print its leaderboard."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, confirm

from xmcbench.cli.options import (
    INTERRUPTED,
    AllowIncomplete,
    DataDir,
    DatasetNames,
    DryRun,
    EncoderName,
    Only,
    Sets,
    StoreDir,
    SuitePath,
    TeacherPrice,
    executor_names,
    tracker_names,
)
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo, listing, patience

if TYPE_CHECKING:
    from xmcbench.runs.executor import Executor
    from xmcbench.runs.plan import PlannedTrial
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.suite.tuning import Tune
    from xmcbench.teachers.costs import Price
    from xmcbench.tracking.tracker import Tracker
    from xmcbench.trial.record import Record
    from xmcbench.trial.trial import Trial


def run(
    suite: SuitePath,
    dry_run: DryRun = False,
    only: Only = None,
    sets: Sets = None,
    datasets: DatasetNames = None,
    encoder: EncoderName = None,
    allow: AllowIncomplete = False,
    data: DataDir = Path("data"),
    store: StoreDir = Path("results"),
    teacher_price: TeacherPrice = None,
    allow_network: Annotated[
        bool, Option("--allow-network", help="Run methods that connect to other hosts without asking first.")
    ] = False,
    retry: Annotated[bool, Option("--retry", help="Run failed trials again.")] = False,
    changed: Annotated[
        bool, Option("--changed", help="Run trials again if the code of their plugin has changed since.")
    ] = False,
    track: Annotated[
        list[str] | None,
        Option(
            metavar="NAME", help="Also log to a tracker, as tensorboard, mlflow or wandb.", autocompletion=tracker_names
        ),
    ] = None,
    debug: Annotated[bool, Option("--debug", help="Run in this process and show tracebacks.")] = False,
    plugins: Annotated[
        list[Path] | None,
        Option(
            "--plugin",
            metavar="FILE",
            help="A Python file with a plugin that is not installed. May be repeated.",
        ),
    ] = None,
    executor: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Where trials run: local (subprocesses of this machine) or ray (a Ray cluster).",
            autocompletion=executor_names,
        ),
    ] = "local",
    parallel: Annotated[
        int | None,
        Option(
            min=1,
            metavar="N",
            help="Trials that run at the same time on this machine. Their seconds are not ranked.",
            show_default="1, or one for each GPU",
        ),
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, metavar="N", help="Worker processes per trial.", show_default="1")
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        Option(min=0, metavar="N", help="GPUs per worker; 0 hides all.", show_default="1 if there are GPUs"),
    ] = None,
    address: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Ray: local starts a cluster on this machine, auto finds one; or ray://HOST:PORT.",
            show_default="local",
        ),
    ] = None,
    storage: Annotated[
        str | None, Option(metavar="URL", help="Ray: storage that all nodes can reach, if they cannot reach the store.")
    ] = None,
) -> None:
    """Run the trials of a suite that are not in the store yet, then print the suite's leaderboard.

    Exit code: 0 all trials ok, skipped or too large for their budget; 1 a trial failed; 2 invalid input; 130
    interrupted.
    """
    from xmcbench.plugins.registry import add_files, registry
    from xmcbench.runs.plan import exit_code
    from xmcbench.runs.runner import Settings
    from xmcbench.suite.resources import Share
    from xmcbench.teachers.costs import Price

    add_files(plugins or ())
    settings = Settings(
        suite=suite,
        data=data,
        store=store,
        sets=sets or (),
        datasets=datasets or (),
        encoder=encoder,
        allow=allow,
        only=only or (),
        retry=retry,
        changed=changed,
        debug=debug,
        executor=_executor(executor, debug, parallel, {"address": address, "storage": storage}),
        parallel=parallel,
        share=Share(workers=workers, gpus=gpus_per_worker),
        command=sys.argv,
    )
    trackers = [registry().thing("tracker", name)(store) for name in dict.fromkeys(track or ())]
    runner, records = _run(settings, dry_run, trackers, Price.parse(teacher_price), allow_network, note=True)
    if runner.suite.tables or runner.suite.equal:
        from xmcbench.api import function_of

        echo("\n" + function_of("tables")(runner.suite, [(record.trial, record) for record in records], runner.store))
    raise Exit(exit_code(records))


def _run(
    settings: Settings,
    dry_run: bool,
    trackers: Sequence[Tracker] = (),
    price: Price | None = None,
    allow_network: bool = False,
    note: bool = False,
) -> tuple[Runner, list[Record]]:
    """Print the plan of a suite, run it unless this is a dry run, and print the leaderboard.

    With a `note` on changes of the code that are not in git: these trials cannot be submitted.
    """
    from xmcbench.runs.plan import network_note
    from xmcbench.runs.runner import Runner

    with patience("opening datasets, planning"):
        read = _edited(settings.suite)
        runner = Runner(settings)
        plan = runner.plan()
        print_plan(runner, plan, price)
    if dry_run:
        raise Exit
    if (reached := network_note(runner.to_run(plan))) and not allow_network:
        if not sys.stdin.isatty():
            raise XMCBenchError(f"{reached}: expected --allow-network")
        confirm("Run them?", abort=True)
    from xmcbench.api import board_of
    from xmcbench.runs.progress import display, tracked
    from xmcbench.runs.tuning import run_plan
    from xmcbench.trial.provenance import uncommitted

    runs = bool(runner.to_run(plan))
    with patience("planning how many trials run at once"):
        if runs and runner.why_parallel:
            echo(f"note: {runner.why_parallel}\n", err=True)
    if note and runs and (files := uncommitted()):
        others = f" and {len(files) - 1} more" if len(files) > 1 else ""
        echo(f"note: git has uncommitted changes ({files[0]}{others}): these trials cannot be submitted\n", err=True)
    try:
        with display() as shown, tracked(shown, trackers) as events:
            records = run_plan(runner, plan, events)
    except KeyboardInterrupt:
        echo("interrupted: the next run resumes unfinished trials", err=True)
        raise Exit(INTERRUPTED) from None
    with patience("comparing the trials"):
        board = board_of(records, runner.suite.metrics, runner.store)
    echo(f"\n{board}")
    if _edited(settings.suite) != read:
        echo(
            f"note: {settings.suite} was edited during the run: these are the trials of the suite before the edit",
            err=True,
        )
    return runner, records


def _edited(suite: Path) -> tuple[int, int]:
    """The size and the time of the last change of a suite; zeros where it is gone."""
    try:
        state = suite.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _executor(where: str, debug: bool, parallel: int | None, settings: Mapping[str, str | None]) -> Executor | None:
    """The executor that the options ask for; None for the default."""
    if parallel is not None and parallel > 1 and (debug or where != "local"):
        other = "--debug" if debug else f"--executor {where}"
        raise XMCBenchError(f"--parallel is for subprocesses of this machine, found {other}: expected one of them")
    given = {name: value for name, value in settings.items() if value is not None}
    if where == "local" and not given:
        return None
    from xmcbench.plugins.registry import registry

    kind: type[Executor] = registry().thing("executor", where)
    for name in sorted(given.keys() - kind.options):
        others = [other.name for other in registry().all("executor") if name in other.thing.options]
        known = f"is a setting of --executor {' or '.join(others)}, which is not given" if others else "is not known"
        raise XMCBenchError(f"--{name} {known}")
    if debug:
        raise XMCBenchError(f"--debug runs in this process, --executor {where} in others: expected one of them")
    return kind(**given)


def _tuning(tune: Tune, trials: Sequence[Trial], entries: Mapping[str, str]) -> str:
    """A line about tuning, which comes before the plan and changes the settings and keys of its trials."""
    from xmcbench.reporting.rows import budget_text

    samples = f"{tune.num_samples} samples per method, {tune.searcher} search, scheduler {tune.scheduler}"
    budget = budget_text(tune.budget.limits()) if tune.budget else "of the trial"
    tuned = {(trial.dataset, trial.label) for trial in trials if tune.space[entries[trial.label]]}
    trainings = tune.trainings * len(tuned)
    return f"tuned first: {samples}, budget {budget}; about {trainings} trainings before the {len(trials)} below\n"


SHORT = 8  # characters of a key among several


def plan_table(plan: Sequence[PlannedTrial]) -> str:
    """A line for each trial; seeds for which the same is done share one, with the beginnings of their keys."""
    same: dict[tuple[str, ...], list[Trial]] = {}
    for planned in plan:
        own = planned.trial.label, planned.trial.dataset, str(planned.action), planned.reason
        same.setdefault(own, []).append(planned.trial)
    rows = []
    for (label, dataset, action, reason), trials in same.items():
        keys = [trial.key if len(trials) == 1 else trial.key[:SHORT] for trial in trials]
        rows.append((label, dataset, ", ".join(str(trial.seed) for trial in trials), " ".join(keys), action, reason))
    several = len(rows) < len(plan)
    headers = ("trial", "dataset", "seeds" if several else "seed", "keys" if several else "key", "plan")
    reasons = any(row[-1] for row in rows)
    shown = rows if reasons else [row[:-1] for row in rows]
    return listing(shown, [*headers, "reason"] if reasons else headers, colalign=("left",) * len(shown[0]))


def print_plan(runner: Runner, plan: Sequence[PlannedTrial], price: Price | None = None) -> None:
    """Print what each trial needs, the settings that follow, and what to expect of them."""
    from xmcbench.runs.plan import remarks
    from xmcbench.teachers.costs import teacher_costs

    trials, suite = [planned.trial for planned in plan], runner.suite
    notes = [*remarks(trials, runner.extents), *runner.predicted_failures(plan)]  # raises before anything is shown
    notes += teacher_costs(runner.to_run(plan), runner.extents, runner.store.root, price)
    if suite.tune:
        echo(_tuning(suite.tune, trials, {variant.label: variant.entry for variant in suite.variants}))
    echo(plan_table(plan) + "\n")
    if followed := suite.followed(trials):
        echo("\n".join(["settings that the suite leaves out, derived from the data and the budget:", *followed, ""]))
    for note in notes:
        echo(f"note: {note}", err=True)
