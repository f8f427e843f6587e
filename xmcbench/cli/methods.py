"""`xmcbench methods`: installed methods and broken plugins."""

from __future__ import annotations

import typer

HEADERS = ("method", "summary", "distribution", "version", "needs")
BROKEN_HEADERS = ("plugin", "distribution", "version", "reason")


def methods() -> None:
    """List installed methods, and plugins that could not be loaded."""
    from tabulate import tabulate

    from xmcbench.plugins.registry import registry

    found = registry()
    rows = [
        (
            each.name,
            each.thing.info.summary,
            each.origin.distribution,
            each.origin.version,
            ", ".join(each.thing.info.needs),
        )
        for each in found.all("method")
    ]
    typer.echo(tabulate(rows, headers=HEADERS, disable_numparse=True))
    if found.broken:
        typer.echo("\nbroken (XMCBENCH_STRICT_PLUGINS=1 shows the traceback)")
        broken = [(each.name, each.distribution, each.version, each.reason) for each in found.broken]
        typer.echo(tabulate(broken, headers=BROKEN_HEADERS, disable_numparse=True))
