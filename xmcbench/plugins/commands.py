"""The contract of a command: what a plugin adds to the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """`xmcbench NAME`: a function, whose parameters Typer reads, or a `typer.Typer` that holds subcommands.

    The function prints with `typer.echo` and raises `XMCBenchError` where the user made a mistake. `function` does the
    same for Python: `xmcbench.score`, `compare` and `predict` call those of the commands of their names, and
    `xmcbench run` that of `tables`.
    """

    name: str
    run: Callable[..., Any]
    function: Callable[..., Any] | None = None
