"""The command `xmcbench`: one module per subcommand. Heavy packages are imported inside the commands that need them."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from xmcbench.cli import (
    analyse,
    check,
    compare,
    datasets,
    environment,
    fuse,
    hub,
    leaderboard,
    methods,
    new,
    plan,
    predict,
    rescore,
    run,
    score,
    show,
    submit,
    tables,
    teachers,
    tune,
)
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import EscapingFormatter, echo

USER_ERROR = 2  # exit code: invalid input

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Extreme multi-label methods, trained under equal budgets and ranked from stored predictions.",
)
app.command("run")(run.run)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("tables")(tables.tables)
app.command("tune")(tune.tune)
app.command("plan")(plan.plan)
app.command("compare")(compare.compare)
app.command("show")(show.show)
app.command("submit")(submit.submit)
app.command("score")(score.score)
app.command("fuse")(fuse.fuse)
app.command("rescore")(rescore.rescore)
app.command("predict")(predict.predict)
app.command("analyse")(analyse.analyse)
app.command("new")(new.new)
app.command("check")(check.check)
app.command("methods")(methods.methods)
app.add_typer(environment.app, name="environment")
app.add_typer(datasets.app, name="datasets")
app.add_typer(teachers.app, name="teachers")
app.add_typer(hub.app, name="hub")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            echo(version("xmcbench"))
        except PackageNotFoundError:
            echo("not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error that a user can cause is printed on one line, never as a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    try:
        app(args=arguments)
    except XMCBenchError as problem:
        if "--debug" in arguments:
            raise
        from xmcbench.files.secrets import redact

        for line in str(problem).splitlines():
            echo(f"error: {redact(line)}", err=True)
        sys.exit(USER_ERROR)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader closed the pipe, as `head` does
        sys.exit(USER_ERROR)
    except OSError as problem:
        echo(f"error: {problem.filename or 'system'}: {problem.strerror or problem}", err=True)
        sys.exit(USER_ERROR)
    except Exception as problem:
        from xmcbench.files.secrets import redact
        from xmcbench.plugins.failures import plugin_failure

        if "--debug" in arguments or (failure := plugin_failure(problem)) is None:
            raise
        echo(f"error: {redact(failure)}", err=True)
        sys.exit(USER_ERROR)
