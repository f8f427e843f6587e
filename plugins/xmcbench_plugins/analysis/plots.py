"""How figures look, and how they are written: with matplotlib (the extra `plots`), reproducible byte for byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import shorten
from typing import Any

from xmcbench.errors import import_extra
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.names import FAMILIES

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column and of a page in the usual paper templates
# Those of the page, where each is of a family of methods: after Okabe and Ito, darker, to stand out on white.
COLOURS = ("#0068a8", "#c04c00", "#00795a", "#7d3fa6", "#8f6a00", "#b02a62", "#1f7185", "#565b62")
DASHES = ("-", "--", ":", "-.")  # of lines of one family
LEADER = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "legend.fontsize": 7.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "figure.dpi": 200,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
    "pdf.fonttype": 42,  # embed TrueType fonts, as journals require
    "svg.hashsalt": "xmcbench",
    "mathtext.default": "regular",
}
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


@contextmanager
def drawing(path: Path, width: float = COLUMN, height: float = 2.4, panels: int = 0) -> Iterator[Any]:
    """Yield axes, or a list of `panels` axes side by side. Writes the figure to `path`, whose suffix is the format."""
    matplotlib = import_extra("matplotlib", "plots", "drawing figures")
    figures = import_extra("matplotlib.figure", "plots", "drawing figures")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, panels or 1, squeeze=False)[0]
        yield list(axes) if panels else axes[0]
        content, format = BytesIO(), path.suffix[1:]
        figure.savefig(content, format=format, metadata=UNDATED[format])
    with atomic_write(path) as file:
        file.write(content.getvalue())


def plain(text: str) -> str:
    """`text` with dollar signs escaped, which would start a formula in matplotlib."""
    return text.replace("$", r"\$")


def series(at: int) -> dict[str, Any]:
    """Colour and marker of the series with this number."""
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)]}


def legend_below(axes: Any, columns: int = 3) -> None:
    """Draw the legend of the axes below the whole figure, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    axes.figure.legend(handles, names, loc="outside lower center", ncols=columns, columnspacing=1.4, handlelength=1.6)


def family_legend(axes: Any, families: Sequence[int], key: Sequence[str] = ()) -> None:
    """Draw below the figure the colours of the families of methods, then the key of the numbers."""
    for family in sorted(set(families)):
        axes.plot([], [], "s", color=COLOURS[family], markersize=4, label=FAMILIES[family])
    for text in key:
        axes.plot([], [], linestyle="none", label=plain(shorten(text, 60)))
    legend_below(axes, 3)


def line_styles(families: Sequence[int]) -> list[dict[str, Any]]:
    """The colour of each line's family, and other dashes for each line of a family."""
    dashes: defaultdict[int, Iterator[str]] = defaultdict(partial(cycle, DASHES))
    return [{"color": COLOURS[family], "linestyle": next(dashes[family])} for family in families]


def label_points(axes: Any, labels: Sequence[tuple[float, float, str]], points: Sequence[tuple[float, float]]) -> None:
    """Write each text of `labels` beside its point, so that none hides another or one of the `points`."""
    adjust = import_extra("adjustText", "plots", "labelling points")
    texts = [axes.text(x, y, plain(text), fontsize=6, zorder=4) for x, y, text in labels]
    lines = {name: LEADER[name] for name in ("arrowstyle", "color", "linewidth")}
    x, y = [x for x, _ in points], [y for _, y in points]
    adjust.adjust_text(texts, x, y, ax=axes, arrowprops=lines, iter_lim=400, expand=(1.3, 1.9), force_static=(0.3, 0.5))


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Places near the wanted ones, from the highest down, at least `gap` apart.

    >>> apart([5.0, 4.9, 1.0], 1.0)
    [5.0, 4.0, 1.0]
    """
    placed: list[float] = []
    for place in wanted:
        placed.append(min(place, placed[-1] - gap) if placed else place)
    return placed
