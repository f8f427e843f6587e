"""`xmcbench run`: the plan, the trials, the leaderboard."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from xmcbench.record import Record
    from xmcbench.runner import Step


INTERRUPTED = 130  # exit code, as shells have it


def run(
    suite: Annotated[Path, typer.Argument(help="The suite file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")] = False,
    only: Annotated[str, typer.Option(metavar="GLOB", help="Trials whose label, or dataset/label, matches.")] = "*",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, as in budget.steps=10.")
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option("--dataset", metavar="NAME", help="Run on this in place of the suite's.")
    ] = None,
    data: Annotated[Path, typer.Option(envvar="XMCBENCH_DATA", help="Where datasets lie.")] = Path("data"),
    store: Annotated[Path, typer.Option(envvar="XMCBENCH_STORE", help="Where results go.")] = Path("results"),
    retry: Annotated[bool, typer.Option("--retry", help="Run trials again that failed before.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Run in this process and let errors through.")] = False,
) -> None:
    """Run what a suite asks for and the store does not hold yet, then print the leaderboard of the suite.

    Exit code: 0 all trials ok or skipped, 1 a trial failed, 2 a problem to mend first, 130 interrupted.
    """
    from xmcbench.cli.progress import display
    from xmcbench.data.prepared import default_cache_dir
    from xmcbench.plugins import registry
    from xmcbench.runner import Runner, Settings, exit_code

    settings = Settings(
        suite=suite,
        data=data,
        store=store,
        cache=default_cache_dir(),
        sets=sets or (),
        datasets=datasets or (),
        only=only,
        retry=retry,
        debug=debug,
        command=sys.argv,
    )
    runner = Runner(settings, registry())
    plan = runner.plan()
    _print_plan(plan)
    if dry_run:
        return
    try:
        with display() as shown:
            records = runner.run(plan, shown)
    except KeyboardInterrupt:
        typer.echo("interrupted: the next run resumes the trial in flight", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _print_leaderboard(records, runner.suite.metrics)
    raise typer.Exit(exit_code(records))


def _print_plan(plan: Sequence[Step]) -> None:
    from tabulate import tabulate

    rows = [
        (step.trial.label, step.trial.dataset, step.trial.seed, step.trial.key, step.action, step.reason)
        for step in plan
    ]
    headers = ("trial", "dataset", "seed", "key", "plan", "reason")
    typer.echo(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) * 6) + "\n")


def _print_leaderboard(records: Sequence[Record], wanted: Sequence[str]) -> None:
    from xmcbench import reporting
    from xmcbench.evaluation import DEFAULT_METRICS

    recorded = reporting.recorded_metrics(records)
    columns = None if tuple(wanted) == DEFAULT_METRICS else [name for name in wanted if name in recorded]
    typer.echo("\n" + reporting.render(reporting.leaderboard(records, metrics=columns or None), "table"))
