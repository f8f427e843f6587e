"""The command `xmcbench`: a module for commands that belong together.

Heavy packages are imported inside the commands that need them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any

from typer import Exit, Option, Typer
from typer.main import get_command

from xmcbench.cli import leaderboard, methods, run
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.plugins.registry import FIRST_PARTY, OWN
from xmcbench.runs.terminal import EscapingFormatter, echo, patience, replace_unknown_signs

USER_ERROR = 2  # exit code: invalid input
HELP = ("-h", "--help")
COMPLETION = "_XMCBENCH_COMPLETE"  # the variable in which a shell asks what may follow

app = Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": [*HELP]},
    help="Extreme multi-label methods, trained under equal budgets and ranked from stored predictions.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "leaderboard": leaderboard.leaderboard,
    "show": leaderboard.show,
    "methods": methods.methods,
}
GROUPS = {
    "environment": methods.environments,
}
for name, command in COMMANDS.items():
    app.command(name)(command if name == "run" else patience(name)(command))  # `run` tells what it is doing
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register the commands above, so that their names are taken."""
    for name, called in (COMMANDS | GROUPS).items():
        register(Command(name, called))


def check_plugin(thing: Any) -> None:
    """Raise TypeError if `thing` cannot be registered as a command."""
    if not isinstance(thing, Command):
        raise TypeError(f"{thing!r} is not an xmcbench.Command")
    if not (isinstance(thing.name, str) and re.fullmatch("[a-z][a-z0-9-]*", thing.name)):
        raise TypeError(f"a command is called {thing.name!r}, expected small letters, digits and hyphens")
    if not callable(thing.run):
        raise TypeError(f"the command {thing.name!r} is no function and no typer.Typer")
    if _first_module(thing.run).partition(".")[0] not in (OWN, FIRST_PARTY):  # reading all of these takes long
        probe = Typer()
        _add(probe, thing.name, thing.run)
        get_command(probe)  # raises where Typer cannot read a parameter or a text


def _first_module(command: Callable[..., Any] | Typer) -> str:
    """The module of a command, or of the first of its subcommands."""
    called = [each.callback for each in command.registered_commands] if isinstance(command, Typer) else [command]
    return str(getattr(next(iter(called), None), "__module__", ""))


def add_commands_of_plugins(name: str | None = None) -> None:
    """Add the command `name` that a plugin registers, or all of them where it is None or unknown.

    A plugin whose entry point has the name of its command is imported for that command alone.
    """
    from xmcbench.plugins.registry import registry

    try:
        commands = [registry().thing("command", name)] if name else [each.thing for each in registry().all("command")]
    except UnknownNameError:
        commands = [each.thing for each in registry().all("command")]
        if registry().broken and COMPLETION not in os.environ:
            names = ", ".join(sorted({broken.name for broken in registry().broken}))
            echo(f"note: broken plugins: {names} (`xmcbench methods` shows why)", err=True)
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    for command in commands:
        if command.name not in known:
            _add(app, command.name, command.run)


def _add(to: Typer, name: str, command: Callable[..., Any] | Typer) -> None:
    if isinstance(command, Typer):
        to.add_typer(command, name=name)
    else:
        to.command(name)(command)


def _overview() -> Typer:
    """The commands without their parameters, which the list of all does not show and Typer takes long to read."""
    from xmcbench.plugins.registry import registry

    overview = _without_commands(app)
    others = {each.name: each.thing.run for each in registry().all("command") if each.name not in COMMANDS | GROUPS}
    for name, command in (COMMANDS | GROUPS | others).items():
        _add(overview, name, _without_commands(command) if isinstance(command, Typer) else _without_parameters(command))
    return overview


def _without_commands(group: Typer) -> Typer:
    alone = copy(group)
    alone.registered_commands, alone.registered_groups = [], []
    return alone


def _without_parameters(command: Callable[..., Any]) -> Callable[[], None]:
    def alone() -> None:
        pass

    alone.__doc__ = command.__doc__
    return alone


def _version(wanted: bool) -> None:
    if wanted:
        from xmcbench.plugins.registry import own_version

        echo(own_version())
        raise Exit


@app.callback()
def _options(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error that a user can cause is printed on one line, never as a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    replace_unknown_signs()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    try:
        for argument in arguments:
            if re.search("[\ud800-\udfff]", argument):  # neither a record nor a suite could hold it, or its path
                raise XMCBenchError(f"argument {argument!r}: found bytes that are not UTF-8, expected text")
        named = next((argument for argument in arguments if not argument.startswith("-")), None)
        overview = {*arguments} <= {*HELP} and COMPLETION not in os.environ
        if not overview and named not in COMMANDS | GROUPS:  # of a plugin; of all for what a shell offers
            add_commands_of_plugins(named)
        (_overview() if overview else app)(args=arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader closed the pipe, as `head` does
        sys.exit(USER_ERROR)
    except Exception as problem:
        from xmcbench.errors.secrets import redact

        told = _told(problem)
        if told is None or ("--debug" in arguments and not isinstance(problem, OSError)):
            raise
        for line in told.splitlines():
            echo(f"error: {redact(line)}", err=True)
        sys.exit(USER_ERROR)


def _told(problem: Exception) -> str | None:
    """The message of an error that a user or a plugin can cause; None for others."""
    from xmcbench.plugins.registry import plugin_failure

    if isinstance(problem, OSError):
        return f"{problem.filename or 'system'}: {problem.strerror or problem}"
    return str(problem) if isinstance(problem, XMCBenchError) else plugin_failure(problem)
