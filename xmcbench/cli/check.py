"""`xmcbench check`: try whether a plugin keeps its contract."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from xmcbench.cli.completion import plugin_names
from xmcbench.cli.options import DataDir
from xmcbench.runs.terminal import echo

FAILED = 1  # exit code: a rule is broken


class Kind(StrEnum):
    """The kinds of plugins."""

    METHOD = "method"
    SAMPLER = "sampler"
    EVALUATOR = "evaluator"
    DATASET = "dataset"
    TEACHER = "teacher"
    TRACKER = "tracker"


def check(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a method, sampler, evaluator, dataset, teacher or tracker.", autocompletion=plugin_names
        ),
    ],
    kind: Annotated[Kind | None, typer.Option(help="Kind of the plugin, if several have the name.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of a method or teacher.")
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="Only this rule, by the name that a check prints."),
    ] = None,
    data: DataDir = Path("data"),
) -> None:
    """Check a plugin's contract on tiny data. Exit code: 0 all rules kept; 1 a rule is broken; 2 invalid input."""
    from xmcbench.plugins.registry import registry
    from xmcbench.runs.conformance.suite import checks, find_kind, read_settings

    chosen = kind.value if kind else find_kind(name)
    broken = 0
    with checks(chosen, name, read_settings(sets or []), data, rules or ()) as results:
        for result in results:
            if result.found is not None:
                broken += 1
                echo(f"BROKEN   {result.rule.name}")
                echo("\n".join(f"         {line}" for line in result.explanation.splitlines()))
            elif result.skipped:
                echo(f"skipped  {result.rule.name}: {result.skipped}")
            else:
                echo(f"ok       {result.rule.name}")
    if chosen == "method" and (hint := registry().import_remark(registry().method(name).origin.distribution)):
        echo(hint)
    if chosen == "method":
        thing = registry().method(name).thing
        echo(
            f"hint: results are kept under version {thing.info.version} of {name}: raise MethodInfo.version with every "
            "change of code that moves results; `xmcbench run` says where code changed and version did not"
        )
    kept = "the chosen rules kept" if rules else "all rules kept"
    echo(f"{chosen} {name}: " + (f"{broken} broken rules" if broken else kept))
    raise typer.Exit(FAILED if broken else 0)
