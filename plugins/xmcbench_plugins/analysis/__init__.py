"""What predictions show beyond a table of metrics: comparisons of two trials, analyses, figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xmcbench.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from xmcbench.reporting.formats import Format, Shown


def _figures(format: str, shown: Shown, output: Path | None) -> Sequence[Path]:
    from xmcbench_plugins.analysis.figures import write_figures

    folder = output or Path("leaderboard-figures")
    return write_figures(shown.table, shown.measured.records, folder, format, shown.analyses())


@hookimpl
def register_formats(register: Callable[[Format], None]) -> None:
    """Register the formats of figures."""
    from xmcbench.reporting.formats import Format

    for name in ("png", "pdf", "svg"):
        register(Format(name, "figures of quality and cost", partial(_figures, name)))
