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
    from xmcbench.runs.runner import Runner
    from xmcbench.suite.tuning import Tune
    from xmcbench.teachers.costs import Price
    from xmcbench.tracking.tracker import Tracker
    from xmcbench.trial.record import Record
    from xmcbench.trial.trial import Trial

AllowNetwork = Annotated[
    bool, Option("--allow-network", help="Run methods that connect to other hosts without asking first.")
]
Retry = Annotated[bool, Option("--retry", help="Run failed trials again.")]
Changed = Annotated[bool, Option("--changed", help="Run trials again if the code of their plugin has changed since.")]
Trackers = Annotated[
    list[str] | None,
    Option(
        metavar="NAME", help="Also log to a tracker, as tensorboard, mlflow or wandb.", autocompletion=tracker_names
    ),
]
Debug = Annotated[bool, Option("--debug", help="Run in this process and show tracebacks.")]
PluginFiles = Annotated[
    list[Path] | None,
    Option("--plugin", metavar="FILE", help="A Python file with a plugin that is not installed. May be repeated."),
]
ExecutorName = Annotated[
    str,
    Option(
        metavar="NAME",
        help="Where trials run: local (subprocesses of this machine) or ray (a Ray cluster).",
        autocompletion=executor_names,
    ),
]
Parallel = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Trials that run at the same time on this machine. Their seconds are not ranked.",
        show_default="1, or one for each GPU",
    ),
]
WorkersOfTrial = Annotated[int | None, Option(min=1, metavar="N", help="Worker processes per trial.", show_default="1")]
GpusPerWorker = Annotated[
    float | None, Option(min=0, metavar="N", help="GPUs per worker; 0 hides all.", show_default="1 if there are GPUs")
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="Ray: local starts a cluster on this machine, auto finds one; or ray://HOST:PORT.",
        show_default="local",
    ),
]
RayStorage = Annotated[
    str | None, Option(metavar="URL", help="Ray: storage that all nodes can reach, if they cannot reach the store.")
]
SHORT = 8  # characters of a key among several


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
    allow_network: AllowNetwork = False,
    retry: Retry = False,
    changed: Changed = False,
    track: Trackers = None,
    debug: Debug = False,
    plugins: PluginFiles = None,
    executor: ExecutorName = "local",
    parallel: Parallel = None,
    workers: WorkersOfTrial = None,
    gpus_per_worker: GpusPerWorker = None,
    address: RayAddress = None,
    storage: RayStorage = None,
) -> None:
    """Run the trials of a suite that are not in the store yet, then print the suite's leaderboard.

    Exit code: 0 all trials ok, skipped or too large for their budget; 1 a trial failed; 2 invalid input; 130
    interrupted.
    """
    from xmcbench.plugins.registry import add_files
    from xmcbench.runs.plan import exit_code
    from xmcbench.runs.runner import Runner, Settings
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
    trackers = [_tracker(name, store) for name in dict.fromkeys(track or ())]
    price, before = Price.parse(teacher_price), _edited(settings.suite)
    with patience("opening datasets, planning"):
        runner = Runner(settings)
        plan = runner.plan()
        print_plan(runner, plan, price)
    if dry_run:
        raise Exit
    from xmcbench.api import board_of, function_of  # a dry run needs neither

    _ask_about_hosts(runner, plan, allow_network)
    _print_notes(runner, plan)
    records = _run(runner, plan, trackers)
    with patience("comparing the trials"):
        board = board_of(records, runner.suite.metrics, runner.store)
    echo(f"\n{board}")
    if _edited(settings.suite) != before:
        echo(
            f"note: {settings.suite} was edited during the run: these are the trials of the suite before the edit",
            err=True,
        )
    if runner.suite.tables or runner.suite.equal:
        echo("\n" + function_of("tables")(runner.suite, [(record.trial, record) for record in records], runner.store))
    raise Exit(exit_code(records))


def _ask_about_hosts(runner: Runner, plan: Sequence[PlannedTrial], allowed: bool) -> None:
    """Ask whether methods that connect to other hosts may run. Raises XMCBenchError where there is no one to ask."""
    from xmcbench.runs.plan import network_note

    if allowed or not (reached := network_note(runner.to_run(plan))):
        return
    if not sys.stdin.isatty():
        raise XMCBenchError(f"{reached}: expected --allow-network")
    confirm("Run them?", abort=True)


def _print_notes(runner: Runner, plan: Sequence[PlannedTrial]) -> None:
    """Print why several trials run at once, and that trials of code which is not in git cannot be submitted."""
    from xmcbench.trial.provenance import uncommitted

    if not runner.to_run(plan):
        return
    with patience("planning how many trials run at once"):
        if runner.why_parallel:
            echo(f"note: {runner.why_parallel}\n", err=True)
    if files := uncommitted():
        others = f" and {len(files) - 1} more" if len(files) > 1 else ""
        echo(f"note: git has uncommitted changes ({files[0]}{others}): these trials cannot be submitted\n", err=True)


def _run(runner: Runner, plan: Sequence[PlannedTrial], trackers: Sequence[Tracker]) -> list[Record]:
    """Run a plan and show its progress. Where it is interrupted, say so and exit."""
    from xmcbench.runs.progress import display, tracked
    from xmcbench.runs.tuning import run_plan

    try:
        with display() as shown, tracked(shown, trackers) as events:
            return run_plan(runner, plan, events)
    except KeyboardInterrupt:
        echo("interrupted: the next run resumes unfinished trials", err=True)
        raise Exit(INTERRUPTED) from None


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
    from xmcbench.plugins.registry import calling, registry

    kind: type[Executor] = registry().thing("executor", where)
    for name in sorted(given.keys() - kind.options):
        others = [other.name for other in registry().all("executor") if name in other.thing.options]
        known = f"is a setting of --executor {' or '.join(others)}, which is not given" if others else "is not known"
        raise XMCBenchError(f"--{name} {known}")
    if debug:
        raise XMCBenchError(f"--debug runs in this process, --executor {where} in others: expected one of them")
    with calling("executor", where):
        return kind(**given)


def _tracker(name: str, store: Path) -> Tracker:
    from xmcbench.plugins.registry import calling, registry

    kind: type[Tracker] = registry().thing("tracker", name)
    with calling("tracker", name):
        return kind(store)


def _tuning(tune: Tune, trials: Sequence[Trial], entries: Mapping[str, str]) -> str:
    """A line about tuning, which comes before the plan and changes the settings and keys of its trials."""
    from xmcbench.reporting.rows import budget_text

    samples = f"{tune.num_samples} samples per method, {tune.searcher} search, scheduler {tune.scheduler}"
    budget = budget_text(tune.budget.limits()) if tune.budget else "of the trial"
    tuned = {(trial.dataset, trial.label) for trial in trials if tune.space[entries[trial.label]]}
    trainings = tune.trainings * len(tuned)
    return f"tuned first: {samples}, budget {budget}; about {trainings} trainings before the {len(trials)} below\n"


def plan_table(plan: Sequence[PlannedTrial]) -> str:
    """A line for each trial; seeds for which the same is done share one, with the beginnings of their keys."""
    same: dict[tuple[str, ...], list[Trial]] = {}
    for planned in plan:
        line = planned.trial.label, planned.trial.dataset, str(planned.action), planned.reason
        same.setdefault(line, []).append(planned.trial)
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
