"""`xmcbench methods`: installed methods and broken plugins."""

from __future__ import annotations

from xmcbench.runs.terminal import echo, listing

HEADERS = ("method", "summary", "distribution", "version", "needs")
BROKEN_HEADERS = ("plugin", "distribution", "version", "reason")


def methods() -> None:
    """List installed methods, and plugins that could not be loaded."""
    from xmcbench.plugins.registry import registry

    plugins = registry()
    rows = [
        (
            method.name,
            method.thing.info.summary,
            method.origin.distribution,
            method.origin.version,
            ", ".join(method.thing.info.needs),
        )
        for method in plugins.all("method")
    ]
    echo(listing(rows, HEADERS))
    for distribution in sorted({method.origin.distribution for method in plugins.all("method")}):
        if remark := plugins.import_remark(distribution):
            echo(f"\n{remark}")
    if plugins.broken:
        echo("\nbroken (XMCBENCH_STRICT_PLUGINS=1 shows the traceback)")
        broken = [(plugin.name, plugin.distribution, plugin.version, plugin.reason) for plugin in plugins.broken]
        echo(listing(broken, BROKEN_HEADERS))
